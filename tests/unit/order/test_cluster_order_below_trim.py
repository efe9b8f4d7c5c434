"""What waits at an agent whose journal was trimmed away under it."""

import asyncio
from pathlib import Path

from penstock.model.errors import InDoubtError, NotFoundError
from penstock.state.commands import AllocateProducerIds
from support.cluster_orders import Agent, outcome
from support.simulated.journal import SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop, run

ONE = [AllocateProducerIds(count=1)]


def test_it_is_in_doubt_and_nothing_is_unknown(tmp_path: Path) -> None:
    """A NotFoundError would tell a producer that there is no such topic."""

    async def main(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop)
        journal = SimulatedJournal(random=SeededRandom(1), clock=clock)
        ends = [journal.connect(), journal.connect()]
        one, two = (
            Agent(number, tmp_path / str(number), end, journal.cluster_id)
            for number, end in enumerate(ends, 1)
        )
        await one.start(clock, 1)
        await two.start(clock, 2)
        ends[0].cut = True
        ends[0].break_off("the network is cut")
        waiting = asyncio.ensure_future(outcome(one.order.commit(ONE)))
        for _ in range(5):
            await two.order.commit(ONE)
        journal.trim(two.order.position - 1)
        ends[0].cut = False
        assert isinstance(await waiting, InDoubtError)
        assert isinstance(one.stopped, NotFoundError)
        await one.close()
        await two.close()

    run(main, SeededRandom(1))
