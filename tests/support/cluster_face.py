"""Agents of a simulated cluster with everything that clients meet but bytes: order, view, shards,
groups, membership and the Kafka handlers, all real, on one simulated journal and virtual time.

A log's bytes have tests of their own; here offsets come from the view, which the journal moves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kio.serial import entity_reader

from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.settings import GroupSettings
from penstock.groups.shards import ShardKeeper, ShardSettings
from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.nodes import ClusterNodes
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.wire import schema
from penstock.log.fetch.waiters import Waiters
from penstock.membership.membership import Membership, MembershipSettings
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey, partition_key
from penstock.model.steps import at_once
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.protocol import AgentIdentity
from penstock.ports.journal import Journal, JournalRow
from penstock.replica import Replica
from penstock.state.answers import AnyAnswer
from penstock.state.apply.machine import LogMachine
from penstock.state.cluster_tables import GROUP_SHARDS
from penstock.state.commands import AnyCommand, CommitRuns, CreateTopic, RunCommit
from penstock.state.order_types import AppliedEntries
from penstock.state.orders import begin_cluster_order
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView, Topic
from support.replies import body_of
from support.replies import encoded as encoded_answer
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop
from support.waiting import until

T = TypeVar("T")
QUICK_GROUPS = GroupSettings(initial_rebalance_delay_ms=0, session_timeout_ms_min=1_000)


class SlowRows:
    """A journal whose rows arrive late at one agent, while its head is read at once.

    A row takes up to twice `lag_s`: it may have to wait for the read behind the present one.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.lag_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def read(self, after: int, limit: int) -> list[JournalRow]:
        rows = await self._journal.read(after, limit)
        if self.lag_s:
            await asyncio.sleep(self.lag_s)
        return rows


class ReadBatches(NamedTuple):
    """What a read of the log gives."""

    views: list[bytes]
    length: int
    end_offset: int

    @property
    def parts(self) -> list[bytes]:
        return self.views


class NoSink:
    """A connection whose peer takes everything."""

    def unsent_bytes(self) -> int:
        return 0

    def reply_room_bytes(self) -> int:
        return 1 << 20

    def is_asked_more(self) -> bool:
        return False

    def end_when_answered(self, error: PenstockError) -> None:
        raise error

    def takes_files(self) -> bool:
        return False

    def reserve_answer(self, byte_count: int) -> None:
        pass


class ViewLog:
    """Offsets as the view has them; records that nobody reads."""

    append_bytes_max = 1 << 20
    loads_max = 8

    def __init__(self, view: StateView) -> None:
        self._view = view
        self.waiters = Waiters()

    def high_watermark(self, key: PartitionKey) -> int:
        head = self._view.head(key)
        assert head is not None
        return head.next_offset

    last_stable_offset = high_watermark

    def log_start(self, key: PartitionKey) -> int:
        head = self._view.head(key)
        assert head is not None
        return head.log_start

    def read(self, key: PartitionKey, offset: int, limit: int, *, may_load: bool) -> ReadBatches:
        return ReadBatches([b"bytes of records"], 16, self.high_watermark(key))

    read_parts = read

    async def let_queries_find(self) -> None:
        """Nothing is behind."""

    def partition_bytes(self, keys: Any) -> dict[PartitionKey, int]:
        return dict.fromkeys(keys, 100)


class ClusterAgent:
    """One agent; its parts run on its node, which tests pause and kill."""

    def __init__(
        self,
        world: World,
        agent_id: int,
        *,
        zone: str = "",
        skew_ms: int = 0,
        level_max: int = 2,
        shards: ShardSettings | None = None,
        membership: MembershipSettings | None = None,
    ) -> None:
        self.world = world
        self.agent_id = agent_id
        self.zone = zone
        self.level_max = level_max
        self.clock = VirtualClock(world.loop, skew_ms=skew_ms)
        self.node = world.loop.node(f"agent {agent_id}")
        self.journal = SlowRows(world.journal.connect())
        self.fenced: list[PenstockError] = []
        self.stopped: PenstockError | None = None
        self.shard_settings = shards or ShardSettings()
        self.membership_settings = membership or MembershipSettings()
        self.dead = False
        self.serves = False
        """Whether it has begun to serve clients."""
        self.closed = False
        self.log: ViewLog | None = None
        self.alone: set[tuple[int, int]] = set()
        """Other agents and epochs that say here that the journal is away from them alone."""
        self.connection: ConnectionState | None = None
        """Of all requests, where a test sets it; else each has a new one."""

    async def start(self) -> ClusterAgent:
        await self.on_node(self._start())
        return self

    async def _start(self) -> None:
        world = self.world
        machine = LogMachine()
        world.count += 1
        path = world.folder / f"replica-{self.agent_id}-{world.count}.sqlite"
        replica = Replica.open(path, machine, fsync=False, keeps_journal=False)
        self.order = await begin_cluster_order(
            self.journal,
            replica,
            machine,
            identity=AgentIdentity(
                agent_id=self.agent_id,
                endpoint=f"host{self.agent_id}:9092",
                labels={"zone": self.zone} if self.zone else {},
                level_max=self.level_max,
            ),
            cluster_id="cluster",
            clock=self.clock,
            random=SeededRandom(self.agent_id),
            settings=ClusterOrderSettings(),
        )
        self.queries = Queries(path)
        self.view = StateView.load(self.queries)
        self.shards = ShardKeeper(
            me=self.agent_id,
            order=self.order,
            view=self.view,
            clock=self.clock,
            shows_answers=lambda: self.order.shows_answers,
            quiet=lambda: self.membership.quiet,
            settings=self.shard_settings,
        )
        self.groups = GroupCoordinator(
            committer=self.order,
            queries=self.queries,
            view=self.view,
            clock=self.clock,
            random=SeededRandom(1000 + self.agent_id),
            settings=QUICK_GROUPS,
            ownership=self.shards,
            shows_answers=lambda: self.order.shows_answers,
        )
        await self.order.start(on_applied=self._on_applied, on_stopped=self._on_stopped)
        self.membership = Membership(
            me=self.agent_id,
            epoch=self.order.epoch,
            order=self.order,
            view=self.view,
            clock=self.clock,
            on_fenced=self.fenced.append,
            is_alone=lambda agent, epoch: (agent, epoch) in self.alone,
            settings=self.membership_settings,
        )
        self.shards.start(self.groups)
        self.membership.start()
        log: Any = ViewLog(self.view)
        self.log = log
        self.broker = Broker(
            view=self.view,
            committer=self.order,
            log=log,
            groups=self.groups,
            clock=self.clock,
            random=SeededRandom(2000 + self.agent_id),
            cluster_id="cluster",
            node_id=self.agent_id,
            advertised_host=f"host{self.agent_id}",
            advertised_port=9092,
            settings=KafkaSettings(auto_create_topics=False, confirm_timeout_s=2.0),
            heads=self.order,
            cluster=ClusterNodes(
                me=self.agent_id, view=self.view, coordinator_of=self.shards.coordinator
            ),
        )
        self.serves = True

    def _on_applied(self, applied: AppliedEntries) -> None:
        for entry in applied:
            self.view.apply(entry.outcome.changes)
        self.shards.follow()
        if self.log is not None:
            self.log.waiters.notify_all()

    def _on_stopped(self, error: PenstockError) -> None:
        self.stopped = error

    async def close(self) -> None:
        """In order, as at the end of a process."""
        self.dead = True
        if not self.closed:
            self.closed = True
            await self.on_node(self._close())

    async def _close(self) -> None:
        await self.membership.close()
        await self.shards.close()
        await self.groups.close()
        await self.order.close()
        self.queries.close()

    def kill(self) -> None:
        """SIGKILL, as far as others can tell: it is stopped until the world ends."""
        self.dead = True
        self.pause()

    def pause(self) -> None:
        """SIGSTOP."""
        self.world.loop.pause(self.node)

    def resume(self) -> None:
        """SIGCONT."""
        self.world.loop.resume(self.node)

    # -- what clients do -------------------------------------------------------------------------

    async def on_node(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in this agent's process."""
        return await self.world.loop.spawn(self.node, work)

    async def commit(self, *commands: AnyCommand) -> list[AnyAnswer]:
        return await self.on_node(self.order.commit(commands))

    async def topic(self, name: str, partitions: int = 4) -> Topic:
        """Create a topic."""
        # The leaders of its partitions follow from it.
        self.world.topic_count += 1
        topic_id = b"topic %10d" % self.world.topic_count
        await self.commit(CreateTopic(name=name, topic_id=topic_id, partitions=partitions))
        topic = self.view.topic(name)
        assert topic is not None
        return topic

    async def produce(self, name: str, partition: int, count: int) -> None:
        """Commit a batch of `count` records, somewhere."""
        topic = self.view.topic(name)
        assert topic is not None
        self.world.count += 1
        run = RunCommit(
            partition_key=partition_key(topic.topic_key, partition),
            position=0,
            batches=[100, count, 0, -1, -1, -1],
        )
        key = f"{self.agent_id}/{self.world.count}"
        await self.commit(CommitRuns(runs=[run], object_key=key, object_bytes=100, raw=True))

    async def call(
        self, api: str, version: int, *, client_id: str = "client", **fields: Any
    ) -> Any:
        """Send one request through its bytes and back."""
        return await self.on_node(self._call(api, version, client_id, fields))

    async def _call(self, api: str, version: int, client_id: str, fields: dict[str, Any]) -> Any:
        entry = BY_MODULE[api]
        context = RequestContext(
            entry.key,
            version,
            1,
            client_id,
            "127.0.0.1",
            self.broker,
            self.connection or ConnectionState(1, NoSink()),
        )
        request = schema.build(
            getattr(schema.request_types(api, version), f"{entry.name}Request"), **fields
        )
        body = memoryview(schema.encode_request(request))
        handler = entry.load()
        if entry.raw:
            reply = handler.serve(context, body)
            if asyncio.isfuture(reply):
                reply = await reply
            encoded = body_of(reply)
        else:
            decoded = at_once(schema.taken_steps(api, version, body))
            encoded = await encoded_answer(await handler.handle(context, decoded))
        response_type = getattr(schema.response_types(api, version), f"{entry.name}Response")
        response, size = entity_reader(response_type)(encoded, 0)
        assert size == len(encoded)
        return response

    def shards_of(self, agent_id: int) -> int:
        """Count the shards of an agent, as this one knows it."""
        return sum(self.view.shard_owner(shard) == agent_id for shard in range(GROUP_SHARDS))

    def part(self, api: str, version: int, kind: str, /, **fields: Any) -> Any:
        """A nested entity of a request."""
        return schema.build(getattr(schema.request_types(api, version), kind), **fields)


class World:
    """A journal, agents on it, and virtual time."""

    def __init__(self, loop: VirtualLoop, folder: Path, seed: int) -> None:
        self.loop = loop
        self.folder = folder
        self.count = 0
        self.topic_count = 0
        # On a node of its own, so that the journal goes on whatever becomes of agents.
        self.journal = SimulatedJournal(
            random=SeededRandom(seed),
            clock=VirtualClock(loop),
            faults=JournalFaults(delay_ms=(1, 3), commit_ms=(0, 2)),
        )
        self.agents: list[ClusterAgent] = []

    async def agent(self, agent_id: int, **settings: Any) -> ClusterAgent:
        """One more, started."""
        agent = ClusterAgent(self, agent_id, **settings)
        self.agents.append(agent)
        return await agent.start()

    async def cluster(self, *agent_ids: int, **settings: Any) -> list[ClusterAgent]:
        """Several, with the cluster's feature level on and every shard owned."""
        agents = [await self.agent(agent_id, **settings) for agent_id in agent_ids]
        await until(
            lambda: all(
                agent.view.shard_owner(shard) is not None
                for agent in agents
                for shard in range(GROUP_SHARDS)
            )
        )
        return agents


@contextlib.asynccontextmanager
async def opened_world(loop: VirtualLoop, folder: Path, seed: int) -> AsyncIterator[World]:
    """A fresh world, whose agents are closed at the end."""
    world = World(loop, folder, seed)
    try:
        yield world
    finally:
        world.journal.come_back()
        for agent in world.agents:
            agent.resume()
            await agent.close()
