"""Clients' connections to agents: requests go as bytes to the real connections and handlers, over a
network that fails.

A connection keeps its requests in order, as TCP does. When it breaks, whatever was under way fails
for the client; of that, a first part still arrives and is carried out.
"""

from __future__ import annotations

import asyncio
import struct
import traceback
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.kafka.errors import ErrorCode
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.wire import schema
from sim.history import ViolationError
from sim.identity import are_batches, identity_of, labels_of
from sim.sockets import SimulatedTransport, SlowTransport
from sim.streams import ROOMS, Way
from support import raw_wire

if TYPE_CHECKING:
    from penstock.kafka.net.server import KafkaServer
    from sim.agent import Agent
    from sim.chance import Chance
    from support.simulated.virtual_loop import VirtualLoop

PATIENCE_S = 4.0
HEALED_S = 2 * PATIENCE_S + 1
"""After this time nothing that was slow before all was healed is under way any more."""
VERSIONS = {
    "list_offsets": 7,
    "offset_fetch": 7,
    "offset_commit": 8,
    "find_coordinator": 3,
    "create_topics": 5,
    "delete_topics": 5,
    "delete_records": 2,
    "create_partitions": 2,
    "incremental_alter_configs": 1,
    "leave_group": 4,
    "heartbeat": 4,
    "join_group": 7,
    "sync_group": 5,
    "init_producer_id": 4,
    "metadata": 9,
    "offset_for_leader_epoch": 3,
}


class BrokenError(Exception):
    """The connection broke, or there was no answer in time: the outcome is unknown."""


class KafkaError(Exception):
    """The agent answered with an error."""

    def __init__(self, code: int, operation: str) -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{operation}: {self.code.name}")


class Connection:
    """One client's connection to one agent's present life."""

    def __init__(self, client: Client, agent: Agent) -> None:
        self._client = client
        self._loop = client.loop
        self._chance = client.chance
        self._agent = agent
        self._life = agent.life
        self._era = client.world.era
        self.broken = False
        self._sent = 0
        self._arrives_up_to = 1 << 60
        self._arrival_s = self._reply_s = 0.0
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._unanswered: deque[int] = deque()
        """Correlation ids in the order of the requests."""
        self._transport: SimulatedTransport | None = None

    @property
    def usable(self) -> bool:
        """Whether a request may be sent: as far as the client knows."""
        return not self.broken

    async def exchange(self, name: str, version: int, body: bytes) -> memoryview:
        """Have a request carried out at the agent; its answer's bytes, without the header.

        Raises:
            BrokenError: the connection broke, before or after it was carried out.
        """
        if self.broken:
            raise BrokenError(name)
        loop, chance = self._loop, self._chance
        number = self._sent
        self._sent += 1
        api = BY_MODULE[name]
        flexible = version >= api.flexible_from
        client_id = self._client.name.encode()
        head = struct.pack(">hhih", api.key, version, number, len(client_id)) + client_id
        frame = head + (b"\0" if flexible else b"") + body
        reply = self._waiting[number] = loop.create_future()
        self._unanswered.append(number)
        world = loop.context_of(loop.world)
        self._send(number, len(frame).to_bytes(4, "big") + frame)
        if chance.happens(self._client.world.break_share):
            loop.call_later(self._breaks_after_s(), self.break_off, context=world)
        timer = loop.call_later(PATIENCE_S, self._give_up, name, loop.time())
        try:
            answer: memoryview = await reply
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        return answer[5 if flexible else 4 :]

    def break_off(self) -> None:
        """Lose the connection."""
        if self.broken:
            return
        self.broken = True
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(BrokenError("the connection broke"))
                reply.exception()
        self._lose()

    def _give_up(self, name: str, sent_s: float) -> None:
        """The reply has not come in time."""
        world, agent = self._client.world, self._agent
        is_there = agent.life == self._life and agent.broker is not None and not agent.node.paused
        if not self.broken and is_there and sent_s > world.healed_s + HEALED_S:
            what = f"unanswered: {name} of {self._client.name} by {agent} for {PATIENCE_S:g} s"
            world.violated(ViolationError("unanswered", what))
        self.break_off()

    # -- the network -------------------------------------------------------------------------------

    def _breaks_after_s(self) -> float:
        return self._chance.uniform(0, 0.3)

    def _send(self, number: int, data: bytes) -> None:
        loop = self._loop
        self._arrival_s = max(self._arrival_s + 1e-6, loop.time() + self._client.delay())
        world = loop.context_of(loop.world)
        loop.call_at(self._arrival_s, self._arrive, number, data, context=world)

    def _lose(self) -> None:
        """Carry no more than a first part of what is under way."""
        self._arrives_up_to = self._chance.below(self._sent + 1)
        # After what still arrives.
        loop = self._loop
        when_s = max(self._arrival_s, loop.time()) + 1e-5
        loop.call_at(when_s, self._tell_loss, context=loop.context_of(loop.world))

    def _tell_loss(self) -> None:
        if self._transport is not None:
            context = self._loop.context_of(self._agent.node)
            self._loop.call_soon(self._transport.lose, context=context)

    def _arrive(self, number: int, data: bytes) -> None:
        server = self._server()
        if server is None:
            self.break_off()
        elif not (self.broken and number >= self._arrives_up_to):
            context = self._loop.context_of(self._agent.node)
            self._loop.call_soon(self._receive, server, data, context=context)

    def _server(self) -> KafkaServer | None:
        """The agent's, in the life that this connection is to, if the network lets it through."""
        agent = self._agent
        is_gone = agent.life != self._life or agent.broker is None or agent.parts is None
        if is_gone or self._client.cut_from(agent):
            return None
        assert agent.parts is not None
        return agent.parts.kafka

    # -- the agent's process -----------------------------------------------------------------------

    def _receive(self, server: KafkaServer, data: bytes) -> None:
        if self._transport is None:
            self._transport = self._open(server)
        self._transport.receive(data)

    def _open(self, server: KafkaServer) -> SimulatedTransport:
        return SimulatedTransport(
            server, self._chance.fork(), on_frame=self._reply, on_closed=self._closed
        )

    def _closed(self, bug: BaseException | None) -> None:
        """The agent has closed it, as it does when a handler raises."""
        self._note_closed(bug)
        loop = self._loop
        loop.call_soon(self.break_off, context=loop.context_of(loop.world))

    def _note_closed(self, bug: BaseException | None) -> None:
        world = self._client.world
        if bug is not None:
            text = "".join(traceback.format_exception(bug))
            world.violated(ViolationError("handler-failed", f"handler-failed: {text}"))
        world.history.count("connection ended by the agent")

    def _reply(self, frame: bytes) -> None:
        loop = self._loop
        self._reply_s = max(self._reply_s + 1e-6, loop.time() + self._client.delay())
        loop.call_at(self._reply_s, self._answer, frame, context=loop.context_of(loop.world))

    # -- the client's process ----------------------------------------------------------------------

    def _answer(self, frame: bytes) -> None:
        world = self._client.world
        if self._client.cut_from(self._agent) or self._era != world.era:
            self.break_off()
        if self.broken:
            return
        number, expected = int.from_bytes(frame[:4], "big"), self._unanswered.popleft()
        if number != expected:
            what = f"reply-order: {self._client.name} has {self._agent}'s reply to request {number}"
            world.violated(ViolationError("reply-order", f"{what} before that to {expected}"))
        reply = self._waiting.get(number)
        if reply is not None and not reply.done():
            reply.set_result(memoryview(frame))


class StreamConnection(Connection):
    """A connection whose bytes go both ways as streams: see `sim.sockets`."""

    _transport: SlowTransport | None

    def __init__(self, client: Client, agent: Agent) -> None:
        super().__init__(client, agent)
        chance = client.chance.fork()
        self._is_reset = chance.happens(0.5)
        """How the client ends it."""
        self._forth = Way(
            client.loop,
            chance.fork(),
            delay=client.delay,
            arrived=self._arrived,
            ended=self._forth_ended,
        )
        self._back = Way(
            client.loop,
            chance.fork(),
            delay=client.delay,
            arrived=self._take,
            ended=self.break_off,
            left=self._back_left,
            capacity_bytes=chance.pick(ROOMS),
        )
        self._taken = bytearray()

    def _breaks_after_s(self) -> float:
        # Often while the bytes of the request are under way.
        return self._chance.uniform(0, 0.004 if self._chance.happens(0.5) else 0.3)

    def _send(self, number: int, data: bytes) -> None:
        self._forth.send(data)

    def _lose(self) -> None:
        self._forth.cut()

    def _arrived(self, piece: bytes) -> None:
        server = self._server()
        if server is None:
            self.break_off()
        else:
            context = self._loop.context_of(self._agent.node)
            self._loop.call_soon(self._receive, server, piece, context=context)

    def _forth_ended(self) -> None:
        transport = self._transport
        if transport is None:
            return
        context = self._loop.context_of(self._agent.node)
        if self._is_reset:
            self._loop.call_soon(transport.lose, ConnectionResetError(), context=context)
        else:
            self._loop.call_soon(transport.end, context=context)

    def _back_left(self) -> None:
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size():
            context = self._loop.context_of(self._agent.node)
            self._loop.call_soon(transport.make_room, context=context)

    def _open(self, server: KafkaServer) -> SlowTransport:
        self._client.world.history.count("stream opened")
        return SlowTransport(
            server, self._chance.fork(), back=self._back, on_closed=self._note_closed
        )

    def _take(self, piece: bytes) -> None:
        """Read what has come of replies."""
        taken = self._taken
        taken += piece
        while len(taken) >= 4:
            end = 4 + int.from_bytes(taken[:4], "big")
            if len(taken) < end:
                return
            frame = bytes(taken[4:end])
            del taken[:end]
            self._answer(frame)


class Client:
    """One client process: a name, a stream of chance, and a connection to each agent."""

    def __init__(self, world: Any, name: str, chance: Chance) -> None:
        self.world = world
        self.name = name
        self.chance = chance
        self.loop: VirtualLoop = world.loop
        self._connections: dict[int, Connection] = {}

    def delay(self) -> float:
        """One way of the network, in seconds."""
        if self.chance.happens(self.world.slow_share):
            return self.chance.uniform(0.05, 2 * PATIENCE_S)
        return self.chance.uniform(0.0003, 0.003)

    def cut_from(self, agent: Agent) -> bool:
        """Whether nothing gets through to that agent."""
        return agent.cut_from_clients

    def connection(self, agent: Agent) -> Connection:
        """A usable one."""
        found = self._connections.get(agent.number)
        if found is None or not found.usable:
            kind = StreamConnection if self.world.profile.has_streams else Connection
            found = self._connections[agent.number] = kind(self, agent)
        return found

    async def request(self, agent: Agent, name: str, fill: Callable[[Any], Any]) -> Any:
        """Any API but Produce and Fetch. `fill(types)` makes the request's entity."""
        version = VERSIONS[name]
        body = schema.encode_request(fill(schema.request_types(name, version)))
        answer = await self.connection(agent).exchange(name, version, body)
        return schema.decode_response(name, version, answer)

    async def produce(
        self, agent: Agent, topic: str, partition: int, batch: bytes, timeout_ms: int = 3000
    ) -> tuple[int, int]:
        """One batch: (error code, base offset)."""
        body = raw_wire.produce_request(topic, partition, batch, timeout_ms=timeout_ms)
        version = raw_wire.PRODUCE_VERSION
        return raw_wire.produce_answer(
            await self.connection(agent).exchange("produce", version, body)
        )

    async def fetch(
        self, agent: Agent, topic: str, partition: int, offset: int, wait_ms: int = 300
    ) -> tuple[int, list[tuple[int, bytes]], int, int, int]:
        """(error code, [(offset, value)], next offset, high watermark, log start)."""
        body = raw_wire.fetch_request(topic, partition, offset, wait_ms=wait_ms, bytes_max=20_000)
        answer = raw_wire.fetch_answer(
            await self.connection(agent).exchange("fetch", raw_wire.FETCH_VERSION, body), partition
        )
        data = answer.batches
        if not are_batches(bytes(data)):
            # As a client with `check.crcs`: no other need ever see a flipped bit, either.
            what = f"{topic}-{partition} from {offset} at {agent}"
            self.world.history.violate("wrong-bytes", what)
        for base, epoch in labels_of(bytes(data)):
            self.world.history.labelled((topic, partition), base, epoch)
        records, following = raw_wire.read_batches(data, offset)
        found = [(place, identity_of(record)) for place, record in records]
        return answer.code, found, following, answer.high_watermark, answer.log_start

    # -- small APIs ------------------------------------------------------------------------------

    async def list_offset(
        self, agent: Agent, topic: str, partition: int, *, latest: bool
    ) -> tuple[int, int]:
        """(error code, offset)."""
        answer = await self.request(
            agent,
            "list_offsets",
            lambda types: schema.build(
                types.ListOffsetsRequest,
                replica_id=-1,
                isolation_level=0,
                topics=(
                    schema.build(
                        types.ListOffsetsTopic,
                        name=topic,
                        partitions=(
                            schema.build(
                                types.ListOffsetsPartition,
                                partition_index=partition,
                                timestamp=-1 if latest else -2,
                            ),
                        ),
                    ),
                ),
            ),
        )
        row = answer.topics[0].partitions[0]
        return int(row.error_code), row.offset

    async def epoch_end(
        self, agent: Agent, topic: str, partition: int, epoch: int
    ) -> tuple[int, tuple[int, int]]:
        """(error code, (leader epoch, offset at which it ended))."""
        answer = await self.request(
            agent,
            "offset_for_leader_epoch",
            lambda types: schema.build(
                types.OffsetForLeaderEpochRequest,
                replica_id=-1,
                topics=(
                    schema.build(
                        types.OffsetForLeaderTopic,
                        topic=topic,
                        partitions=(
                            schema.build(
                                types.OffsetForLeaderPartition,
                                partition=partition,
                                current_leader_epoch=-1,
                                leader_epoch=epoch,
                            ),
                        ),
                    ),
                ),
            ),
        )
        row = answer.topics[0].partitions[0]
        return int(row.error_code), (row.leader_epoch, row.end_offset)

    async def producer_id(self, agent: Agent) -> tuple[int, int, int]:
        """(error code, producer id, epoch)."""
        answer = await self.request(
            agent,
            "init_producer_id",
            lambda types: schema.build(
                types.InitProducerIdRequest,
                transactional_id=None,
                transaction_timeout=timedelta(0),
                producer_id=-1,
            ),
        )
        return int(answer.error_code), answer.producer_id, answer.producer_epoch

    async def create_topic(
        self, agent: Agent, name: str, partitions: int, configs: dict[str, str]
    ) -> int:
        """Its error code."""
        answer = await self.request(
            agent,
            "create_topics",
            lambda types: schema.build(
                types.CreateTopicsRequest,
                topics=(
                    schema.build(
                        types.CreatableTopic,
                        name=name,
                        num_partitions=partitions,
                        replication_factor=-1,
                        assignments=(),
                        configs=tuple(
                            schema.build(types.CreatableTopicConfig, name=key, value=value)
                            for key, value in sorted(configs.items())
                        ),
                    ),
                ),
                timeout=timedelta(seconds=3),
                validate_only=False,
            ),
        )
        return int(answer.topics[0].error_code)

    async def delete_topic(self, agent: Agent, name: str) -> int:
        """Its error code."""
        answer = await self.request(
            agent,
            "delete_topics",
            lambda types: schema.build(
                types.DeleteTopicsRequest, topic_names=(name,), timeout=timedelta(seconds=3)
            ),
        )
        return int(answer.responses[0].error_code)

    async def create_partitions(self, agent: Agent, name: str, count: int) -> int:
        """Its error code."""
        answer = await self.request(
            agent,
            "create_partitions",
            lambda types: schema.build(
                types.CreatePartitionsRequest,
                topics=(
                    schema.build(
                        types.CreatePartitionsTopic, name=name, count=count, assignments=None
                    ),
                ),
                timeout=timedelta(seconds=3),
                validate_only=False,
            ),
        )
        return int(answer.results[0].error_code)

    async def delete_records(
        self, agent: Agent, name: str, partition: int, offset: int
    ) -> tuple[int, int]:
        """(error code, log start now)."""
        answer = await self.request(
            agent,
            "delete_records",
            lambda types: schema.build(
                types.DeleteRecordsRequest,
                topics=(
                    schema.build(
                        types.DeleteRecordsTopic,
                        name=name,
                        partitions=(
                            schema.build(
                                types.DeleteRecordsPartition,
                                partition_index=partition,
                                offset=offset,
                            ),
                        ),
                    ),
                ),
                timeout=timedelta(seconds=3),
            ),
        )
        row = answer.topics[0].partitions[0]
        return int(row.error_code), row.low_watermark

    async def find_coordinator(self, agent: Agent, group: str) -> tuple[int, int]:
        """(error code, node id)."""
        answer = await self.request(
            agent,
            "find_coordinator",
            lambda types: schema.build(types.FindCoordinatorRequest, key=group, key_type=0),
        )
        return int(answer.error_code), answer.node_id

    async def commit_offset(
        self,
        agent: Agent,
        group: str,
        place: tuple[str, int],
        offset: int,
        *,
        generation: int = -1,
        member: str = "",
    ) -> int:
        """Its error code."""
        answer = await self.request(
            agent,
            "offset_commit",
            lambda types: schema.build(
                types.OffsetCommitRequest,
                group_id=group,
                generation_id_or_member_epoch=generation,
                member_id=member,
                group_instance_id=None,
                topics=(
                    schema.build(
                        types.OffsetCommitRequestTopic,
                        name=place[0],
                        partitions=(
                            schema.build(
                                types.OffsetCommitRequestPartition,
                                partition_index=place[1],
                                committed_offset=offset,
                                committed_leader_epoch=-1,
                                committed_metadata="",
                            ),
                        ),
                    ),
                ),
            ),
        )
        return int(answer.topics[0].partitions[0].error_code)

    async def fetch_offset(
        self, agent: Agent, group: str, place: tuple[str, int], *, stable: bool = False
    ) -> tuple[int, int]:
        """(error code, offset; -1: none)."""
        answer = await self.request(
            agent,
            "offset_fetch",
            lambda types: schema.build(
                types.OffsetFetchRequest,
                group_id=group,
                topics=(
                    schema.build(
                        types.OffsetFetchRequestTopic, name=place[0], partition_indexes=(place[1],)
                    ),
                ),
                require_stable=stable,
            ),
        )
        if int(answer.error_code):
            return int(answer.error_code), -1
        row = answer.topics[0].partitions[0]
        return int(row.error_code), row.committed_offset

    async def join(self, agent: Agent, group: str, member: str) -> Any:
        """JoinGroup's answer."""
        return await self.request(
            agent,
            "join_group",
            lambda types: schema.build(
                types.JoinGroupRequest,
                group_id=group,
                session_timeout=timedelta(seconds=2),
                rebalance_timeout=timedelta(seconds=2),
                member_id=member,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=(
                    schema.build(
                        types.JoinGroupRequestProtocol, name="range", metadata=b"\x00\x00" * 4
                    ),
                ),
            ),
        )

    async def sync(
        self, agent: Agent, group: str, member: str, generation: int, shares: dict[str, bytes]
    ) -> Any:
        """SyncGroup's answer."""
        return await self.request(
            agent,
            "sync_group",
            lambda types: schema.build(
                types.SyncGroupRequest,
                group_id=group,
                generation_id=generation,
                member_id=member,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name="range",
                assignments=tuple(
                    schema.build(types.SyncGroupRequestAssignment, member_id=name, assignment=share)
                    for name, share in shares.items()
                ),
            ),
        )

    async def heartbeat(self, agent: Agent, group: str, member: str, generation: int) -> int:
        """Its error code."""
        answer = await self.request(
            agent,
            "heartbeat",
            lambda types: schema.build(
                types.HeartbeatRequest,
                group_id=group,
                generation_id=generation,
                member_id=member,
                group_instance_id=None,
            ),
        )
        return int(answer.error_code)
