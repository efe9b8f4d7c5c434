"""Rows of the state as values: what queries give."""

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.model.ids import PartitionKey

GENERATION_BITS: Final = 32
"""A WAL file's place is one integer: WAL key << GENERATION_BITS | generation of the file."""
GENERATION_MASK: Final = (1 << GENERATION_BITS) - 1


class StoredRun(Struct, frozen=True, gc=False):
    """Adjacent batches of one partition: offsets [base_offset, end_offset) and where they lie.

    `generation`: WAL key << 32 | generation of the WAL file; 0: in the object `object_key` ("" for
    the WAL). `position` and `length` are bytes of that file or object; `max_timestamp` in ms, of
    any record. A struct, which takes an eighth of the time to make: there may be one per record.
    """

    partition_key: PartitionKey
    base_offset: int
    end_offset: int
    generation: int
    object_key: str
    position: int
    length: int
    max_timestamp: int
    batch_count: int
    object_bytes: int = 0
    """Size of the whole object; 0 for the WAL."""
    raw: int = 0
    """Not 0: base offsets inside the object aren't final, and it is 1 more than the leader epoch
    that its batches were appended in."""
    origin: str = ""
    """The store of another cluster that the object lies in; empty: this cluster's own."""
    leader_epoch: int = 0
    """Label of the batches where their base offsets are not final: in a WAL or a raw object. In
    other objects they have labels of their own."""
    sum: int | None = None
    """Sum of its batches (`penstock.records.sums`); None: it was stored below feature level 4."""

    @property
    def wal_key(self) -> int:
        """Key of the WAL; 0: the embedded server's, or an object."""
        return self.generation >> GENERATION_BITS

    @property
    def file_generation(self) -> int:
        """The generation that the WAL file's own header has; 0: in an object."""
        return self.generation & GENERATION_MASK


class StoredTopic(NamedTuple):
    """A topic's row; `replication_factor` as of `CreateTopic`."""

    topic_key: int
    topic_id: bytes
    name: str
    partitions: int
    configs: dict[str, str]
    replication_factor: int


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """A segment object that the state knows. `condemned_ms`: journal time, None while live."""

    key: str
    size_bytes: int
    live_runs: int
    condemned_ms: int | None
    raw: int = 0
    origin: str = ""


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """The state of a producer in a partition (DescribeProducers)."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """The state of a producer in a partition, and the first offset of its open transaction there;
    -1: none is."""

    producer: ActiveProducer
    first_offset: int


class GroupKind(enum.IntEnum):
    """The protocols that groups have. The numbers are journaled."""

    CLASSIC = 0
    CONSUMER = 1
    """KIP-848."""
    SHARE = 2
    """KIP-932."""
    STREAMS = 3
    """KIP-1071."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group's durable state. `empty_since_ms`: journal time, None while it has members."""

    group_id: str
    generation: int
    protocol_type: str
    empty_since_ms: int | None
    state: bytes
    kind: GroupKind = GroupKind.CLASSIC


@dataclass(frozen=True, slots=True)
class ShareRow:
    """A share partition's durable state: opaque, but for where it starts (-1: not known yet)."""

    topic_id: bytes
    partition: int
    start_offset: int
    state: bytes


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A committed offset. `commit_ms`: journal time of the commit."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int


class AgentStatus(enum.IntEnum):
    """Says what an agent may be given."""

    LIVE = 0
    DRAINING = 1
    """No new clients and no shards; it serves those that it has."""
    FENCED = 2
    """Its epoch is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent as it registered, and its status.

    `endpoint` is HOST:PORT for Kafka clients, `peer` HOST:PORT for other agents (HTTP).
    """

    agent_id: int
    epoch: int
    status: AgentStatus
    labels: dict[str, str]
    software: str
    endpoint: str
    peer: str
    level_max: int

    @property
    def live(self) -> bool:
        """Its epoch isn't over: it serves, draining or not."""
        return self.status is not AgentStatus.FENCED


@dataclass(frozen=True, slots=True)
class Wal:
    """A WAL directory: its small key, the id that lies in it, the owner's agent and epoch, and
    the greatest file generation that a commit named."""

    wal_key: int
    wal_id: bytes
    agent: int
    epoch: int
    last_generation: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard of groups. `agent` 0: it has no owner; `epoch` is the owner's epoch at its claim."""

    shard: int
    shard_epoch: int
    agent: int
    epoch: int

    @property
    def owner(self) -> int | None:
        """The agent that owns it."""
        return self.agent or None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJob:
    """An open job. Times are journal time in ms; `last_n`: of its last numbered commit, 0: none.
    `principal`: who has opened it, "": a client whom no authorizer asked."""

    job: int
    kind: str
    name: str
    opened_position: int
    opened_ms: int
    renewed_ms: int
    lease_ms: int
    age_max_ms: int
    last_n: int
    principal: str = ""

    @property
    def over_ms(self) -> int:
        """The journal time from which on anybody may close it, unless it is renewed before."""
        return min(self.renewed_ms + self.lease_ms, self.opened_ms + self.age_max_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRow:
    """A writer's last batch, and the journal time in ms at which it was committed."""

    writer_id: str
    incarnation: str
    batch_id: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Says how far a table has followed a topic: next offsets by partition, and since when."""

    topic_id: bytes
    table: str
    offsets: dict[int, int]
    snapshot_id: int
    state: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class CleanRow:
    """A partition was compacted by key below `clean_end`, the last time at `time_ms`."""

    clean_end: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """An object that runs lie in; see `StoredRun`."""

    key: str
    size_bytes: int
    raw: int
    origin: str


@dataclass(frozen=True, slots=True)
class RunRows:
    """Many runs, as plain rows: a job lists a million of them.

    `rows`, by partition and offset: partition key, base offset, end offset, WAL place (0: in an
    object), object id (0: in a WAL), position, length, max timestamp in ms, batch count, sum (-1:
    unknown). `objects`: by object id. `position`: of the state that they are of.
    """

    position: int
    rows: list[tuple[int, ...]]
    objects: dict[int, ObjectPlace]


class LostReason(enum.IntEnum):
    """The ways to find a lost history."""

    REPLICA = 1
    """A replica had applied rows that the journal does not hold."""
    STRETCH = 2
    """The archive held rows that the journal does not hold."""
    SNAPSHOT = 3
    """The archive held a snapshot of a state that the journal never came to."""


class HistoryOutcome(enum.IntEnum):
    """The outcomes of a lost history."""

    OPEN = 0
    APPENDED = 1
    """Its acknowledged records were appended again."""
    GIVEN_UP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHistory:
    """Rows that the journal has lost: positions [start, end], both included.

    `start`: the first position that isn't known to be the same in both histories. `stamp_ms` and
    `crc`: of the row at `end`. `noted_position`: of the last entry that found more of the history.
    `records`: how many were appended again.
    """

    history: int
    start: int
    end: int
    stamp_ms: int
    crc: int
    reason: LostReason
    agent: int
    noted_position: int
    noted_ms: int
    closed_ms: int | None
    outcome: HistoryOutcome
    records: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """Small runs among a partition's newest ones that lie in objects, and their bytes."""

    partition_key: PartitionKey
    small_count: int
    small_bytes: int
