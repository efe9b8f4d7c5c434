"""Rows of the state as values: what queries give."""

from dataclasses import dataclass

from penstock.model.ids import PartitionKey


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Adjacent batches of one partition: offsets [base_offset, end_offset) and where they lie.

    `generation`: of the WAL file; 0: in the object `object_key` ("" for the WAL). `position` and
    `length` are bytes of that file or object; `max_timestamp` in ms, of any record.
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


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """A segment object that the state knows. `condemned_ms`: journal time, None while live."""

    key: str
    size_bytes: int
    live_runs: int
    condemned_ms: int | None


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What is known of a producer in a partition (DescribeProducers)."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group's durable state. `empty_since_ms`: journal time, None while it has members."""

    group_id: str
    generation: int
    protocol_type: str
    empty_since_ms: int | None
    state: bytes


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A committed offset. `commit_ms`: journal time of the commit."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
