"""The journal's commands of jobs: leases, replaced runs, writes, tables. See
`penstock.state.commands`. Pure."""

from typing import Final

from msgspec import Struct

from penstock.state.command import Command


class OpenJob(Command, frozen=True, tag="job+"):
    """Register work that reads or writes objects from outside of the agents.

    While it is open, objects condemned after its position are not deleted. Its number is part of
    the names of all objects that it writes, and its commits are refused once it is closed, so that
    what it never committed can then be condemned. Answer: JobOpened.
    """

    kind: str
    """Kind of work: compaction, read, write, table, verify, ..."""
    name: str
    """For people: who runs it."""
    lease_ms: int
    """Any agent may close the job when it wasn't renewed for this time, by journal time. At most a
    week, however much is asked for."""
    age_max_ms: int
    """Past it no renewal is accepted: the bound on how long deletion waits for it. At most 30
    days, however much is asked for."""
    principal: str = ""
    """The principal that has opened it; "": a client whom no authorizer asks. From feature level 6
    on."""


class RenewJob(Command, frozen=True, tag="job~"):
    """It goes on. Answer: Done or Refused (UNKNOWN_JOB, JOB_TOO_OLD)."""

    job: int


class CloseJob(Command, frozen=True, tag="job-"):
    """End a job. Answer: Done, also when there is none; or Refused(JOB_IS_ALIVE)."""

    job: int
    seen_renewed_ms: int = -1
    """-1: its owner ends it. Else: an agent found its lease over, and last saw it renewed then."""


class OutputObject(Struct, frozen=True, array_like=True, kw_only=True):
    """An object that a job has put."""

    key: str
    size_bytes: int


INPUT_FIELDS: Final = 5
"""Integers per run in `ReplacedPartition.inputs`."""
OUTPUT_FIELDS: Final = 7
"""Integers per run in `ReplacedPartition.outputs`."""


class ReplacedPartition(Struct, frozen=True, array_like=True, kw_only=True):
    """Runs of one partition that lie in objects, and what takes their place.

    `inputs`: flat, INPUT_FIELDS integers per run: base offset, end offset, index in the command's
    `input_keys`, byte position, length in bytes; in offset order, all runs that the partition has
    between the first's base offset and the last's end offset.
    `outputs`: flat, OUTPUT_FIELDS integers per run: base offset, end offset, index in the command's
    `objects`, byte position, length, max timestamp in ms, batch count; in offset order, without
    overlap, within the inputs' offsets, up to their end. Below `clean_end` and the log's start
    there may be gaps, as compaction by key leaves them.
    Without inputs there are no outputs, and only `clean_end` is noted.
    """

    partition_key: int
    inputs: list[int]
    outputs: list[int]
    clean_end: int = -1
    """Compacted by key below this offset: all of it, by this and the commits before. -1: nothing
    is said of that."""
    sums: list[int] = []
    """The sum of each output run (`penstock.records.sums`), -1: unknown. Empty: of all of them."""
    merged: bool = False
    """Whether the outputs hold the inputs' records in fewer, larger batches (feature level 5)."""
    markers: list[int] = []
    """Offsets of markers of aborts, below `clean_end`, which the outputs no longer have: nothing of
    their transactions is left (feature level 6)."""


class ReplaceRuns(Command, frozen=True, tag="replace"):
    """Name runs in a job's objects instead of where they lay. Offsets never change.

    Each partition is replaced wholly or not at all; one whose inputs aren't there as listed is
    left as it is. Outputs that end at or below the log's start are left out. Commits of a job are
    numbered from 1 on; the last one sent again gets its first answer, also when that was a refusal
    for its objects. Answer: RunsReplaced, or Refused (UNKNOWN_JOB, OUT_OF_ORDER_COMMIT,
    OBJECT_CONDEMNED, OBJECT_EXISTS, INVALID_OBJECT).
    """

    job: int
    n: int
    input_keys: list[str]
    objects: list[OutputObject]
    partitions: list[ReplacedPartition]


class WriteRun(Struct, frozen=True, array_like=True, kw_only=True):
    """Adjacent batches of one partition in one of a write's objects; `object` is an index in its
    `objects`, `position` and `batches` are as in `RunCommit`."""

    partition_key: int
    object: int
    position: int
    batches: list[int]
    crcs: bytes = b""
    """See `RunCommit`."""


class CommitWrite(Command, frozen=True, tag="write"):
    """Give offsets to the batches of one write: all of them or none, and once per (writer, batch).

    The objects are raw: base offsets inside them aren't final. The writer's last batch sent again
    gets its first answer, whichever job it comes from, and its objects are named by nothing.
    Batches of idempotent producers have to be the next of their sequences. Answer: WriteCommitted,
    or Refused (UNKNOWN_JOB, STALE_WRITE, WRITER_IN_USE, UNKNOWN_PARTITION, OBJECT_CONDEMNED,
    OBJECT_EXISTS, INVALID_OBJECT, MALFORMED, OUT_OF_ORDER_SEQUENCE, FENCED_PRODUCER).
    """

    job: int
    writer_id: str
    batch_id: int
    incarnation: str
    """Incarnation of the writer's checkpoint: another with the same writer id is refused."""
    objects: list[OutputObject]
    runs: list[WriteRun]


class ExpireWriters(Command, frozen=True, tag="writers-"):
    """Forget writers. `writers`: pairs writer id, journal time in ms of the last batch as seen; one
    that has written since is kept. Answer: Done."""

    writers: list[tuple[str, int]]


class SaveTable(Command, frozen=True, tag="table"):
    """Saves how far a table has followed a topic, for which retention waits. All of it: a partition
    that isn't listed counts as not followed. Answer: Done or Refused (UNKNOWN_TOPIC, MALFORMED)."""

    topic_id: bytes
    table: str
    offsets: list[int]
    """Flat pairs partition, next offset."""
    snapshot_id: int = -1
    state: str = ""
    """For people and the next run: JSON that apply doesn't read."""


class DropTable(Command, frozen=True, tag="table-"):
    """Forget how far a table is. Answer: Done."""

    topic_id: bytes
    table: str
