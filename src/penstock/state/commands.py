"""The commands that the journal orders; what each may answer is in `penstock.state.answers`.
Those of jobs are in `penstock.state.pipeline_commands`, of transactions in
`penstock.state.transaction_commands`, of access rules in `penstock.state.acl_commands`, of
credentials in `penstock.state.security_commands`, of quotas in `penstock.state.quota_commands`.
Pure.

On the wire a command is a MessagePack array (docs/formats/journal.md). Fields are only ever added
at the end, with a default; what a command results in changes only behind a feature level.
"""

from typing import Final

from msgspec import Struct

from penstock.state.acl_commands import CreateAcls, DeleteAcls
from penstock.state.command import Command, OffsetWrite
from penstock.state.pipeline_commands import (
    CloseJob,
    CommitWrite,
    DropTable,
    ExpireWriters,
    OpenJob,
    RenewJob,
    ReplaceRuns,
    SaveTable,
)
from penstock.state.quota_commands import AlterQuotas
from penstock.state.security_commands import (
    DeleteApiKey,
    DeleteCredential,
    SaveApiKey,
    SaveCredential,
)
from penstock.state.state_digest import StateDigest
from penstock.state.transaction_commands import (
    AbortTransactions,
    AddToTransaction,
    CommitToTransaction,
    EndTransaction,
    ExpireTransactions,
    InitTransaction,
)

BATCH_FIELDS: Final = 6
"""Integers per batch in `RunCommit.batches`."""
EPOCH_MAX: Final = (1 << 15) - 1
"""The greatest epoch that a producer may have."""
TRANSACTIONAL: Final = 1 << 16
"""Bit of a batch's producer epoch: the batch is of a transaction."""
ADDS_ITSELF: Final = 1 << 17
"""Bit of a transactional batch's producer epoch: its partition need not have been added to the
transaction before (protocol V2)."""


# -- agents ------------------------------------------------------------------------------------


class InitCluster(Command, frozen=True, tag="init"):
    """Give the cluster its id, once: the journal's first command. Answer: Done, also when there
    is an id already, which then stays."""

    cluster_id: str


class RegisterAgent(Command, frozen=True, tag="agent"):
    """Open a new epoch of an agent. The entry that carries it has that epoch and n = 0."""

    agent: int
    labels: dict[str, str] = {}
    software: str = ""
    endpoint: str = ""
    """HOST:PORT at which Kafka clients reach it."""
    peer: str = ""
    """HOST:PORT at which other agents reach it (HTTP)."""
    level_max: int = 1
    """The highest feature level that it knows."""
    token: bytes = b""
    """Random, so that of two processes which open the same epoch each knows whose it became."""


class Heartbeat(Command, frozen=True, tag="beat"):
    """The entry's agent lives: says nothing, but any entry of an agent moves its last position."""


class Fence(Command, frozen=True, tag="fence"):
    """End an epoch of an agent that has had no entry past `seen_position`, or of the entry's own
    agent (from level 4 on). Its later entries are refused, and its shards are free. Answer: Done or
    Refused (UNKNOWN_AGENT, AGENT_IS_ALIVE)."""

    agent: int
    epoch: int
    seen_position: int


class DrainAgent(Command, frozen=True, tag="drain"):
    """Give an agent no new clients and no shards, or take that back. Answer: Done or Refused."""

    agent: int
    draining: bool


class RemoveAgent(Command, frozen=True, tag="agent-"):
    """Forget a fenced agent. Answer: Done or Refused (AGENT_IS_ALIVE, WAL_IN_USE)."""

    agent: int


class ClaimWal(Command, frozen=True, tag="wal"):
    """Make the entry's agent and epoch the owner of a WAL directory. Answer: WalClaimed, or
    Refused(AGENT_IS_ALIVE) while another agent's live epoch owns it."""

    wal_id: bytes
    """16 random bytes that lie in the directory."""


class ClaimShard(Command, frozen=True, tag="shard"):
    """Make the entry's agent the owner of a shard of groups. Answer: ShardClaimed, or
    Refused(STALE_SHARD) if the shard's epoch is not `shard_epoch` any more."""

    shard: int
    shard_epoch: int


class Noop(Command, frozen=True, tag="noop"):
    """Takes a position and changes nothing."""


class SetFeatureLevel(Command, frozen=True, tag="level"):
    """Switch on newer semantics of apply from this position on. Only upwards."""

    level: int


class Digest(Command, frozen=True, tag="digest"):
    """Never proposed: `AskDigest` and `ReportDigest` are. Takes a position."""

    position: int
    digest: bytes


class NoteLostHistory(Command, frozen=True, tag="history+"):
    """Rows [start, end] of the journal, both included, were applied or archived and are lost since
    the journal came back older. Answer: HistoryNoted, or Refused(MALFORMED)."""

    start: int
    """The first position that isn't known to be the same in both histories."""
    end: int
    stamp_ms: int
    """Stamp of the lost row at `end`, by which the history is known again."""
    crc: int
    """CRC-32C of its body."""
    reason: int
    """A `penstock.state.rows.LostReason`."""


class CloseHistory(Command, frozen=True, tag="history-"):
    """Declares that what a lost history alone names need not be kept any more. Answer: Done, also
    if the history is closed, or Refused (UNKNOWN_HISTORY; HISTORY_GREW if more was noted past
    `seen_position`)."""

    history: int
    seen_position: int
    """The position of the state in which the operator looked at it."""
    give_up: bool = False
    records: int = 0
    """How many were appended again."""


class AskDigest(Command, frozen=True, tag="digest?"):
    """A digest of the state at this entry's position is due, from every agent that is live.

    Answer: Done, also if another was asked for since `seen_position`, which then stays.
    """

    seen_position: int
    """Position of the last request that the proposer knows of; 0: it knows none."""


class ReportDigest(Command, frozen=True, tag="digest!"):
    """The entry's agent hashed its state of `position`. Answer: Done, also where another one is
    asked for by now, or none of this agent's epoch; or Refused(MALFORMED)."""

    position: int
    digest: StateDigest


# -- topics ------------------------------------------------------------------------------------


class CreateTopic(Command, frozen=True, tag="topic+"):
    """Create a topic. Answer: TopicCreated, or Refused (TOPIC_EXISTS, INVALID_PARTITIONS).

    `replication_factor` is how many replicas clients are shown, 0 to 32,767, of TRANSACTIONS_LEVEL;
    0: as many as there are zones.
    """

    name: str
    topic_id: bytes
    partitions: int
    configs: dict[str, str] = {}
    replication_factor: int = 0


class DeleteTopic(Command, frozen=True, tag="topic-"):
    """Delete a topic by id, with its runs, producers and group offsets. Answer: Done or Refused."""

    topic_id: bytes


class CreatePartitions(Command, frozen=True, tag="partitions"):
    """Raise a topic's partition count to `partitions`. Answer: Done or Refused."""

    topic_id: bytes
    partitions: int


class AlterTopicConfigs(Command, frozen=True, tag="configs"):
    """Set and unset configs of a topic. Answer: Done or Refused(UNKNOWN_TOPIC)."""

    topic_id: bytes
    set: dict[str, str] = {}
    unset: list[str] = []


class AlterClusterConfigs(Command, frozen=True, tag="cluster"):
    """Set and unset cluster-wide defaults (Kafka: broker configs of the default entity)."""

    set: dict[str, str] = {}
    unset: list[str] = []


CONFIGURED_GROUPS_MAX: Final = 10_000
"""Groups that may have configs: every agent has them in memory."""


class AlterGroupConfigs(Command, frozen=True, tag="group_configs"):
    """Set and unset configs of a group, which need not exist (Kafka: GROUP resources). Answer: Done
    or Refused(MALFORMED): there are too many groups with configs."""

    group_id: str
    set: dict[str, str] = {}
    unset: list[str] = []


# -- records -----------------------------------------------------------------------------------


class AllocateProducerIds(Command, frozen=True, tag="pids"):
    """Reserve a block of producer ids. Answer: ProducerIds."""

    count: int


class RunCommit(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Adjacent batches of one partition, as they lie in one WAL frame or object.

    `position` is the byte position in the file or object of the first batch. `batches` is flat,
    BATCH_FIELDS integers per batch: length in bytes, record count, max timestamp in ms as the
    difference to the batch before (the first: to 0), producer id (-1: none), producer epoch with
    the bits TRANSACTIONAL and ADDS_ITSELF above it, base sequence.
    """

    partition_key: int
    position: int
    batches: list[int]
    crcs: bytes = b""
    """The CRC-32C in each batch's header, 4 bytes each, big-endian. Empty: an older release has
    sent the command. Bytes, since a second list takes as long to decode as the rest of the run."""


class CommitRuns(Command, frozen=True, tag="runs"):
    """Give offsets to batches whose bytes are durable. Answer: RunsCommitted.

    Exactly one of `wal` (WAL key << 32 | generation of the file; key 0: the embedded server's)
    and `object_key` names the place.
    """

    runs: list[RunCommit]
    wal: int = 0
    object_key: str = ""
    object_bytes: int = 0
    raw: bool = False
    """Base offsets inside the object aren't final: readers patch them."""


class MovedRun(Struct, frozen=True, array_like=True, kw_only=True):
    """Consecutive WAL runs of one partition, copied one behind the other to `position`.

    `runs` is flat, four integers per source run, in offset order: base offset, WAL generation,
    WAL byte position, length in bytes. Those that are no longer as listed are left out; what
    remains lies where it was copied to, and is joined where it is adjacent.
    """

    partition_key: int
    position: int
    runs: list[int]


class StoreSegment(Command, frozen=True, tag="segment"):
    """Runs were copied from the WAL to a segment object; name it there instead and join them.

    A run that is no longer in the WAL (trimmed, or its topic deleted) is ignored. Answer:
    SegmentStored, or Refused (OBJECT_CONDEMNED, OBJECT_EXISTS).
    """

    object_key: str
    object_bytes: int
    runs: list[MovedRun]


class TrimLog(Command, frozen=True, tag="trim"):
    """Raise log start offsets (retention, DeleteRecords). `items`: flat pairs partition key,
    new log start offset; -1 means the high watermark. Answer: LogTrimmed."""

    items: list[int]


class ExpireProducers(Command, frozen=True, tag="producers-"):
    """Forget producers of partitions. `items`: flat triples partition key, producer id, last
    timestamp seen; one that has written since is kept. Answer: Done."""

    items: list[int]


class CondemnObjects(Command, frozen=True, tag="condemn"):
    """Declare objects unreferenced for good, before they are deleted.

    Answer: Condemned with those keys that are condemned now; a named one is refused (left out), and
    so is one of an open job that hasn't named it yet.
    """

    keys: list[str]


class ClearLeftovers(Command, frozen=True, tag="clear"):
    """Delete rows that `DeleteTopic` and `TrimLog` left, at most `rows_max` of them (and never more
    than 5,000). Answer: LeftoversCleared."""

    rows_max: int


class SetJournalTime(Command, frozen=True, tag="time"):
    """Set journal time back, which stands ahead of the clocks, and lower the stored times above it.

    The entry lowers journal time if `time_ms`, the journal's stamp of the entry and the appender's
    are within 5 s of one another, and journal time is more than 5 s above `time_ms`. Apply then
    looks through at most `rows_max` rows (and never more than 5,000) and lowers their times.
    `begins`: from the first row on; else from where the last such command stopped. Answer:
    JournalTimeSet, or Refused(CLOCKS_DISAGREE) where journal time still is more than 5 s above.
    """

    time_ms: int
    rows_max: int
    begins: bool


KEPT_FIELDS: Final = 7
"""Integers per run in `AcceptLoss.kept`."""
KEPT_RUNS_MAX: Final = 1_000
"""Runs that one `AcceptLoss` may keep: an entry of some 40 KB, applied in a few ms."""


class AcceptLoss(Command, frozen=True, tag="loss"):
    """Give up records of one run that are damaged or missing, by an operator's word.

    The run is named as it was seen. `kept`: what is right of it and stays where it lies; flat,
    KEPT_FIELDS integers per run: base offset, end offset, byte position, length, max timestamp in
    ms, batch count, sum (-1: unknown); in offset order, at most KEPT_RUNS_MAX. The offsets between
    are lost: a gap, as compaction leaves them. Answer: LossAccepted, or Refused
    (UNKNOWN_PARTITION, INPUT_CHANGED, INVALID_REPLACEMENT).
    """

    partition_key: int
    base_offset: int
    end_offset: int
    position: int
    length: int
    wal: int = 0
    """WAL key << 32 | generation of the file; 0: the run lies in the object `object_key`."""
    object_key: str = ""
    kept: list[int] = []


class RestoredRun(Struct, frozen=True, array_like=True, kw_only=True):
    """A run that is damaged or missing, as it was seen, and what takes its place.

    `length` 0: no run, but offsets whose loss was accepted, all of them. `kept`: as of
    `AcceptLoss`, what stays where it lies. `restored`: in the command's object, as `kept`.
    """

    partition_key: int
    base_offset: int
    end_offset: int
    position: int
    length: int
    wal: int = 0
    object_key: str = ""
    kept: list[int] = []
    restored: list[int] = []


class RestoreRuns(Command, frozen=True, tag="restore"):
    """Name an object that a repair has put instead of runs that are damaged or missing.

    Each run is restored by itself or left as it is. Answer: RunsRestored, or Refused
    (OBJECT_CONDEMNED, OBJECT_EXISTS).
    """

    object_key: str
    object_bytes: int
    runs: list[RestoredRun]
    rebuilt: bool = False
    """False: copies of the same batches. True: records that were encoded again from a table."""


class ForgetObjects(Command, frozen=True, tag="forget"):
    """Condemned objects were deleted from the store: drop their rows. Answer: Done."""

    keys: list[str]


# -- groups ------------------------------------------------------------------------------------


class SaveGroup(Command, frozen=True, tag="group"):
    """Store a group's durable state (generation, members, assignment) at a rebalance.

    `state` is opaque to apply (the group package encodes it). `empty`: no members now, which is
    what offset expiry counts from. Answer: Done or Refused(STALE_SHARD).
    """

    group_id: str
    generation: int
    protocol_type: str
    empty: bool
    state: bytes
    shard_epoch: int = 0


MEMBERS_MAX: Final = 1_000
"""Members that one `SaveMembers` may change: applied in a few ms."""


class SaveMembers(Command, frozen=True, tag="members"):
    """Store a group and those of its members that changed.

    The group becomes one of `kind`, a `penstock.state.rows.GroupKind`. `state` and the members'
    rows are opaque to apply, as in `SaveGroup`. Answer: Done or Refused (STALE_SHARD, MALFORMED
    where there are more than MEMBERS_MAX).
    """

    group_id: str
    generation: int
    protocol_type: str
    kind: int
    empty: bool
    state: bytes
    rows: list[tuple[str, bytes]]
    """Member ids with what is stored of them."""
    removed: list[str]
    """Ids of members that left, before `rows` are stored."""
    shard_epoch: int = 0


SHARES_MAX: Final = 1_000
"""Share partitions that one `SaveShares` may change: applied in a few ms."""


class SaveShares(Command, frozen=True, tag="shares"):
    """Store what became of records in partitions of a share group.

    `rows`: topic id, partition, start offset, and what is opaque to apply (the group package
    encodes it). Partitions that don't exist are left out. Answer: Done or Refused (STALE_SHARD,
    UNKNOWN_GROUP, MALFORMED where there are more than SHARES_MAX).
    """

    group_id: str
    rows: list[tuple[bytes, int, int, bytes]]
    removed: list[tuple[bytes, int]] = []
    """Partitions whose state is deleted, before `rows` are stored."""
    shard_epoch: int = 0


class DeleteGroups(Command, frozen=True, tag="group-"):
    """Delete groups with their offsets. The coordinator has checked that they are empty.

    `seen`: empty, or for each group what its expiry was decided by: since when it was empty (-1:
    not empty), and when the newest of its offsets was committed (-1: none). From feature level 4
    on a group that differs stays. Answer: Done."""

    group_ids: list[str]
    shard_epoch: int = 0
    seen: list[tuple[int, int]] = []


class CommitOffsets(Command, frozen=True, tag="offsets"):
    """Store offsets of a group; creates the group if there is none. Offsets of topics that do
    not exist are refused one by one. Answer: OffsetsCommitted."""

    group_id: str
    offsets: list[OffsetWrite]
    shard_epoch: int = 0


class DeleteOffsets(Command, frozen=True, tag="offsets-"):
    """Delete offsets of a group. `items`: (topic id, partition) pairs.

    `seen_ms`: empty, or for each item the commit time that its expiry was decided by. From feature
    level 4 on an offset that was committed at another time stays. Answer: Done."""

    group_id: str
    items: list[tuple[bytes, int]]
    shard_epoch: int = 0
    seen_ms: list[int] = []


class Relay(Command, frozen=True, tag="relay"):
    """An entry of another agent of this host, which hands its entries to the one that writes the
    journal. Applied by its own key (agent, epoch, n), as if it lay in the journal by itself, so
    that it may be handed over again. `stamp_ms`: the agent's own stamp of its entry; journal time
    follows the entry that holds this one. Answer: Relayed, or Refused inside another or from
    itself."""

    agent: int
    epoch: int
    n: int
    commands: list["AnyCommand"]
    stamp_ms: int = 0


AnyCommand = (
    InitCluster
    | Relay
    | RegisterAgent
    | Heartbeat
    | Fence
    | DrainAgent
    | RemoveAgent
    | ClaimWal
    | ClaimShard
    | Noop
    | SetFeatureLevel
    | Digest
    | AskDigest
    | ReportDigest
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterTopicConfigs
    | AlterClusterConfigs
    | AlterGroupConfigs
    | AllocateProducerIds
    | CommitRuns
    | StoreSegment
    | TrimLog
    | ExpireProducers
    | CondemnObjects
    | ClearLeftovers
    | AcceptLoss
    | RestoreRuns
    | SetJournalTime
    | ForgetObjects
    | OpenJob
    | RenewJob
    | CloseJob
    | ReplaceRuns
    | CommitWrite
    | ExpireWriters
    | SaveTable
    | DropTable
    | SaveGroup
    | SaveMembers
    | SaveShares
    | DeleteGroups
    | CommitOffsets
    | DeleteOffsets
    | NoteLostHistory
    | CloseHistory
    | InitTransaction
    | AddToTransaction
    | CommitToTransaction
    | EndTransaction
    | AbortTransactions
    | ExpireTransactions
    | CreateAcls
    | DeleteAcls
    | SaveCredential
    | DeleteCredential
    | SaveApiKey
    | DeleteApiKey
    | AlterQuotas
)
