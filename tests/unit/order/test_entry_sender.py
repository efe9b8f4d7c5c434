"""A journal whose appends fail as no retry mends stops the agent; nothing waits for ever."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.errors import (
    ElsewhereError,
    FatalStorageError,
    InDoubtError,
    InvalidRequestError,
    PenstockError,
    RetryableError,
)
from penstock.order.entry_sender import EntrySender
from penstock.order.entry_window import UNRESOLVED_MAX
from penstock.state.answers import AnyAnswer
from penstock.state.commands import (
    AllocateProducerIds,
    AnyCommand,
    CommitOffsets,
    CommitRuns,
    Heartbeat,
    SaveGroup,
    SaveMembers,
)
from penstock.state.levels import KnownLevels
from penstock.state.log_protocol import LOG_PROTOCOL
from penstock.state.schema import FEATURE_LEVEL_MAX
from penstock.system.backoff import Backoff
from support.cluster_orders import Agent
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop, run

ONE = [AllocateProducerIds(count=1)]
REFUSED = InvalidRequestError("append", "journal", "the table is another release's")


class RaisingJournal:
    """Fails appends with what the test says, one after the other, and then has none of them."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.append_count = 0

    async def append(self, body: bytes) -> int:
        self.append_count += 1
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        return await asyncio.get_running_loop().create_future()


def _sender(
    loop: VirtualLoop,
    journal: RaisingJournal,
    stopped: list[PenstockError],
    *,
    appended: Callable[[], None] = lambda: None,
) -> EntrySender[AnyCommand, AnyAnswer]:
    return EntrySender(
        journal,
        agent=1,
        epoch=1,
        clock=VirtualClock(loop),
        protocol=LOG_PROTOCOL,
        levels=KnownLevels(),
        position=lambda: 0,
        appended=appended,
        stopped=stopped.append,
        backoff=Backoff(first_s=0.01, most_s=0.1),
    )


@pytest.mark.parametrize(
    ("raised", "told"),
    [(REFUSED, InvalidRequestError), (KeyError("a bug"), FatalStorageError)],
    ids=["refused", "bug"],
)
def test_an_append_that_no_retry_mends_stops_the_sender(
    raised: Exception, told: type[PenstockError]
) -> None:
    stopped: list[PenstockError] = []

    async def main(loop: VirtualLoop) -> None:
        # The first failure is one that a retry mends: the sender goes on.
        journal = RaisingJournal(RetryableError("append", "journal", "away"), raised)
        sender = _sender(loop, journal, stopped)
        under_way = sender.submit(ONE).future
        with pytest.raises(InDoubtError):
            await asyncio.wait_for(under_way, 5)
        later = sender.submit(ONE).future
        with pytest.raises(InDoubtError):
            await asyncio.wait_for(later, 5)
        assert journal.append_count == 2
        await sender.close()

    run(main, SeededRandom(1))
    (error,) = stopped
    assert type(error) is told


def test_an_exception_after_an_append_stops_the_sender() -> None:
    stopped: list[PenstockError] = []

    class Journal(RaisingJournal):
        async def append(self, body: bytes) -> int:
            return 7

    def appended() -> None:
        raise KeyError("a bug")

    async def main(loop: VirtualLoop) -> None:
        sender = _sender(loop, Journal(), stopped, appended=appended)
        with pytest.raises(InDoubtError):
            await asyncio.wait_for(sender.submit(ONE).future, 5)
        await sender.close()

    run(main, SeededRandom(1))
    (error,) = stopped
    assert type(error) is FatalStorageError


def test_pauses_double_with_each_failure_up_to_the_bound() -> None:
    sent_s: list[float] = []

    async def main(loop: VirtualLoop) -> None:
        class Journal(RaisingJournal):
            async def append(self, body: bytes) -> int:
                sent_s.append(loop.time())
                return await super().append(body)

        away = RetryableError("append", "journal", "away")
        sender = _sender(loop, Journal(*[away] * 6), [])
        sender.submit(ONE)
        await asyncio.sleep(1)
        sender.fail(InDoubtError("commit", "agent 1", "closed"))
        await sender.close()

    run(main, SeededRandom(1))
    pauses_s = [later - earlier for earlier, later in itertools.pairwise(sent_s)]
    assert pauses_s == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.1, 0.1], abs=0.002)


@pytest.mark.parametrize("opens", [True, False], ids=["its epoch is open", "it opens its epoch"])
def test_an_agent_whose_journal_refuses_ends_and_says_why(tmp_path: Path, opens: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop)
        journal = SimulatedJournal(random=SeededRandom(1), clock=clock, faults=JournalFaults())
        connection = journal.connect()
        agent = Agent(1, tmp_path / "1", connection, journal.cluster_id)

        async def refuse(body: bytes) -> int:
            raise REFUSED

        if opens:
            await agent.start(clock, 1)
            connection.append = refuse  # type: ignore[method-assign]
            with pytest.raises(InDoubtError, match="another release"):
                await asyncio.wait_for(agent.order.commit(ONE), 5)
        else:
            connection.append = refuse  # type: ignore[method-assign]
            with pytest.raises(InDoubtError, match="another release"):
                await asyncio.wait_for(agent.start(clock, 1), 5)
        assert agent.stopped is REFUSED
        await agent.close()

    run(main, SeededRandom(1))


def test_what_is_let_go_was_never_sent_and_beats_stay() -> None:
    async def main(loop: VirtualLoop) -> None:
        journal = RaisingJournal()
        sender = _sender(loop, journal, [])
        sender._levels.load(FEATURE_LEVEL_MAX, [])
        sent = [sender.submit(ONE) for _ in range(UNRESOLVED_MAX)]
        unsent, beat = sender.submit(ONE), sender.submit([Heartbeat()])
        error = ElsewhereError("append", "agent 1", "cut off")
        assert sender.let_go(error) == 1
        assert unsent.future.exception() is error
        assert not any(call.future.done() for call in [*sent, beat])
        assert sender.withdraw(beat), "it waits still"
        sender.fail(InDoubtError("commit", "agent 1", "closed"))
        await sender.close()

    run(main, SeededRandom(1))


def test_of_what_was_sent_groups_are_given_up_and_records_are_not() -> None:
    """A commit of offsets was waited for until its client's session had ended."""

    async def main(loop: VirtualLoop) -> None:
        sender = _sender(loop, RaisingJournal(), [])
        sender._levels.load(FEATURE_LEVEL_MAX, [])
        offsets = sender.submit([CommitOffsets(group_id="g", offsets=[], shard_epoch=1)])
        group = sender.submit(
            [SaveGroup(group_id="g", generation=1, protocol_type="c", empty=False, state=b"")]
        )
        members = sender.submit(
            [
                SaveMembers(
                    group_id="g",
                    generation=1,
                    protocol_type="consumer",
                    kind=1,
                    empty=False,
                    state=b"",
                    rows=[("m", b"")],
                    removed=[],
                )
            ]
        )
        records = sender.submit([CommitRuns(runs=[])])
        error = InDoubtError("append", "agent 1", "its epoch was ended by others")
        sender.give_up_groups(error)
        for call in (offsets, group, members):
            assert call.future.exception() is error
        assert not records.future.done(), "its bytes may yet be named"
        sender.fail(InDoubtError("commit", "agent 1", "closed"))
        await sender.close()

    run(main, SeededRandom(1))
