"""Agents of a simulated cluster as clients meet them, assembled as a server does it, on one
simulated journal, one scripted store and virtual time.

No client connects: a test hands a request to the agent's broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from kio.serial import entity_reader

from penstock.agent.assembly import assemble
from penstock.agent.cluster import ClusterFoundation
from penstock.agent.settings import AgentSettings, ClusterSettings
from penstock.groups.settings import GroupSettings
from penstock.groups.shards import ShardSettings
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.wire import schema
from penstock.log.append.plan import PartitionAppend
from penstock.log.archive import ArchiveSettings
from penstock.membership.membership import MembershipSettings
from penstock.model.errors import FencedError, PenstockError, RetryableError
from penstock.model.ids import partition_key
from penstock.model.steps import at_once
from penstock.order.protocol import AgentIdentity
from penstock.peers.codec import decode_blocks
from penstock.peers.receive import Frame
from penstock.peers.serve import serve_blocks
from penstock.peers.standing import STANDING_PATH, decode_asked, serve_standing
from penstock.ports.journal import Journal, JournalRow
from penstock.records.batch import check_batch
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.answers import AnyAnswer
from penstock.state.cluster_tables import GROUP_SHARDS
from penstock.state.commands import AnyCommand, CreateTopic
from penstock.state.read.view import Topic
from support.agent_ports import cluster_limits, cluster_ports
from support.batches import ANY
from support.cluster_rig import ScriptedStore
from support.peer_answers import read_answer
from support.replies import body_of
from support.replies import encoded as encoded_answer
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import START_MS, VirtualClock, VirtualLoop
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

    def authenticated(self) -> None:
        pass

    def takes_files(self) -> bool:
        return False

    def reserve_answer(self, byte_count: int) -> None:
        pass


class PeerCalls:
    """Calls between the agents of a world, in the bytes that go over HTTP. Implements `Calls`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def call(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        on_frame: Callable[[Frame], None],
        payload_bytes_max: list[int],
    ) -> None:
        """See `Calls`."""
        asked = self._world.at(address)
        if asked is None or asked.dead or asked.node.paused or not asked.serves:
            raise RetryableError("call", address, "there is no answer")
        if path == STANDING_PATH:
            frames = serve_standing(asked.company.standing_of(decode_asked(body)))
        else:
            ranges = decode_blocks(body, block_bytes=cluster_limits().block_bytes)
            frames = serve_blocks(asked.foundation.own_blocks, ranges)
        data = b"".join([bytes(part) async for part in frames])
        read_answer(data, on_frame, payload_bytes_max)


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
        self._connection = world.journal.connect()
        self.journal = SlowRows(self._connection)
        self.fatal: list[BaseException] = []
        """What would have ended its process."""
        self.shard_settings = shards or ShardSettings()
        self.membership_settings = membership or MembershipSettings()
        self.dead = False
        self.serves = False
        """Whether it has begun to serve clients."""
        self.closed = False
        self.connection: ConnectionState | None = None
        """Of all requests, where a test sets it; else each has a new one."""
        self._closes: list[Callable[[], None]] = []

    async def start(self) -> ClusterAgent:
        await self.on_node(self._start())
        return self

    async def _start(self) -> None:
        world = self.world
        world.count += 1
        folder = world.folder / f"agent-{self.agent_id}-{world.count}"
        folder.mkdir()
        ports = cluster_ports(
            self.journal,
            cluster_id=world.journal.cluster_id,
            replica=folder / "replica.sqlite",
            store=world.store,
            clock=self.clock,
            random=SeededRandom(self.agent_id),
            fatal=self.fatal,
            closes=self._closes,
            calls=PeerCalls(world),
        )
        self.agent = await assemble(self._settings(), ports)
        foundation, company = self.agent.foundation, self.agent.company
        assert isinstance(foundation, ClusterFoundation)
        assert company is not None
        self.foundation, self.company = foundation, company
        self.order, self.view, self.log = foundation.order, foundation.view, foundation.log
        self.shards, self.groups, self.broker = company.shards, self.agent.groups, self.agent.broker
        await self.agent.start()
        assert company.membership is not None
        self.membership = company.membership
        self.serves = True

    def _settings(self) -> AgentSettings:
        host = f"host{self.agent_id}"
        return AgentSettings(
            identity=AgentIdentity(
                agent_id=self.agent_id,
                endpoint=f"{host}:9092",
                peer=f"{host}:9093",
                labels={"zone": self.zone} if self.zone else {},
                level_max=self.level_max,
            ),
            advertised_host=host,
            advertised_port=9092,
            log=cluster_limits(),
            groups=QUICK_GROUPS,
            kafka=KafkaSettings(auto_create_topics=False, confirm_timeout_s=2.0),
            retention_check_s=60.0,
            membership=self.membership_settings,
            shards=self.shard_settings,
            cluster=ClusterSettings(archive=ArchiveSettings(), restore_window_ms=0),
        )

    @property
    def fenced(self) -> list[BaseException]:
        """What it was told of the end of its epoch."""
        return [error for error in self.fatal if isinstance(error, FencedError)]

    async def close(self) -> None:
        """In order, as at the end of a process."""
        self.dead = True
        if not self.closed:
            self.closed = True
            await self.on_node(self._close())

    async def _close(self) -> None:
        await self.groups.close()
        await self.agent.drain(0.5)
        while self._closes:
            self._closes.pop()()

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

    def cut_from_journal(self) -> None:
        """Have the journal be away from this agent alone."""
        self._connection.cut = True

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
        """Append a batch of `count` records."""
        topic = self.view.topic(name)
        assert topic is not None
        key = partition_key(topic.topic_key, partition)
        records = [
            Record(offset_delta=number, timestamp=START_MS, key=None, value=b"v", headers=())
            for number in range(count)
        ]
        batch = bytearray(encode_batch(records, codec="none"))
        append = PartitionAppend(key, check_batch(memoryview(batch), ANY, START_MS))
        await self.on_node(self._append(append))

    async def _append(self, append: PartitionAppend) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.log.append([append], timeout_ms=5_000, done=done)
        await answer

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
        self.store = ScriptedStore(loop)
        self.agents: list[ClusterAgent] = []

    def at(self, address: str) -> ClusterAgent | None:
        """Return the last life of the agent at a peers' address."""
        for agent in reversed(self.agents):
            if address == f"host{agent.agent_id}:9093":
                return agent
        return None

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
