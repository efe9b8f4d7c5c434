"""One run: agents, a journal, a bucket, clients, faults, and in the end the whole truth.

Everything that chance decides comes from the seed, so that a run can be had again.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.kafka.errors import ErrorCode
from penstock.metadata.schema import FEATURE_LEVEL_MAX
from penstock.model.errors import (
    CorruptDataError,
    FencedError,
    JournalOlderError,
    NotFoundError,
    OtherClusterError,
    RetryableError,
)
from penstock.ports.journal import JournalRow
from penstock.testing.journal import JournalFaults, SimulatedJournal
from penstock.testing.simulated_store import SimulatedBucket
from penstock.testing.virtual_loop import StuckError, VirtualClock, VirtualLoop, run
from sim.actors import Actor
from sim.admin import Admin
from sim.agent import Agent
from sim.chance import Chance
from sim.compactor import Cleaner, Compactor
from sim.faults import AGENTS_MAX, Faults
from sim.history import History, Place, ViolationError
from sim.identity import is_keyed
from sim.keyed import KeyedProducer, create_topic
from sim.member import Member
from sim.oracle import Oracle
from sim.pipeline import StreamWriter
from sim.producer import Producer
from sim.profiles import profile_of
from sim.readers import Consumer, Watcher
from sim.restored import restore
from sim.rot import Rot
from sim.wire import BrokenError

HEAL_S = 90.0
"""Virtual seconds after the last fault until which everything must be done and readable."""
LOOK_S = 1.0
RECENT_ACKS = 20
WINDOW_STREAM = 0x77696E646F77
OTHER_STREAM = 0x6F74686572
OLDER_STREAM = 0x6F6C646572
KEYED_SHARE = 0.35
"""Of the runs that have a topic which is compacted by key."""
GROUP_TOPIC = "group-topic"


@dataclass(slots=True)
class Result:
    """What a run came to."""

    seed: int
    kind: str = ""
    """Of the violation; empty: there was none."""
    detail: str = ""
    trace: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    entries: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class WatchedBucket(SimulatedBucket):
    """Remembers what ever was in it."""

    def __init__(self, loop: VirtualLoop, **options: Any) -> None:
        super().__init__(loop, **options)
        self.ever_put: set[str] = set()
        self.ever_deleted: set[str] = set()
        self.on_overwrite: Callable[[str], None] = lambda _key: None

    async def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        """See the port. A segment's key never gets other bytes."""
        found = self.objects.get(key)
        if not (if_absent or self.away) and found is not None and found.data != data:
            self.on_overwrite(key)
        await super().put(key, data, if_absent=if_absent)


class WatchedJournal(SimulatedJournal):
    """Remembers what it has trimmed, and tells before it does."""

    on_trim: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ever: dict[int, JournalRow] = {}

    def trim(self, up_to: int) -> int:
        """See `SimulatedJournal`."""
        self.on_trim()
        return super().trim(up_to)

    def row_ever(self, position: int) -> JournalRow | None:
        """The row at a position, also where it was trimmed."""
        return self._ever.get(position)

    def come_back_older(self, position: int) -> None:
        """See `SimulatedJournal`."""
        super().come_back_older(position)
        self._ever = {found: row for found, row in self._ever.items() if found <= position}

    def _show(self, row: JournalRow) -> None:
        self._ever[row.position] = row
        super()._show(row)


class World:
    """See the module. `live` is the run's main coroutine."""

    grace_ms = 2_000
    skew_allowed_ms = 0
    segments_prefix = "segments/"

    def __init__(self, loop: VirtualLoop, seed: int, folder: Path, *, verbose: bool) -> None:
        self.loop = loop
        self.seed = seed
        self.folder = folder
        self.verbose = verbose
        self.chance = Chance(seed)
        self.profile = profile_of(seed)
        chance = self.chance
        self.clock = VirtualClock(loop)
        self.notes: list[str] = []
        self.history = History(self)
        self.violation: ViolationError | None = None
        self._ended: asyncio.Future[None] = loop.create_future()
        calm = chance.happens(0.15)
        """Some runs have clients alone, and find what needs no fault."""
        self.calm = calm
        self.think_s = chance.pick((0.01, 0.1, 0.4))
        self.think_s = self.profile.think_s or self.think_s
        self.value_bytes_max = chance.pick((1, 40, 400))
        self.value_bytes_max = self.profile.value_bytes_max or self.value_bytes_max
        self.slow_share = 0.0 if calm else chance.pick((0.0, 0.003, 0.02))
        self.break_share = 0.0 if calm else chance.pick((0.0, 0.005, 0.03))
        self.trim_share = chance.pick((0.0, 0.3, 1.0))
        self.seconds = chance.uniform(6, 16)
        often = 0 if calm else chance.pick((0, 5, 30))
        self.journal_faults = JournalFaults(
            delay_ms=(0, chance.pick((1, 4, 20))),
            commit_ms=(0, chance.pick((2, 10))),
            slow_permille=often // 3,
            slow_ms=(50, 1500),
            lost_request_permille=often,
            lost_reply_permille=often,
            gap_permille=often,
            doubled_permille=often,
            lost_read_permille=often // 2,
            lost_hint_permille=often,
        )
        self.journal_clock = VirtualClock(loop)
        with loop.on(loop.world):
            self.journal = WatchedJournal(
                random=chance.fork(), clock=self.journal_clock, faults=self.journal_faults
            )
            # Of a cluster that is none of the run's agents'.
            self.other_journal = WatchedJournal(
                random=Chance(seed ^ OTHER_STREAM),
                clock=self.clock,
                cluster_id="simulated-cluster-0002",
            )
        self.other_bucket = SimulatedBucket(loop)
        self.parent_bucket: SimulatedBucket | None = None
        """Of the cluster that this one was restored from."""
        self.bucket = WatchedBucket(loop, list_lag_s=chance.pick((0.0, 0.0, 3.0)))
        self.store_permille = often
        self.rot = Rot(self)
        self.oracle = Oracle(self)
        self.journal.on_trim = self.oracle.catch_up
        self.archives = chance.happens(0.5) or self.profile.archives
        self.restore_window_ms = Chance(seed ^ WINDOW_STREAM).pick((2_000, 2_000, 4_000))
        self.bucket.on_put = self.bucket.ever_put.add
        self.bucket.on_delete = self._deleting
        self.bucket.on_overwrite = self._overwriting
        self.lost_live: set[str] = set()
        """Objects that entries named which the journal has lost."""
        self.mode = chance.pick(("object", "wal", "wal", "mixed"))
        self.mode = self.profile.mode or self.mode
        self.flush_bytes = chance.pick((200, 2_000))
        self.flush_bytes = self.profile.flush_bytes or self.flush_bytes
        self.flush_interval_ms = chance.pick((5, 50))
        self.segment_age_ms = chance.pick((300, 4_000))
        self.segment_age_ms = self.profile.segment_age_ms or self.segment_age_ms
        self.zones = chance.pick((("a",), ("a", "b")))
        self.agents: list[Agent] = []
        self.actors: list[Actor] = []
        self.places: list[Place] = []
        self.recent_acks: list[tuple[Place, int]] = []
        self.stopping = False
        self.is_older = False
        """The journal came back older."""
        self.was_condemned: Callable[[str], bool] = lambda _: False
        """By entries that the journal has lost."""
        self.over = False
        self.keyed_sent: dict[tuple[Place, int, int, int], list[bytes]] = {}
        """Records of compacted topics by producer id, epoch and base sequence of their batch."""
        self.keyed_retention_ms = 0
        """`delete.retention.ms` of the compacted topic."""
        self.cleaning_ms: dict[str, int] = {}
        """By object of a cleaning the journal's time at which that was planned."""

    # -- what actors ask -------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A line of the trace."""
        if self.over:
            return
        line = f"{self.loop.time():9.4f} {self.loop.running.name:<12} {text}"
        self.notes.append(line)
        if self.verbose:
            print(line)

    def violated(self, error: ViolationError) -> ViolationError:
        """Keep the first broken promise and end the run."""
        if self.violation is None:
            self.violation = error
            self.note(f"VIOLATION {error.kind}")
        if not self._ended.done():
            self._ended.set_result(None)
        return error

    def agent_by_id(self, agent_id: int) -> Agent | None:
        """The agent of that id, if there is one."""
        for agent in self.agents:
            if agent.agent_id == agent_id:
                return agent
        return None

    def agent_at(self, url: str) -> Agent | None:
        """The agent of that peer address."""
        for agent in self.agents:
            if agent.peer == url:
                return agent
        return None

    def catch_up(self) -> None:
        """Know what the journal has by now."""
        self.oracle.catch_up()

    def add_places(self, topic: str, numbers: Iterable[int]) -> None:
        """Partitions that there are now."""
        for number in numbers:
            if (topic, number) not in self.places:
                self.places.append((topic, number))

    def drop_places(self, topic: str) -> None:
        """A topic is being deleted."""
        self.places = [place for place in self.places if place[0] != topic]
        self.recent_acks = [ack for ack in self.recent_acks if ack[0][0] != topic]

    def acked(self, place: Place, base: int, values: list[bytes]) -> None:
        """For those who read again what was acknowledged just now."""
        self.recent_acks.append((place, base + len(values) - 1))
        del self.recent_acks[:-RECENT_ACKS]

    def ended(self, agent: Agent, error: BaseException) -> None:
        """An agent ended by itself, which it may only when it has a reason."""
        if isinstance(error, JournalOlderError):
            self.noticed_older(agent, error)
        elif isinstance(error, NotFoundError) and self.journal.first > 1:
            self.history.count("agent ended: below the trim")
        elif isinstance(error, CorruptDataError) and self.rot.is_in(agent.device):
            self.history.count("agent ended: its WAL is damaged")
        elif isinstance(error, OtherClusterError) and agent.is_astray:
            self.history.count("agent ended: another cluster's journal")
        elif isinstance(error, FencedError | RetryableError):
            self.history.count(f"agent ended: {type(error).__name__}")
        else:
            text = "".join(traceback.format_exception(error))
            self.violated(ViolationError("agent-died", f"{agent}: {text}"))

    def noticed_older(self, agent: Agent, error: JournalOlderError) -> None:
        """An agent's replica was newer than the journal."""
        if not self.is_older:
            text = "".join(traceback.format_exception(error))
            raise self.violated(ViolationError("spurious-older", f"{agent}: {text}"))
        self.history.count("noticed an older journal")

    def forget_connection(self, connection: Any) -> None:
        """A dead agent's connection to the journal."""
        self.journal.forget(connection)

    def join(self) -> None:
        """A new agent."""
        agent = Agent(self, len(self.agents))
        agent.set_store_weather(self.agents[0].store_permille)
        self.agents.append(agent)
        agent.start()

    def set_weather(self, store_permille: int) -> None:
        """How often calls go wrong."""
        self.journal.faults = self.journal_faults
        for agent in self.agents:
            agent.set_store_weather(store_permille)

    def calm_down(self) -> None:
        """Nothing goes wrong any more."""
        self.journal.faults = JournalFaults(delay_ms=(0, 1), commit_ms=(0, 2))
        self.slow_share = self.break_share = 0.0
        for agent in self.agents:
            agent.set_store_weather(0)

    def _overwriting(self, key: str) -> None:
        if key.startswith(self.segments_prefix) and not self.rot.is_stored:
            self.violated(ViolationError("object-overwritten", f"object-overwritten: {key}"))

    def _deleting(self, key: str) -> None:
        if key in self.lost_live:
            # Whoever is behind still, or the keeper of what it takes for orphans.
            self.oracle.catch_up()
            if not self.oracle.has_named(key):
                text = f"lost-history-deleted: {key}, which acknowledged records lie in"
                self.violated(ViolationError("lost-history-deleted", text))
        try:
            if not self.was_condemned(key):
                self.oracle.deleting(key)
        except ViolationError:
            return
        self.bucket.ever_deleted.add(key)

    # -- the run -----------------------------------------------------------------------------------

    async def live(self) -> None:
        """Begin, suffer, heal, be checked."""
        loop = self.loop
        script = loop.spawn(loop.world, self._script(), name="script")
        loop.spawn(loop.world, self._look_on(), name="oracle")
        await asyncio.wait([script, self._ended], return_when=asyncio.FIRST_COMPLETED)
        self.over = True
        self.oracle.catch_up()
        if self.violation is None and script.done():
            script.result()
        self._check_faults()

    async def _look_on(self) -> None:
        """What an entry breaks ends the run soon, and not only when somebody asks the oracle."""
        while not self.over:
            await asyncio.sleep(LOOK_S)
            with suppress(ViolationError):
                self.oracle.catch_up()
                for agent in self.agents:
                    self._check_offsets(agent)
                # What an older journal has lost may have been that records were moved.
                if not self.is_older:
                    for agent in self.agents:
                        self.oracle.check_wal(agent.device, agent.name)

    def _check_offsets(self, agent: Agent) -> None:
        """What a coordinator keeps in memory of groups' offsets is what the journal says."""
        parts = agent.parts
        if parts is None or parts.groups is None or agent.node.dead or agent.is_astray:
            return
        if agent.replica_position() != self.oracle.position:
            return
        for group_id, loaded in parts.groups._memory.groups.items():
            known = loaded.offsets.known()
            if known is None or loaded.offsets.commits_open:
                continue
            kept = {key: offset.offset for key, offset in known.items()}
            stored = self.oracle.group_offsets(group_id)
            if kept != stored and self.oracle.shard_epoch(group_id) == loaded.shard_epoch:
                changed = sorted(kept.items() ^ stored.items())
                self.history.violate("stale-memory", f"{agent} {group_id}: {changed[:3]}")
            self.history.count("offsets in memory compared")

    async def _script(self) -> None:
        for number in range(min(self.chance.pick((2, 3, 3, 4)), self.profile.agents_max)):
            agent = Agent(self, number)
            self.agents.append(agent)
            agent.start()
        for agent in self.agents:
            await self.within(HEAL_S, agent.ready.wait(), f"{agent} doesn't start")
        # Records that are ordered before have no sums, and nothing proves whose they are.
        await self.within(HEAL_S, self._until_level(FEATURE_LEVEL_MAX), "the level doesn't rise")
        await self._prepare()
        faults = Faults(self)
        loop = self.loop
        tasks = {
            actor: loop.spawn(loop.node(actor.name), self._act(actor), name=actor.name)
            for actor in self.actors
        }
        if not self.calm:
            await faults.run(self.seconds)
        else:
            await asyncio.sleep(self.seconds)
        self.note("heal")
        self.stopping = True
        await faults.heal()
        healed_s = loop.time()
        while any(not task.done() for task in tasks.values()):
            if loop.time() > healed_s + HEAL_S:
                waiting = [actor.name for actor, task in tasks.items() if not task.done()]
                self.history.violate("stuck-client", f"{', '.join(waiting)}\n{loop.dump()}")
            await asyncio.sleep(0.5)
        await self._final_check()
        chance = Chance(self.seed ^ OLDER_STREAM)
        if chance.happens(self.profile.older_share):
            await self._go_back(chance)
        elif self.archives and chance.happens(self.profile.restored_share):
            await restore(self, chance)
            await self._compare_replicas()

    def become(self, cluster_id: str) -> None:
        """Be another cluster, which inherits objects of this one."""
        for agent in self.agents:
            agent.crash()
        self.parent_bucket, self.bucket = self.bucket, WatchedBucket(self.loop)
        self.bucket.on_put = self.bucket.ever_put.add
        self.bucket.on_delete = self._deleting
        self.bucket.on_overwrite = self._overwriting
        self.parent_bucket.on_delete = self._deleting_of_the_parent
        with self.loop.on(self.loop.world):
            self.journal = WatchedJournal(
                random=self.chance.fork(), clock=self.journal_clock, cluster_id=cluster_id
            )

    def _deleting_of_the_parent(self, key: str) -> None:
        self.violated(ViolationError("inherited-deleted", f"inherited-deleted: {key}"))

    async def _produce_to(self, topic: str, name: str, count: int) -> None:
        """Create a topic and write to it alone."""
        self.places.clear()
        admin = Admin(self, f"admin-{topic}")
        create = admin.create(topic, 1, **self.durability())
        await self.within(HEAL_S, self.on_node(admin.name, create), f"create {topic}")
        self.stopping = False
        producer = Producer(self, name, count)
        await self.within(HEAL_S, self.on_node(name, producer.run()), f"produce to {topic}")
        self.stopping = True

    async def _until_level(self, level: int) -> None:
        while self.oracle.feature_level < level:
            await asyncio.sleep(0.05)
            self.oracle.catch_up()

    async def _go_back(self, chance: Chance) -> None:
        """The journal comes back older, as after a failover that lost something, and grows again:
        whoever applied more must notice, and serve nothing of it."""
        position = self.journal.head - 1 - chance.below(10)
        if chance.happens(0.7):
            # Records are acknowledged by what is lost.
            position = self.journal.head
            await self._produce_to("burst", "bursts", 10 + chance.below(30))
            position += chance.below(max(1, self.journal.head - position))
        position = max(1, self.journal.first, min(position, self.journal.head - 1))
        self.is_older = True
        self.oracle.catch_up()
        ahead = [agent for agent in self.agents if agent.replica_position() > position]
        lives = {agent: agent.life for agent in ahead}
        self.note(f"journal comes back as of {position}")
        self.journal.come_back_older(position)
        lost, self.oracle = self.oracle, Oracle(self)
        # Until they notice, agents delete what the lost entries have condemned.
        self.was_condemned = lost.is_condemned
        self.lost_live = lost.live_objects() - self.oracle.live_objects()
        until_s = self.loop.time() + HEAL_S
        while any(agent.life == lives[agent] or not agent.ready.is_set() for agent in ahead):
            if self.loop.time() > until_s:
                self.history.violate("stuck", f"an older journal is not noticed: {ahead}")
            await asyncio.sleep(0.1)
        self.was_condemned = lambda _: False
        await self._grow_again(chance)
        await self._compare_replicas()
        self.history.count("came back older")

    async def _grow_again(self, chance: Chance) -> None:
        """Go on with the journal that is left. What it has lost is nobody's any more, so only a new
        topic's records are followed."""
        for agent in chance.shuffled(self.agents)[: 1 + chance.below(2)]:
            if self.mode == "object" and chance.happens(0.7):
                # Its next life has to make a replica of what there is.
                agent.power_loss(chance)
                agent.start()
        if chance.happens(0.5) and len(self.agents) < AGENTS_MAX:
            self.join()
        for agent in self.agents:
            await self.within(HEAL_S, agent.ready.wait(), f"{agent} doesn't start")
        topic = "grown"
        await self._produce_to(topic, "grows", 10 + chance.below(40))
        # So long that what was archived before is looked at again, and what is due is deleted.
        await asyncio.sleep(chance.uniform(1, 8))
        reader = Watcher(self, "grown-reader")
        for agent in chance.shuffled(self.agents)[:2]:
            await self.within(
                HEAL_S,
                self.on_node("grown-reader", self.read_all(reader, agent, (topic, 0))),
                f"{topic} can't be read from {agent}",
            )
        self.history.count("grew again")

    async def _prepare(self) -> None:
        chance = self.chance
        admin = Admin(self, "admin")
        await self.within(
            HEAL_S, self.on_node("admin0", admin.create("t0", 2, **self.durability())), "create"
        )
        await self.within(
            HEAL_S, self.on_node("admin1", admin.create("t1", 1, **self.durability())), "create"
        )
        if chance.happens(0.3):
            create = admin.create("kept-short", 1, retention_bytes="1500", **self.durability())
            await self.within(HEAL_S, self.on_node("admin3", create), "create")
            self.history.expires("kept-short")
        members = max(chance.pick((0, 2, 3)), self.profile.members_min)
        if members:
            create = admin.create(GROUP_TOPIC, 2, **self.durability())
            await self.within(HEAL_S, self.on_node("admin2", create), "create")
        self.actors = [admin, Watcher(self, "watch0"), Consumer(self, "reads0")]
        self.actors += [
            Producer(self, f"p{number}", self.profile.records_times * (20 + chance.below(60)))
            for number in range(chance.pick((1, 2, 3)))
        ]
        self.actors += [
            Member(self, f"m{number}", "group", GROUP_TOPIC, 2) for number in range(members)
        ]
        if chance.happens(0.5):
            self.actors.append(Consumer(self, "reads1"))
        self.actors += [
            Compactor(self, f"compacts{number}") for number in range(chance.pick((0, 0, 1, 1, 2)))
        ]
        if chance.happens(0.4):
            self.actors.append(StreamWriter(self, "stream", 5 + chance.below(15)))
        await self._prepare_keyed(admin)

    async def _prepare_keyed(self, admin: Admin) -> None:
        # A stream of its own: the other runs stay what they are.
        chance = Chance(self.seed ^ 0x6B65796564)
        if not chance.happens(KEYED_SHARE):
            return
        await self.within(
            HEAL_S, self.on_node("admin4", create_topic(self, admin, chance)), "create"
        )
        self.actors += [
            KeyedProducer(self, f"k{number}", 30 + chance.below(60))
            for number in range(1 + chance.below(2))
        ]
        self.actors += [Cleaner(self, f"cleans{number}") for number in range(1 + chance.below(2))]

    def durability(self) -> dict[str, str]:
        """Configs of a new topic."""
        mode = self.mode if self.mode != "mixed" else self.chance.pick(("object", "wal"))
        return {"penstock_durability": mode} if self.mode == "mixed" else {}

    async def on_node(self, name: str, work: Any) -> Any:
        """Have a client's work done in a process of its own."""
        return await self.loop.spawn(self.loop.node(name), work, name=name)

    async def within(self, seconds: float, work: Any, what: str) -> Any:
        """Wait for it; a run in which it takes longer has failed."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            self.history.violate("stuck", f"{what}\n{self.loop.dump()}")

    async def _act(self, actor: Actor) -> None:
        try:
            await actor.run()  # type: ignore[attr-defined]
        except ViolationError:
            pass
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            self.violated(ViolationError("actor-failed", f"{actor.name}: {text}"))

    # -- the end -----------------------------------------------------------------------------------

    async def _final_check(self) -> None:
        """All agents agree with the journal and serve everything that was acknowledged."""
        for agent in self.agents:
            await self.within(HEAL_S, agent.ready.wait(), f"{agent} doesn't start")
        reader = Watcher(self, "final")
        readers = self.chance.shuffled(self.agents)[:2]
        for place in sorted(self.history.partitions):
            if self.history.is_deleted(place[0]):
                continue
            for agent in readers:
                await self.within(
                    HEAL_S,
                    self.on_node("final", self.read_all(reader, agent, place)),
                    f"{place} can't be read from {agent}",
                )
        self.oracle.catch_up()
        missing = self.oracle.missing_objects()
        if missing:
            self.history.violate("missing-object", f"{missing}")
        self.oracle.check_runs()
        self.oracle.check_counts()
        await self._compare_replicas()

    async def read_all(self, reader: Watcher, agent: Agent, place: Place) -> None:
        """Read a partition whole, and look for all that was acknowledged."""
        client, history = reader.client, self.history
        began_s = self.loop.time()
        start = await self._listed(reader, agent, place, latest=False)
        history.listed(place, start, began_s, latest=False, who=f"final reader at {agent}")
        end = await self._listed(reader, agent, place, latest=True)
        history.listed(place, end, began_s, latest=True, who=f"final reader at {agent}")
        position = start
        seen: dict[int, bytes] = {}
        while position < end:
            began_s = self.loop.time()
            try:
                code, records, following, _, _ = await client.fetch(agent, *place, position)
            except BrokenError:
                await asyncio.sleep(0.2)
                continue
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                history.out_of_range(place, position, began_s, "final reader")
                # Retention goes on.
                start = await self._listed(reader, agent, place, latest=False)
                position = max(position, start)
                continue
            if code or following == position:
                await asyncio.sleep(0.2)
                continue
            history.read(place, position, records, f"final reader at {agent}", following=following)
            seen.update(records)
            position = following
        known = history.partitions[place]
        for offset, value in sorted(known.acked.items()):
            if offset < start or self.oracle.cleaned.is_gone(place, offset):
                continue
            if seen.get(offset) != value:
                history.violate("lost-write", f"{place} {offset} {value!r}: {seen.get(offset)!r}")
        if is_keyed(place):
            come_back = self.oracle.cleaned.come_back(place, seen)
            if come_back:
                history.violate("come-back", f"{place} from {start} on: {come_back}")
        last: dict[bytes, int] = {}
        for _, value in sorted(seen.items()):
            producer, number, _ = value.split(b"/", 2)
            if int(number) <= last.get(producer, -1):
                history.violate("order", f"{place}: {value!r} after {last[producer]}")
            last[producer] = int(number)
        history.count("read whole")

    async def _listed(self, reader: Watcher, agent: Agent, place: Place, *, latest: bool) -> int:
        while True:
            try:
                code, offset = await reader.client.list_offset(agent, *place, latest=latest)
            except BrokenError:
                code, offset = 7, -1
            if not code:
                return offset
            await asyncio.sleep(0.2)

    async def _compare_replicas(self) -> None:
        """Each replica, once it is where the journal is, holds what a replay of it gives."""
        for agent in self.agents:
            # Heartbeats go on, so it is caught at a moment at which it is where the journal is.
            for _ in range(10_000):
                self.oracle.catch_up()
                if agent.replica_position() == self.oracle.position:
                    position, dump = agent.dump()
                    if position == self.oracle.position:
                        break
                await asyncio.sleep(0.001)
            else:
                self.history.violate(
                    "stuck-replica",
                    f"{agent} at {agent.replica_position()} of {self.oracle.position}",
                )
            expected = self.oracle.dump()
            if dump != expected:
                first = next(
                    (
                        (ours, theirs)
                        for ours, theirs in zip(expected, dump, strict=False)
                        if ours != theirs
                    ),
                    (len(expected), len(dump)),
                )
                self.history.violate("replica-differs", f"{agent} at {position}: {first}")
        self.history.count("replicas compared")

    def _check_faults(self) -> None:
        """Exceptions that nobody handled."""
        if self.violation is None and self.loop.faults:
            self.violation = ViolationError("unhandled", "\n".join(self.loop.faults[:4]))

    def close(self) -> None:
        """Let go of files."""
        for agent in self.agents:
            agent.let_go()


def simulate(seed: int, *, verbose: bool = False, scratch: Path | None = None) -> Result:
    """Run one seed."""
    result = Result(seed)
    folder = Path(tempfile.mkdtemp(prefix="penstock-sim-", dir=scratch or scratch_folder()))
    worlds: list[World] = []

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, seed, folder, verbose=verbose)
        worlds.append(world)
        try:
            await world.live()
        finally:
            result.trace = loop.trace
            result.steps = loop.steps
            result.virtual_s = loop.time()

    try:
        # What dead agents would do at their end is no part of the run.
        run(main, Chance(seed ^ 0x5EED), closes_coroutines=False)
        violation = worlds[0].violation
        if violation is not None:
            result.kind, result.detail = violation.kind, str(violation)
    except ViolationError as error:
        result.kind, result.detail = error.kind, str(error)
    except StuckError as error:
        result.kind, result.detail = "stuck", f"stuck: {error}"
    finally:
        for world in worlds:
            world.close()
            result.entries = world.oracle.entries
            result.counts = dict(world.history.counts)
            result.notes = world.notes
        shutil.rmtree(folder, ignore_errors=True)
    return result


def scratch_folder() -> Path | None:
    """Memory, where there is some: replicas are written and thrown away by the thousand."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None
