"""One run: agents, a journal, a bucket, clients, faults, and in the end the whole truth.

Everything that chance decides comes from the seed, so that a run can be had again.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.model.errors import (
    CorruptDataError,
    FencedError,
    JournalOlderError,
    NotFoundError,
    OtherClusterError,
    RetryableError,
)
from penstock.objects.origins import ORIGINS_PREFIX
from penstock.replica.difference import read_difference
from sim.actors import Actor
from sim.admin import Admin
from sim.agent import Agent
from sim.cast import ROLLED_PARTITIONS, ROLLED_TOPIC, prepare, prepare_groups
from sim.chance import Chance
from sim.cleaned import Output
from sim.clocks import Clocks
from sim.committed import Transactions
from sim.committed_reader import check_transactions
from sim.differing import differ
from sim.differing_in_life import all_found, operate
from sim.drills import drill
from sim.ending import compare_replicas, final_check
from sim.faults import Faults
from sim.history import History, Place, ViolationError
from sim.older import go_back
from sim.oracle import Oracle
from sim.parts import DATABASE
from sim.producer import Producer
from sim.profiles import profile_of
from sim.restored import restore
from sim.restored_in_life import restore_in_life
from sim.rot import Rot
from sim.sharer import Shared, check_shares
from sim.tasker import check_tasks
from sim.transactor import prepare_transactions
from sim.watched import WatchedBucket, WatchedJournal
from support.simulated.journal import JournalFaults
from support.simulated.store import SimulatedBucket
from support.simulated.virtual_loop import VirtualClock, VirtualLoop

LOOK_S = 1.0
RECENT_ACKS = 20
WINDOW_STREAM = 0x77696E646F77
OTHER_STREAM = 0x6F74686572
OLDER_STREAM = 0x6F6C646572


class World:
    """See the module. `live` is the run's main coroutine."""

    grace_ms = 2_000
    skew_allowed_ms = 0
    segments_prefix = "segments/"
    heal_s = 90.0
    """Virtual seconds after the last fault until which everything must be done and readable."""

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
        self.transactions = Transactions(self.history)
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
        if not calm:
            self.slow_share = max(self.slow_share, self.profile.slow_share_min)
            self.break_share = max(self.break_share, self.profile.break_share_min)
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
        # A restore finds the archive's end by a listing, which lags.
        self.restore_window_ms += int(1_000 * self.bucket.list_lag_s)
        if self.profile.restore_window_ms >= 0:
            self.restore_window_ms = self.profile.restore_window_ms
        self.bucket.on_put = self.bucket.ever_put.add
        self.bucket.on_delete = self._deleting
        self.bucket.on_overwrite = self._overwriting
        self.clocks = Clocks(self)
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
        self.era = 0
        """Connections of an earlier one carry nothing any more."""
        self.lost_places: set[Place] = set()
        """Partitions that a restore has lost."""
        self.tasks: dict[Actor, asyncio.Task[None]] = {}
        """Of the actors that are there."""
        self.streams_tasks: dict[tuple[str, int], str] = {}
        """Who runs each active task of the streams group."""
        self.shared: Shared | None = None
        """The records of the share group, in runs that have one."""
        self.stopping = False
        self.is_older = False
        """The journal came back older."""
        self.was_condemned: Callable[[str], bool] = lambda _: False
        """By entries that the journal has lost."""
        self.over = False
        self.healed_s = math.inf
        """When all was healed."""
        self.differing: Agent | None = None
        """The agent whose replica is damaged."""
        self.right_from: dict[Agent, int] = {}
        """Agents whose replicas were damaged, and a position at which they were right again."""
        self.keyed_sent: dict[tuple[Place, int, int, int], list[bytes]] = {}
        """Records of compacted topics by producer id, epoch and base sequence of their batch."""
        self.keyed_retention_ms = 0
        """`delete.retention.ms` of the compacted topic."""
        self.cleaning_ms: dict[str, int] = {}
        """By object of a cleaning the journal's time at which that was planned."""
        self.outputs_found: dict[tuple[str, int], Output] = {}
        """By object and position what lay in an output of compaction: a journal that comes back
        is read once more, when the object may be deleted."""

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
        elif isinstance(error, CorruptDataError) and self._has_differed(agent):
            self.history.count("agent ended: its replica differs")
        elif isinstance(error, OtherClusterError) and agent.is_astray:
            self.history.count("agent ended: another cluster's journal")
        elif isinstance(error, FencedError | RetryableError):
            self.history.count(f"agent ended: {type(error).__name__}")
        else:
            text = "".join(traceback.format_exception(error))
            self.violated(ViolationError("agent-died", f"{agent}: {text}"))

    def _has_differed(self, agent: Agent) -> bool:
        """Whether an agent's replica was wrong at the position at which it was found to be."""
        if agent is self.differing:
            self.differing = None
            return True
        found = read_difference(agent.folder / DATABASE)
        return found is not None and found.position <= self.right_from.get(agent, -1)

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
        agent.clock.skew_ms = self.clocks.ahead_ms
        agent.level_max = max(known.level_max for known in self.agents)
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
        if not self.was_condemned(key):
            with suppress(ViolationError):
                self.oracle.deleting(key)

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
            self._check_faults()
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
            epoch = parts.groups._memory.ownership.epoch(group_id)
            if kept != stored and self.oracle.shard_epoch(group_id) == epoch:
                changed = sorted(kept.items() ^ stored.items())
                self.history.violate("stale-memory", f"{agent} {group_id}: {changed[:3]}")
            self.history.count("offsets in memory compared")

    async def _script(self) -> None:
        for number in range(min(self.chance.pick((2, 3, 3, 4)), self.profile.agents_max)):
            agent = Agent(self, number)
            self.agents.append(agent)
            agent.start()
        for agent in self.agents:
            await self.within(self.heal_s, agent.ready.wait(), f"{agent} doesn't start")
        # Records that are ordered before have no sums, and nothing proves whose they are.
        await self.within(
            self.heal_s, self._until_level(self.profile.level), "the level doesn't rise"
        )
        await prepare(self)
        if self.profile.has_transactions:
            await prepare_transactions(self)
        if self.profile.has_groups:
            await prepare_groups(self)
        faults = Faults(self)
        loop = self.loop
        if self.profile.differing_in_life:
            loop.spawn(loop.world, operate(self), name="operator")
        drills = (
            loop.spawn(loop.world, drill(self), name="drills") if self.profile.has_drills else None
        )
        for actor in self.actors:
            self.begin(actor)
        if self.profile.restored_in_life:
            await self._suffer(faults, self.seconds * Chance(self.seed).uniform(0.3, 0.9))
            await restore_in_life(self, faults)
        await self._suffer(faults, self.seconds)
        self.note("heal")
        self.stopping = True
        await faults.heal()
        self.healed_s = loop.time()
        while any(not task.done() for task in self.tasks.values()):
            if loop.time() > self.healed_s + self.heal_s:
                waiting = [actor.name for actor, task in self.tasks.items() if not task.done()]
                self.history.violate("stuck-client", f"{', '.join(waiting)}\n{loop.dump()}")
            await asyncio.sleep(0.5)
        if self.profile.differing_in_life:
            await all_found(self)
        if drills is not None:
            await drills
        await final_check(self)
        if self.profile.has_transactions:
            await check_transactions(self)
        if self.profile.has_groups:
            await check_shares(self, ROLLED_TOPIC)
            await check_tasks(self, ROLLED_TOPIC, ROLLED_PARTITIONS)
        chance = Chance(self.seed ^ OLDER_STREAM)
        if chance.happens(self.profile.older_share):
            await go_back(self, chance)
        elif (
            self.archives and self.restore_window_ms and chance.happens(self.profile.restored_share)
        ):
            await restore(self, chance)
            await compare_replicas(self)
        elif chance.happens(self.profile.differing_share):
            await differ(self, chance)
            await compare_replicas(self)

    async def _suffer(self, faults: Faults, seconds: float) -> None:
        if self.calm:
            await asyncio.sleep(seconds)
        else:
            await faults.run(seconds)

    def begin(self, actor: Actor) -> None:
        """Let a client run, as a process of its own."""
        actor.node = self.loop.node(actor.name)
        self.tasks[actor] = self.loop.spawn(actor.node, self._act(actor), name=actor.name)

    def end(self, actor: Actor) -> None:
        """Its process dies."""
        self.loop.kill(actor.node)
        del self.tasks[actor]

    def has_object(self, key: str) -> bool:
        """Whether an object is there, or where the cluster has inherited it from."""
        if self.parent_bucket is not None and key.startswith(ORIGINS_PREFIX):
            return key.split("/", 2)[2] in self.parent_bucket.objects
        return key in self.bucket.objects

    def become(self, cluster_id: str) -> None:
        """Be another cluster, which inherits objects of this one."""
        for agent in self.agents:
            agent.crash()
        self.parent_bucket = self.bucket
        self.bucket = WatchedBucket(self.loop, list_lag_s=self.parent_bucket.list_lag_s)
        self.bucket.on_put = self.bucket.ever_put.add
        self.bucket.on_delete = self._deleting
        self.bucket.on_overwrite = self._overwriting
        # The parent's agents are gone; what they asked for may still take effect.
        self.parent_bucket.on_put = self.parent_bucket.on_delete = lambda _key: None
        with self.loop.on(self.loop.world):
            self.journal = WatchedJournal(
                random=self.chance.fork(), clock=self.journal_clock, cluster_id=cluster_id
            )

    async def produce_to(self, topic: str, name: str, count: int) -> None:
        """Create a topic and write to it alone."""
        self.places.clear()
        admin = Admin(self, f"admin-{topic}")
        create = admin.create(topic, 1, **self.durability())
        await self.within(self.heal_s, self.on_node(admin.name, create), f"create {topic}")
        self.stopping = False
        producer = Producer(self, name, count)
        await self.within(self.heal_s, self.on_node(name, producer.run()), f"produce to {topic}")
        self.stopping = True

    async def _until_level(self, level: int) -> None:
        while self.oracle.feature_level < level:
            await asyncio.sleep(0.05)
            self.oracle.catch_up()

    def durability(self) -> dict[str, str]:
        """Configs of a new topic."""
        return self.durability_of(self.chance)

    def durability_of(self, chance: Chance) -> dict[str, str]:
        """The same, drawn from another stream."""
        mode = self.mode if self.mode != "mixed" else chance.pick(("object", "wal"))
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

    def _check_faults(self) -> None:
        """Exceptions that nothing handled."""
        self.loop.note_forgotten()
        if self.loop.faults:
            self.violated(ViolationError("unhandled", "\n".join(self.loop.faults[:4])))

    def close(self) -> None:
        """Let go of files."""
        for agent in self.agents:
            agent.let_go()
