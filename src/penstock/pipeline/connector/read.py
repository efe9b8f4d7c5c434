"""Reading topics as a batch: the plan on the driver, the records on executors.

A partition of the DataFrame says ranges of offsets and how to reach the cluster, and nothing of
where the records lie: a task asks for that when it begins, and again when it finds an object
gone. So a plan never grows old by compaction, holds no secret and no presigned URL.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import Buffer

from penstock.model.errors import InvalidRequestError, NotFoundError, RetryableError
from penstock.pipeline.api_messages import JobRequest, Range
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.connector.losses import Losses, logger
from penstock.pipeline.connector.offsets_wanted import (
    TopicRange,
    check_each,
    choose,
    ends,
    starts,
)
from penstock.pipeline.connector.options import ReadOptions
from penstock.pipeline.connector.read_filters import Pushed, push
from penstock.pipeline.connector.read_plan import Division, divide
from penstock.pipeline.connector.schema import record_batches
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import LogTruncatedError, RangePart, read_range
from penstock.system.heard import Cause, heard
from penstock.system.memory import keep_freed_memory, keep_loaded_objects

if TYPE_CHECKING:
    import pyarrow as pa

JOB_KIND: Final = "read"
PART_BYTES: Final = 8 << 20
"""Stored batches that a task asks for at a time, in bytes."""
KEPT_BYTES: Final = 128 << 20
"""Freed memory that a worker keeps for its next parts, in bytes."""


class ReadPartition(InputPartition):
    """The work of one task: ranges, and how to reach the cluster. Goes to executors as it is."""

    def __init__(self, ranges: Sequence[TopicRange], api: ClientOptions) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.api = api


class PenstockReader(DataSourceReader):
    """A batch read. `partitions` runs on the driver's side, once per query, `read` in each task.

    Args:
        columns: those of the DataFrame, in its order.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """The tasks of this read, by what the cluster has now."""
        api = self._options.api
        with PipelineClient(api) as client:
            _hold(client, self._options)
            ranges = self._ranges(client)
            tasks = divide(ranges, division(self._options), client.runs)
        return [ReadPartition(task, api) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The records of one task."""
        return read_partition(partition, self._options, self._columns)

    def _ranges(self, client: PipelineClient) -> list[TopicRange]:
        options, pushed = self._options, self._pushed
        chosen = choose(options, find_topics(client, options))
        check_each(options, chosen)
        chosen = [one for one in chosen if pushed.takes(one.topic, one.partition)]
        losses = Losses(allowed=not options.fail_on_data_loss)
        first = starts(options, chosen, client.offsets, losses)
        last = ends(options, chosen, client.offsets)
        if pushed.time_ms is not None and chosen:
            found = client.offsets(
                [(one.topic_id, one.partition, pushed.time_ms) for one in chosen]
            )
            first = [
                max(start, offset) if offset >= 0 else end
                for start, end, offset in zip(first, last, found, strict=True)
            ]
        return [
            one.range(max(start, pushed.start), min(end, pushed.end))
            for one, start, end in zip(chosen, first, last, strict=True)
            if max(start, pushed.start) < min(end, pushed.end)
        ]


class FilteringReader(PenstockReader):
    """A batch read that heeds filters: only where the user says that it may.

    Spark (4.1 to 4.3 at least) keeps one plan per DataFrame, not per use of it, and the plan that
    filters made last: `df.where("partition = 1").union(df.where("partition = 2"))` then reads
    partition 2 twice, and a view is read by the filters of the query before. The rows are wrong,
    and nothing tells. With a DataFrame of its own for each use it is right.
    """

    def __getstate__(self) -> dict[str, Any]:
        # Tasks have their ranges; what the filters left of them isn't theirs to know.
        return self.__dict__ | {"_pushed": Pushed()}

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Heed what can be heeded. Returns: what Spark still has to check."""
        self._pushed, left = push(filters)
        return left


def batch_reader(options: ReadOptions, columns: Sequence[str]) -> PenstockReader:
    """The reader that the options ask for."""
    return (FilteringReader if options.pushes_filters else PenstockReader)(options, columns)


def find_topics(client: PipelineClient, options: ReadOptions) -> list[Any]:
    """The topics that the options name or whose names match, as they are now."""
    if options.pattern is not None:
        return client.topics(pattern=options.pattern).topics
    return client.topics(names=list(options.names or options.assigned or ())).topics


def tasks_at_a_time(wanted: int | None) -> int:
    """Return the number that a user gave, or that of this machine's cores."""
    return wanted or os.cpu_count() or 1


def division(options: ReadOptions) -> Division:
    """Return how finely to divide a read."""
    return Division(
        parallelism=tasks_at_a_time(options.parallelism),
        task_bytes=options.partition_bytes,
        tasks_min=options.partitions_min,
        task_rows=options.records_max,
    )


def _hold(client: PipelineClient, options: ReadOptions) -> None:
    """Keep objects that the store has now from being deleted for a while.

    No process ends this job: a plan's process ends before its tasks, and tasks don't know of one
    another. The job ends by its lease. Tasks would work without the job, since they ask again for
    the place of runs that moved; the job spares them that.
    """
    if not options.lease_ms:
        return
    try:
        client.open_job(
            JobRequest(
                kind=JOB_KIND, name="spark", lease_ms=options.lease_ms, age_max_ms=options.lease_ms
            )
        )
    except (RetryableError, InvalidRequestError) as error:
        heard(Cause.JOB_LEASE, error, logger, "reading without holding deletion back")


# -- on executors ----------------------------------------------------------------------------------


def read_partition(
    partition: InputPartition, options: ReadOptions, columns: Sequence[str]
) -> Iterator["pa.RecordBatch"]:
    """The records of one task as Arrow batches.

    Raises:
        LogTruncatedError, NotFoundError: records or the topic are gone, and losses aren't allowed.
        CorruptDataError: stored bytes are damaged.
        RetryableError: agents or store don't answer; Spark runs the task again.
    """
    if not isinstance(partition, ReadPartition):
        # Spark's own, which stands for "nothing to read" where there are no partitions.
        return
    client, objects = connection(partition.api)
    for one in partition.ranges:
        yield from _read_one(client, objects, one, options, columns)
    _keep_loaded_once()


@cache
def _keep_loaded_once() -> None:
    # After the first task: by then all is loaded that the next ones need, machine code too.
    keep_loaded_objects()


@lru_cache(maxsize=4)
def connection(api: ClientOptions) -> tuple[PipelineClient, ObjectAccess]:
    """Connections, which last as long as Spark's Python worker, which runs many tasks."""
    keep_freed_memory(KEPT_BYTES)
    client = PipelineClient(api)
    return client, ObjectAccess(client)


def _read_one(
    client: PipelineClient,
    objects: ObjectAccess,
    one: TopicRange,
    options: ReadOptions,
    columns: Sequence[str],
) -> Iterator["pa.RecordBatch"]:
    losses = Losses(allowed=not options.fail_on_data_loss)
    start = one.start
    while start < one.end:
        wanted = Range(one.topic_id, one.partition, start, one.end)
        try:
            for part in _ahead(read_range(client, objects, wanted, bytes_max=PART_BYTES)):
                if part.body:
                    yield from _decoded(part.body, one, start, options, columns)
                start = part.next_offset
            return
        except LogTruncatedError as error:
            available = min(error.available, one.end)
            losses.truncated(one.topic, one.partition, wanted=start, available=available)
            start = available
        except NotFoundError:
            losses.deleted(one.topic)
            return


def _decoded(
    body: Buffer, one: TopicRange, start: int, options: ReadOptions, columns: Sequence[str]
) -> Iterator["pa.RecordBatch"]:
    # Not before a task reads: numba takes a second to load, and a plan needs nothing of it.
    from penstock.kernels import decode as kernel
    from penstock.kernels.index import index_batches

    names = {
        "key": kernel.KEY,
        "value": kernel.VALUE,
        "offset": kernel.OFFSET,
        "timestamp": kernel.TIMESTAMP,
        "timestampType": kernel.TIMESTAMP_TYPE,
        "headers": kernel.HEADERS,
    }
    # The offset is decoded anyhow, and there is always something to count rows by.
    wanted = {kernel.OFFSET, *(names[column] for column in columns if column in names)}
    subject = f"{one.topic}-{one.partition} from offset {start}"
    chunks = kernel.decode_chunks(
        index_batches(body, subject=subject),
        start_offset=start,
        end_offset=one.end,
        columns=kernel.wanted_columns(wanted, headers=False),
        chunk_bytes=options.batch_bytes,
        subject=subject,
    )
    for chunk in chunks:
        yield from record_batches(
            {column: chunk.column(names[column]) for column in columns if column in names},
            rows=chunk.num_rows,
            names=columns,
            topic=one.topic,
            partition=one.partition,
            bytes_max=2 * options.batch_bytes,
        )


def _ahead(parts: Iterator[RangePart]) -> Iterator[RangePart]:
    """The same parts, the next one being read while the last one is decoded."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-read") as thread:
        pending = thread.submit(next, parts, None)
        while (part := pending.result()) is not None:
            pending = thread.submit(next, parts, None)
            yield part
