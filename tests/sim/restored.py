"""The end of some runs: a cluster is restored from the archive, and goes on.

What the parent gave out after the moment is still in use: producers that it named go on at the
restored cluster, and those whom that one names must meet none of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.log.point_in_time import Moment, restore_state
from penstock.model.errors import CorruptDataError, NotFoundError, RetryableError
from penstock.replica.archive import Archive
from penstock.testing.inline_executor import InlineExecutor
from penstock.testing.simulated_link import SimulatedLink
from penstock.testing.simulated_store import SimulatedStore
from sim.admin import Admin
from sim.identity import is_keyed
from sim.oracle import Oracle
from sim.producer import Producer, Session
from sim.readers import Watcher

if TYPE_CHECKING:
    from sim.chance import Chance
    from sim.history import Place
    from sim.world import World

PARENT_URL = "s3://parent"
CLUSTER_ID = "simulated-cluster-0003"
TOPIC = "grown"
STEP_S = 90.0
TRIES = 20


class KnownProducer(Producer):
    """One that has its id from before."""

    def __init__(self, world: World, name: str, count: int, session: Session | None) -> None:
        super().__init__(world, name, count)
        self._known = session

    async def _initialize(self, agent: object) -> tuple[int, Session]:
        if self._known is not None:
            known, self._known = self._known, None
            return 0, known
        return await super()._initialize(agent)  # type: ignore[arg-type]


async def restore(world: World, chance: Chance) -> None:
    """Restore as of the archive's end, and go on there."""
    store = _store(world, chance)
    pool = InlineExecutor(chance.fork(), workers=2)
    for _ in range(TRIES):
        try:
            state = await restore_state(
                store,
                PARENT_URL,
                cluster_id=CLUSTER_ID,
                moment=Moment(),
                scratch=world.folder / "restore",
                executor=pool,
                clock=world.clock,
                random=chance.fork(),
            )
        except (RetryableError, NotFoundError, CorruptDataError):
            # There is no snapshot yet, or a listing lags behind the archiver.
            await asyncio.sleep(0.5)
        else:
            break
    else:
        world.history.count("no archive to restore from")
        return
    world.note(f"restored as of {state.parent_position}, archived {state.archived_position}")
    # The parent goes on for a while: its ids of that time are in use after it is gone.
    late = [await _named_by_the_parent(world) for _ in range(1 + chance.below(3))]
    expected = {place: dict(known.acked) for place, known in world.history.partitions.items()}
    world.become(CLUSTER_ID)
    archive = Archive(
        _store(world, chance), cluster_id=CLUSTER_ID, scratch=world.folder / "put", executor=pool
    )
    world.oracle = Oracle(world, snapshot=state.snapshot, time_ms=state.info.time_ms)
    await archive.put_snapshot(state.snapshot, state.info)
    for agent in world.agents:
        agent.move_to_another_host()
        agent.start()
    for agent in world.agents:
        await world.within(STEP_S, agent.ready.wait(), f"{agent} doesn't start after a restore")
    await _check_inherited(world, chance, expected)
    await _go_on(world, chance, late)
    world.history.count("restored")


def _store(world: World, chance: Chance) -> SimulatedStore:
    link = SimulatedLink(world.loop, chance.fork(), server=world.loop.world, timeout_s=3.0)
    return SimulatedStore(world.bucket, link)


async def _named_by_the_parent(world: World) -> Session:
    admin = Admin(world, "late")
    code, producer_id, epoch = await world.within(
        STEP_S, world.on_node("late", _until_named(admin)), "no producer id"
    )
    assert not code
    return Session(producer_id, epoch)


async def _until_named(admin: Admin) -> tuple[int, int, int]:
    producer_id, epoch = await admin.until_answered(
        lambda agent: _named(admin, agent)  # type: ignore[arg-type]
    )
    return 0, producer_id, epoch


async def _named(admin: Admin, agent: object) -> tuple[int, tuple[int, int]]:
    code, producer_id, epoch = await admin.client.producer_id(agent)  # type: ignore[arg-type]
    return code, (producer_id, epoch)


async def _check_inherited(
    world: World, chance: Chance, expected: dict[Place, dict[int, bytes]]
) -> None:
    """What the moment had is there, read where the parent keeps it."""
    reader = Watcher(world, "inherits")
    for place in sorted(expected):
        if is_keyed(place) or world.history.is_deleted(place[0]):
            continue
        bounds = world.oracle.bounds(place)
        if bounds is None:
            continue
        agent = chance.pick(world.agents)
        records = await world.within(
            STEP_S,
            world.on_node("inherits", reader.records(agent, place, *bounds)),
            f"{place} can't be read from a restored {agent}",
        )
        for offset, value in expected[place].items():
            if bounds[0] <= offset < bounds[1] and records.get(offset) != value:
                detail = f"{place} {offset}: {records.get(offset)!r}, not {value!r}"
                world.history.violate("restored-another", detail)
        world.history.count("inherited partition read")


async def _go_on(world: World, chance: Chance, late: list[Session]) -> None:
    world.places.clear()
    admin = Admin(world, "admin-restored")
    await world.within(STEP_S, world.on_node("admin-restored", admin.create(TOPIC, 1)), "create")
    world.stopping = False
    sessions: list[Session | None] = [*late, None, None, None]
    for number, session in enumerate(sessions):
        name = f"goes-on{number}"
        producer = KnownProducer(world, name, 3 + chance.below(8), session)
        await world.within(STEP_S, world.on_node(name, producer.run()), "produce after a restore")
    world.stopping = True
    place = (TOPIC, 0)
    reader = Watcher(world, "restored-reader")
    for agent in chance.shuffled(world.agents)[:2]:
        await world.within(
            STEP_S,
            world.on_node("restored-reader", world.read_all(reader, agent, place)),
            f"{TOPIC} can't be read from {agent}",
        )
