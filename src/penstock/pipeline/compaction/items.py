"""A compaction plan hands items to executors, which hand back results. Pure.

An item names byte ranges of immutable objects, so every run of the item, on any executor, makes the
same records. It holds no secret and no URL. Its objects get names of the attempt's own; only the
driver's `ReplaceRequest` makes one attempt's objects live.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError
from penstock.pipeline.api_messages import OutputObject, ReplacedPartition
from penstock.records.merging import Merging
from penstock.records.sums import SUM_MASK

MIB: Final = 1 << 20


class CompactionSettings(Struct, frozen=True, kw_only=True):
    """The wanted sizes of runs and objects, and their costs. docs/compaction.md has the reasons.

    Bytes are as stored (compressed).
    """

    run_bytes_target: int = 64 * MIB
    """A run that is as large is left alone; adjacent smaller ones are joined up to here."""
    object_bytes_target: int = 256 * MIB
    """An item's output ends here; also about the memory that a running item takes."""
    growth: int = 4
    """Joining below the target must make each run at least so many times as large."""
    old_growth: int = 2
    """The same for runs that are older than `old_ms`."""
    old_ms: int = 3_600_000
    small_bytes: int = 64 << 10
    """Shorter runs count as this long in both: rewriting them costs next to nothing."""
    live_share_min: float = 0.5
    """The runs of an object of which less is live are moved, so that it can be deleted."""
    small_object_bytes: int = 1 << 20
    """The runs of old objects that are shorter are gathered in a longer one."""
    merged_below_bytes: int = 16 << 10
    """Batches of a join that are shorter on average are merged; 0: none are."""
    item_runs_max: int = 10_000
    item_partitions_max: int = 2_000


class InputObject(Struct, frozen=True, array_like=True):
    """An object that runs are read from. `raw` and `origin`: as in
    `penstock.pipeline.api_messages.RunPage.object_raw` and `.object_origins`."""

    key: str
    raw: int
    origin: str = ""


class ItemPartition(Struct, frozen=True, kw_only=True):
    """Adjacent runs of one partition. `inputs`: flat, as in
    `penstock.pipeline.api_messages.ReplacedPartition`: base offset, end offset, index in the
    item's `objects`, byte position, length."""

    topic_id: str
    partition: int
    inputs: list[int]
    log_start: int = 0
    """Records below it are gone for readers: batches that lie wholly below may be left out."""
    sums: list[int] = []
    """The sums of each run's batches (`penstock.records.sums`), -1: not known. Empty: no sum is
    known."""
    merging: Merging | None = None
    """Not None: its small batches are to be merged, and so."""

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(self.inputs[4::5])

    @property
    def run_count(self) -> int:
        """Return the number of runs."""
        return len(self.inputs) // 5

    def check_sum(self, run: int, found: int) -> None:
        """Compare the sum of a run's batches with that of the journal, where that is known.

        Args:
            run: its number in `inputs`.
            found: of the batches that were read.

        Raises:
            CorruptDataError: they are another run's, or another object lies under the key.
        """
        if not self.sums or self.sums[run] in {-1, found & SUM_MASK}:
            return
        base, end, _, position, length = self.inputs[5 * run : 5 * run + 5]
        raise CorruptDataError(
            "compact",
            f"partition {self.partition} of topic id {self.topic_id}",
            f"the {length} bytes from byte {position} on are not the batches of offsets {base} to"
            f" {end - 1}: their sum differs from the journal's",
        )


class JoinItem(Struct, frozen=True, kw_only=True, tag="join"):
    """Make one run per partition of its runs, all in one object.

    `partitions`: sorted by (topic id, partition), each once.
    """

    objects: list[InputObject]
    partitions: list[ItemPartition]
    reason: str

    @property
    def size_bytes(self) -> int:
        """Bytes to read, and about as many to write."""
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def run_count(self) -> int:
        """Runs that it replaces."""
        return sum(partition.run_count for partition in self.partitions)


class KeyedItem(Struct, frozen=True, kw_only=True, tag="keyed"):
    """Clean one partition by key, as Kafka's log cleaner does: docs/compaction.md.

    `partition` names all runs from the log's start to `cleanable_end`.
    """

    objects: list[InputObject]
    partition: ItemPartition
    clean_end: int
    """Cleaned before below this offset; at least the log's start. From here on it is dirty."""
    cleanable_end: int
    """Nothing from here on is touched: a run in a WAL, one that ends past the last stable offset,
    or too young a run."""
    young_ms: int
    """A run with a record later than this, and all behind it, is too young to be an input
    (min.compaction.lag.ms before `now_ms`)."""
    now_ms: int
    """Journal time at which the item was planned."""
    delete_retention_ms: int
    deletes: bool = False
    """Whether the topic is `compact,delete`."""
    producers: list[int] = []
    """Active producers, flat triples: producer id, epoch, last sequence."""
    aborted: list[int] = []
    """Aborted transactions, flat triples: producer id, offsets of the first record and of the
    marker. All that have records in the inputs."""
    run_bytes_target: int = 64 * MIB
    object_bytes_target: int = 256 * MIB
    reason: str

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return self.partition.size_bytes

    @property
    def run_count(self) -> int:
        """Runs that it replaces."""
        return self.partition.run_count


Item = JoinItem | KeyedItem


class ItemDone(Struct, frozen=True, kw_only=True):
    """An attempt's work, not yet committed: all but job and number of a `ReplaceRequest`."""

    input_keys: list[str]
    objects: list[OutputObject]
    partitions: list[ReplacedPartition]
    read_bytes: int
    written_bytes: int
    batches: int
    """The number of batches that were written."""
    merged_batches: int = 0
    """Batches that became part of a larger one."""
    dropped_records: int = 0
    """Records that a later record of the same key, or a tombstone's age, made superfluous."""


class ItemStore(Protocol):
    """Objects, as items' tasks need them. Implemented by `penstock.pipeline.compaction.job`."""

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> Buffer:
        """The bytes [start, end) of an object.

        Raises:
            NotFoundError: it was replaced and deleted meanwhile: the item is of no use any more.
            RetryableError: the store or the agent is away.
        """
        ...

    def read_into(self, space: memoryview, ranges: Sequence[tuple[str, int, int, str]]) -> None:
        """Read several (key, start, end, origin) in their order, one after the other into `space`,
        which they fill; some may be read at the same time."""
        ...

    def put(self, parts: Sequence[Buffer]) -> str:
        """Store a new object under a key of this attempt's own, and return the key."""
        ...

    def token_bytes(self, count: int) -> bytes:
        """Return random bytes that can't be guessed: `penstock.ports.random.Random`."""
        ...
