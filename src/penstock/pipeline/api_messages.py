"""Pipeline jobs and agents exchange these messages over HTTP: docs/formats/pipeline-api.md. Pure.

Messages are JSON. Fields are only ever added, with a default; a field's meaning changes only with
`API_VERSION`. No message holds a secret except `Accesses`, which is an answer to a process that is
about to read or write an object, and which belongs into no plan, partition, log or checkpoint.
"""

from typing import Final

from msgspec import Struct

API_VERSION: Final = 1
PREFIX: Final = "/v1/pipeline"

INFO_PATH: Final = PREFIX + "/info"
JOBS_PATH: Final = PREFIX + "/jobs"
TOPICS_PATH: Final = PREFIX + "/topics"
OFFSETS_PATH: Final = PREFIX + "/offsets"
RUNS_PATH: Final = PREFIX + "/runs"
RECORDS_PATH: Final = PREFIX + "/records"
ACCESSES_PATH: Final = PREFIX + "/accesses"
OBJECTS_PATH: Final = PREFIX + "/objects"
PRODUCERS_PATH: Final = PREFIX + "/producers"
REPLACE_PATH: Final = PREFIX + "/replace"
WRITE_PATH: Final = PREFIX + "/write"
WRITERS_PATH: Final = PREFIX + "/writers"
TABLES_PATH: Final = PREFIX + "/tables"
STORED_PATH: Final = PREFIX + "/stored"

NEXT_OFFSET_HEADER: Final = "penstock-next-offset"
RUN_FIELDS: Final = 8
"""Integers per run in `RunPage.rows`."""
ABORTED_FIELDS: Final = 4
"""Integers per transaction in `RunPage.aborted`."""
LEASE_MS_MAX: Final = 3_600_000
"""Agents give no job a longer lease."""
ITEMS_MAX: Final = 10_000
"""The greatest number of items (keys, partitions, times) of a call."""


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all messages: a JSON object."""


class Info(Message, frozen=True):
    """Whom one talks to. `objects`: how objects are reached: "agent" (through it alone) or
    "presigned"; `objects_url` is the store without credentials, for executors that have their own
        ("" where the store has no such URL)."""

    cluster_id: str
    version: str
    api_version: int
    feature_level: int
    position: int
    time_ms: int
    objects: str
    objects_url: str = ""
    block_bytes: int = 4 << 20


# -- jobs ----------------------------------------------------------------------------------------


class JobRequest(Message, frozen=True):
    """Register a job (`penstock.state.commands.OpenJob`). Times in ms; the agent bounds both."""

    kind: str
    name: str
    lease_ms: int = 300_000
    age_max_ms: int = 86_400_000


class JobOpen(Message, frozen=True):
    """A registered job: what is planned at `position` or later stays readable while it is open."""

    job: int
    position: int
    time_ms: int
    lease_ms: int


class JobState(Message, frozen=True):
    """Says whether a job is open: neither its driver nor its lease has ended it."""

    is_open: bool


class OpenPipelineJob(Message, frozen=True):
    """A job that is open. `opened_ms`: journal time; see `JobRequest`."""

    job: int
    kind: str
    name: str
    opened_ms: int


class Jobs(Message, frozen=True):
    """All open jobs, the oldest first: at a head of the journal read after the request came."""

    jobs: list[OpenPipelineJob]


# -- what there is -------------------------------------------------------------------------------


class TopicsRequest(Message, frozen=True):
    """Asks for topics: by name; or by a Python regular expression, `pattern`, which the whole name
    must match; or by id; without any of the three, for all. Unknown topics are left out of the
    answer."""

    names: list[str] | None = None
    topic_ids: list[str] | None = None
    pattern: str | None = None


class PartitionState(Message, frozen=True):
    """Offsets of one partition. `clean_end`: compacted by key below it; -1: never. `epoch_starts`:
    leader epochs and the offsets that they begin at; none: it was never restored.
    `last_stable`: last stable offset; -1: an agent of an older release, which has no transactions.
    """

    log_start: int
    high_watermark: int
    size_bytes: int
    clean_end: int = -1
    epoch_starts: list[tuple[int, int]] = []
    last_stable: int = -1


class TopicState(Message, frozen=True):
    """A topic. `topic_id`: 32 hexadecimal digits; `configs`: all in force, defaults too."""

    name: str
    topic_id: str
    configs: dict[str, str]
    partitions: list[PartitionState]


class Topics(Message, frozen=True):
    """At a head of the journal that was read after the request came. `level`: the feature level
    that is on; 0: an agent of an older release, which doesn't say."""

    position: int
    time_ms: int
    topics: list[TopicState]
    level: int = 0


class OffsetsRequest(Message, frozen=True):
    """Holds for each (topic id, partition, timestamp in ms) the first offset from then on."""

    items: list[tuple[str, int, int]]


class Offsets(Message, frozen=True):
    """Holds for each item; -1: no record is that new."""

    offsets: list[int]


class Range(Message, frozen=True, array_like=True):
    """Offsets [start, end) of a partition."""

    topic_id: str
    partition: int
    start: int
    end: int


class RunsRequest(Message, frozen=True):
    """Asks for the places of records of `ranges`, or of everything (None), after the last page."""

    ranges: list[Range] | None = None
    after: str = ""
    limit: int = 10_000
    with_wal: bool = True
    """Whether runs that lie in WALs are wanted; jobs on objects do without."""
    aborted: bool = False
    """Whether aborted transactions are wanted; with `ranges` alone."""


class RunPage(Message, frozen=True):
    """Runs by partition and offset; from one moment, at `position` or later. The next page is of a
    later one: what was replaced between them overlaps, or is in neither.

    `rows`: flat, RUN_FIELDS integers per run: index in `partitions`, base offset, end offset,
    index in `object_keys` (-1: in a WAL, read it by RECORDS_PATH), byte position, length in bytes,
    max timestamp in ms, batch count. With `ranges` a run that overlaps one is listed whole.
    `partitions`: (topic id, partition). `object_raw[i]`: not 0: base offsets inside aren't final
    (docs/formats/segment.md), and it is 1 more than their batches' leader epoch.
    `object_origins[i]`: "" or the store of another cluster, whose objects are read through the
    agent. `after`: of the next page; "": this is the last. `sums`: of each run's batches
    (`penstock.records.sums`), -1: it isn't known; empty: of none. `aborted`: flat, ABORTED_FIELDS
    integers per transaction that was aborted among the page's runs: index in `partitions`, producer
    id, offsets of its first record and of its marker.
    """

    position: int
    partitions: list[tuple[str, int]]
    object_keys: list[str]
    object_bytes: list[int]
    object_raw: list[int]
    object_origins: list[str]
    rows: list[int]
    after: str = ""
    sums: list[int] = []
    aborted: list[int] = []


class ProducersRequest(Message, frozen=True):
    """Asks for the active producers of partitions: (topic id, partition)."""

    partitions: list[tuple[str, int]]


class Producers(Message, frozen=True):
    """Holds for each partition flat triples: producer id, epoch, last sequence."""

    producers: list[list[int]]


# -- objects -------------------------------------------------------------------------------------


class AccessRequest(Message, frozen=True):
    """Asks how to read (`GET`) or write (`PUT`) objects. Keys to write must be an open job's."""

    method: str
    keys: list[str]
    seconds: int = 900


class Accesses(Message, frozen=True):
    """Holds for each key a presigned URL, or "": through the agent, at OBJECTS_PATH/KEY."""

    urls: list[str]


class Stored(Message, frozen=True):
    """Segment objects below one of the store's 256 prefixes, as the store lists them, and those
    that the journal names there. `sizes`: the store's, in bytes; -1: it is not there. `states`: per
    key one of the letters below."""

    keys: list[str]
    sizes: list[int]
    states: str


STORED_LIVE: Final = "L"
"""Runs name it."""
STORED_CONDEMNED: Final = "C"
"""No run names it any more; it will be deleted."""
STORED_JOB: Final = "J"
"""The object is of an open job, which may still commit it."""
STORED_UNKNOWN: Final = "U"
"""The journal doesn't know it: an upload that is under way, or an orphan."""


# -- commits -------------------------------------------------------------------------------------


class OutputObject(Message, frozen=True, array_like=True):
    """An object that was put."""

    key: str
    size_bytes: int


class ReplacedPartition(Message, frozen=True):
    """The same as `penstock.state.pipeline_commands.ReplacedPartition`, by topic id."""

    topic_id: str
    partition: int
    inputs: list[int]
    outputs: list[int]
    clean_end: int = -1
    sums: list[int] = []
    merged: bool = False
    markers: list[int] = []


class ReplaceRequest(Message, frozen=True):
    """The same as `penstock.state.pipeline_commands.ReplaceRuns`."""

    job: int
    n: int
    input_keys: list[str]
    objects: list[OutputObject]
    partitions: list[ReplacedPartition]


class Replaced(Message, frozen=True):
    """Holds per partition "" (done), or input_changed, invalid_replacement, unknown_partition."""

    codes: list[str]


class WriteRun(Message, frozen=True):
    """The same as `penstock.state.pipeline_commands.WriteRun`, by topic id.

    `batches` flat, 6 integers each: length in bytes, record count, max timestamp in ms as the
    difference to the batch before (the first: to 0), producer id, producer epoch, base sequence
        (-1, -1, -1 without one); `crcs`: the CRC-32C of each batch, 4 bytes big-endian; empty: not
        given.
    """

    topic_id: str
    partition: int
    object: int
    position: int
    batches: list[int]
    crcs: bytes = b""


class WriteRequest(Message, frozen=True):
    """The same as `penstock.state.pipeline_commands.CommitWrite`."""

    job: int
    writer_id: str
    batch_id: int
    incarnation: str
    objects: list[OutputObject]
    runs: list[WriteRun]


class Written(Message, frozen=True):
    """Offsets given: `ranges` of (topic id, partition, base offset, end offset). `repeated`: this
    batch had been committed before, and these are its first offsets."""

    ranges: list[Range]
    repeated: bool = False


class Writer(Message, frozen=True):
    """The state's entry for a writer: GET WRITERS_PATH/ID; 404 when the writer never wrote."""

    writer_id: str
    incarnation: str
    batch_id: int
    time_ms: int


# -- tables --------------------------------------------------------------------------------------


class TableProgress(Message, frozen=True):
    """A table's progress in a topic. `offsets`: (partition, next offset)."""

    topic_id: str
    table: str
    offsets: list[tuple[int, int]]
    snapshot_id: int = -1
    state: str = ""
    time_ms: int = 0


class Tables(Message, frozen=True):
    """All that are known, or those of one topic."""

    tables: list[TableProgress]


class Problem(Message, frozen=True):
    """The body of every answer that reports a failure. `kind` says what the caller does:
    retry (503: the same again, at this agent or another), refused (409: don't send it again),
    not_found (404), invalid (400), secret (401: a credential is needed), denied (403: the access
    rules don't allow it). `reason`: a Refusal's name, where it is one."""

    error: str
    kind: str
    reason: str = ""
