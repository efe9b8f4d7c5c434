"""What simulated clients ask of agents, in the requests of Kafka's protocol."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.groups.errors import GroupError
from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire import schema
from sim.connections import PATIENCE_S, Connection, StreamConnection
from sim.identity import are_batches, identity_of, labels_of
from support import raw_wire

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.chance import Chance
    from support.simulated.virtual_loop import VirtualLoop


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
    "consumer_group_heartbeat": 1,
    "share_group_heartbeat": 1,
    "streams_group_heartbeat": 0,
    "share_fetch": 1,
    "share_acknowledge": 1,
}
CLASSIC_METADATA = b"\x00\x00" * 4
"""A subscription to no topic, of members whose leader deals partitions out anyhow."""


def error_name(code: int) -> str:
    """Say an error code of any API."""
    kind = ErrorCode if code in set(ErrorCode) else GroupError
    return kind(code).name


class KafkaError(Exception):
    """The agent answered with an error."""

    def __init__(self, code: int, operation: str) -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{operation}: {self.code.name}")


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

    async def join(
        self, agent: Agent, group: str, member: str, metadata: bytes = CLASSIC_METADATA
    ) -> Any:
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
                    schema.build(types.JoinGroupRequestProtocol, name="range", metadata=metadata),
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
