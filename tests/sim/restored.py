"""The end of some runs: a cluster is restored from the archive, and goes on.

What the parent gave out after the moment is still in use: producers that it named go on at the
restored cluster, and those whom that one names must meet none of them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model.errors import CorruptDataError, NotFoundError, RetryableError
from penstock.recovery.point_in_time import Moment, RestoredState, restore_state
from penstock.replica.archive import Archive
from sim.admin import Admin
from sim.ending import read_all
from sim.identity import is_keyed
from sim.inherited import PARENT_URL
from sim.oracle import Oracle
from sim.producer import Producer, Session
from sim.readers import Watcher
from support.simulated.inline_executor import InlineExecutor
from support.simulated.link import SimulatedLink
from support.simulated.store import SimulatedStore

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.chance import Chance
    from sim.history import Place
    from sim.world import World

CLUSTER_ID = "simulated-cluster-0003"
TOPIC = "grown"
STEP_S = 90.0
TRIES = 20
DELETED_S = 4.0
"""Some passes of the keeper."""


class KnownProducer(Producer):
    """One that has its id from before."""

    def __init__(self, world: World, name: str, count: int, session: Session | None) -> None:
        super().__init__(world, name, count)
        self._known = session

    async def _initialize(self, agent: Agent) -> tuple[int, Session]:
        if self._known is not None:
            known, self._known = self._known, None
            return 0, known
        return await super()._initialize(agent)


class Restoring:
    """What an operator's machine does, which nothing goes wrong with."""

    def __init__(self, world: World, chance: Chance) -> None:
        self._world = world
        self._chance = chance
        self._store = self._open_store()
        self._scratch = world.folder / "restore"
        self._pool = InlineExecutor(chance.fork(), workers=2)

    @property
    def database(self) -> Path:
        """Of a state on its way; what could not be restored lies there still."""
        return self._scratch / "restored.sqlite"

    async def state_at(self, moment: Moment, *, allow_loss: bool = False) -> RestoredState:
        """See `penstock.recovery.point_in_time.restore_state`."""
        return await restore_state(
            self._store,
            PARENT_URL,
            cluster_id=CLUSTER_ID,
            moment=moment,
            scratch=self._scratch,
            executor=self._pool,
            clock=self._world.clock,
            random=self._chance.fork(),
            allow_loss=allow_loss,
        )

    async def archive_end_ms(self) -> int:
        """When the last row was written that the archive has; 0: there is none."""
        archive = self._archive()
        ends = [name.last for name in await archive.stretches()]
        ends += [name.position for name in await archive.snapshots()]
        row = self._world.journal.row_ever(max(ends, default=0))
        return 0 if row is None else row.stamp_ms

    def _archive(self) -> Archive:
        return Archive(
            self._open_store(),
            cluster_id=CLUSTER_ID,
            scratch=self._world.folder / "put",
            executor=self._pool,
        )

    async def begin(self, state: RestoredState) -> None:
        """Put the state where the restored cluster finds it, and start that on other hosts."""
        world = self._world
        await self._archive().put_snapshot(state.snapshot, state.info)
        world.journal.begin(state.beginning)
        for agent in world.agents:
            agent.move_to_another_host()
            agent.start()
        for agent in world.agents:
            await world.within(STEP_S, agent.ready.wait(), f"{agent} doesn't start after a restore")

    def _open_store(self) -> SimulatedStore:
        world = self._world
        link = SimulatedLink(
            world.loop, self._chance.fork(), server=world.loop.world, timeout_s=3.0
        )
        return SimulatedStore(world.bucket, link)


async def restore(world: World, chance: Chance) -> None:
    """Restore as of the archive's end, and go on there."""
    restoring = Restoring(world, chance)
    # The parent goes on for a while: its ids of that time are in use after it is gone.
    late_count = 1 + chance.below(3)
    for _ in range(TRIES):
        try:
            state = await restoring.state_at(Moment())
        except (RetryableError, NotFoundError, CorruptDataError):
            # There is no snapshot yet, or a listing lags behind the archiver.
            await asyncio.sleep(0.5)
            continue
        world.note(f"restored as of {state.parent_position}, archived {state.archived_position}")
        late = [await _named_by_the_parent(world) for _ in range(late_count)]
        if state.info.time_ms > world.clock.now_ms() - world.restore_window_ms:
            break
        # An archiver that could not reach the store has only just come back: the parent may by now
        # delete what this moment needs, and listings that lag behind still show that.
        world.history.count("restored past the window")
        await asyncio.sleep(0.5)
    else:
        world.history.count("no archive to restore from")
        return
    expected = {place: dict(known.acked) for place, known in world.history.partitions.items()}
    world.become(CLUSTER_ID)
    world.oracle = Oracle(world, snapshot=state.snapshot, time_ms=state.info.time_ms)
    world.history.restored(world.oracle)
    await restoring.begin(state)
    await _check_inherited(world, chance, expected)
    await _go_on(world, chance, late)
    if chance.happens(0.7):
        await _delete_inherited(world, chance)
    world.history.count("restored")


async def _named_by_the_parent(world: World) -> Session:
    admin = Admin(world, "late")
    code, producer_id, epoch = await world.within(
        STEP_S, world.on_node("late", _until_named(admin)), "no producer id"
    )
    assert not code
    return Session(producer_id, epoch)


async def _until_named(admin: Admin) -> tuple[int, int, int]:
    producer_id, epoch = await admin.until_answered(lambda agent: _named(admin, agent))
    return 0, producer_id, epoch


async def _named(admin: Admin, agent: Agent) -> tuple[int, tuple[int, int]]:
    code, producer_id, epoch = await admin.client.producer_id(agent)
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
        # Retention goes on, and may have taken some before they were read.
        world.oracle.catch_up()
        start = world.oracle.log_start(place)
        for offset, value in expected[place].items():
            if start <= offset < bounds[1] and records.get(offset) != value:
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
            world.on_node("restored-reader", read_all(world, reader, agent, place)),
            f"{TOPIC} can't be read from {agent}",
        )


async def _delete_inherited(world: World, chance: Chance) -> None:
    """Delete a topic, and wait until nothing holds back what lay in it: its parent has it still."""
    topics = {place[0] for place in world.history.partitions if place[0] != TOPIC}
    left = sorted(topic for topic in topics if not world.history.is_deleted(topic))
    if not left:
        return
    admin = Admin(world, "deletes-inherited")
    await world.within(
        STEP_S, world.on_node(admin.name, admin.delete(chance.pick(left))), "delete after a restore"
    )
    await asyncio.sleep((world.restore_window_ms + world.grace_ms) / 1000 + DELETED_S)
    world.history.count("inherited topic deleted")
