"""The answers of applied commands, and the reasons of refusals. Pure.

Answers are kept with an agent's last entries, so that a repeat of an entry gets the same: on the
wire each is a MessagePack array (docs/formats/journal.md), fields are only ever added at the end.
"""

import enum

import msgspec
from msgspec import Struct


class Refusal(enum.IntEnum):
    """The reasons for which apply refuses. The Kafka face maps each to an error code."""

    UNKNOWN_TOPIC = 1
    UNKNOWN_PARTITION = 2
    TOPIC_EXISTS = 3
    INVALID_PARTITIONS = 4
    OUT_OF_ORDER_SEQUENCE = 5
    FENCED_PRODUCER = 6
    OFFSET_OUT_OF_RANGE = 8
    UNKNOWN_GROUP = 9
    GROUP_NOT_EMPTY = 10
    FENCED_AGENT = 11
    STALE_SHARD = 12
    OBJECT_IN_USE = 13
    OBJECT_CONDEMNED = 14
    OBJECT_EXISTS = 15
    GROUP_SUBSCRIBED = 16
    OUT_OF_ORDER_ENTRY = 17
    """The entry's n neither follows the agent's last one nor is one of the last few."""
    UNKNOWN_AGENT = 18
    AGENT_IS_ALIVE = 19
    """It has had an entry since, or owns what was claimed, and its epoch isn't over."""
    WAL_NOT_OWNED = 20
    """The entry's agent and epoch don't own the WAL that it names."""
    WAL_IN_USE = 21
    """Runs are still named in the WAL."""
    LEVEL_NOT_KNOWN = 22
    """An agent that isn't fenced doesn't know the feature level."""
    LEVEL_NOT_ON = 23
    """The command belongs to a feature level that isn't switched on."""
    UNKNOWN_JOB = 24
    """The job was closed, or never opened: nothing may be committed under it."""
    JOB_IS_ALIVE = 25
    """It was renewed since it was seen silent."""
    JOB_TOO_OLD = 26
    """Its greatest age has passed: it must end, since it holds deletion back."""
    OUT_OF_ORDER_COMMIT = 27
    """The commit's n isn't the job's next."""
    INPUT_CHANGED = 28
    """A run that was to be replaced isn't there as it was listed."""
    INVALID_REPLACEMENT = 29
    """The runs that would replace others don't lie within them."""
    STALE_WRITE = 30
    """A later batch of the writer is committed."""
    WRITER_IN_USE = 31
    """The writer's batches belong to another checkpoint."""
    INVALID_OBJECT = 32
    """An object that isn't the job's own, or that is listed twice."""
    MALFORMED = 33
    """Numbers or texts of the command are none that it may have."""
    UNKNOWN_HISTORY = 34
    """The state doesn't know the lost history."""
    HISTORY_GREW = 35
    """More of the lost history was found since it was looked at."""
    CLOCKS_DISAGREE = 36
    """Journal time is ahead of what it was to be set to, and the clocks don't agree on that."""
    PRODUCER_ID_MISMATCH = 37
    """The transactional id isn't known, or has another producer id."""
    INVALID_TRANSACTION_STATE = 38
    """The transaction isn't ongoing, or what is asked for isn't in it."""
    TRANSACTION_TOO_LARGE = 39
    """The transaction would have more partitions, groups or offsets than one may have."""
    STALE_CONNECTION = 40
    """The request came by a connection that is older than the transaction."""
    OTHER_CONNECTION = 41
    """Offsets of the group came by another connection, which is older than the transaction."""
    PLAIN_IN_TRANSACTION = 42
    """The batch is of no transaction, and its producer has one open in the partition."""
    UNKNOWN_CREDENTIAL = 43
    """The user has no such credential."""


class Answer(Struct, frozen=True, array_like=True, tag=True):
    """Base of all answers; stored with the agent's last entries, so that a repeat gets the same."""


class Done(Answer, frozen=True, tag="ok"):
    """Applied; nothing to tell."""


class Refused(Answer, frozen=True, tag="no"):
    """Nothing was changed. `detail` names the numbers."""

    reason: Refusal
    detail: str = ""


class TopicCreated(Answer, frozen=True, tag="topic"):
    """The new topic's key."""

    topic_key: int


class ProducerIds(Answer, frozen=True, tag="pids"):
    """A block [first, first + count) of producer ids that no other producer gets."""

    first: int
    count: int


class WalClaimed(Answer, frozen=True, tag="wal"):
    """The WAL's key, the same at each claim, and the greatest generation named in it."""

    wal_key: int
    last_generation: int


class ShardClaimed(Answer, frozen=True, tag="shard"):
    """The shard's new epoch."""

    shard_epoch: int


class Relayed(Answer, frozen=True, tag="relay"):
    """The relayed entry's `penstock.state.apply.machine.Standing`, and its answers."""

    standing: int
    answers: list["AnyAnswer"]


class BatchStatus(enum.IntEnum):
    """The outcome of one batch."""

    STORED = 0
    DUPLICATE = 1
    """Already stored; `base_offset` is the first one's and the bytes are referenced by nothing."""
    REFUSED = 2
    """`base_offset` holds a Refusal."""


class RunsCommitted(Answer, frozen=True, tag="runs"):
    """Holds per run, in the command's order, flat pairs (BatchStatus, base offset) per batch."""

    runs: list[list[int]]


class SegmentStored(Answer, frozen=True, tag="segment"):
    """Counts the listed runs that still existed and now lie in the segment."""

    moved: int


class LogTrimmed(Answer, frozen=True, tag="trim"):
    """Holds for each item: the partition's log start offset now, or minus a Refusal."""

    starts: list[int]


class LeftoversCleared(Answer, frozen=True, tag="clear"):
    """Counts the rows that were deleted, and says whether any are left."""

    rows: int
    is_left: bool


class JournalTimeSet(Answer, frozen=True, tag="time"):
    """In how many rows times were lowered, and whether all rows were looked through."""

    rows: int
    is_done: bool


class LossAccepted(Answer, frozen=True, tag="loss"):
    """The offsets that are lost: flat pairs start, end (half-open)."""

    ranges: list[int]


class RunsRestored(Answer, frozen=True, tag="restore"):
    """Holds for each run of the command: 0, or a Refusal (UNKNOWN_PARTITION, INPUT_CHANGED,
    INVALID_REPLACEMENT)."""

    codes: list[int]


class Condemned(Answer, frozen=True, tag="condemn"):
    """The keys that are condemned."""

    keys: list[str]


class JobOpened(Answer, frozen=True, tag="job"):
    """The job's number, the position that registered it, and journal time there."""

    job: int
    position: int
    time_ms: int


class RunsReplaced(Answer, frozen=True, tag="replace"):
    """Holds for each partition of the command: 0, or a Refusal (INPUT_CHANGED, INVALID_REPLACEMENT,
    UNKNOWN_PARTITION)."""

    codes: list[int]


class WriteCommitted(Answer, frozen=True, tag="write"):
    """Flat triples partition key, base offset, end offset: per partition, in the order of first
    use. `repeated`: this is the first answer, given again."""

    ranges: list[int]
    repeated: bool = False


class HistoryNoted(Answer, frozen=True, tag="history"):
    """The number of the lost history that the found rows belong to; it may be closed."""

    history: int


class TransactionSettled(Answer, frozen=True, tag="txn"):
    """The producer id and epoch that the producer goes on with, and the position of the entry that
    last changed the transaction's state."""

    producer_id: int
    epoch: int
    since: int


class TransactionsAborted(Answer, frozen=True, tag="txns"):
    """Counts the items that were looked at, from the first on, and the transactions aborted."""

    looked_at: int
    aborted: int


class OffsetsCommitted(Answer, frozen=True, tag="offsets"):
    """Holds for each offset of the command: 0, or a Refusal."""

    codes: list[int]


AnyAnswer = (
    Done
    | Refused
    | TopicCreated
    | ProducerIds
    | WalClaimed
    | ShardClaimed
    | Relayed
    | RunsCommitted
    | SegmentStored
    | LogTrimmed
    | LeftoversCleared
    | LossAccepted
    | RunsRestored
    | JournalTimeSet
    | Condemned
    | JobOpened
    | RunsReplaced
    | WriteCommitted
    | OffsetsCommitted
    | HistoryNoted
    | TransactionSettled
    | TransactionsAborted
)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyAnswer])


def encode_answers(answers: list[AnyAnswer]) -> bytes:
    """Answers of one entry, in the order of its commands."""
    return _encoder.encode(answers)


def decode_answers(body: bytes) -> list[AnyAnswer]:
    """The inverse of `encode_answers`."""
    return _decoder.decode(body)
