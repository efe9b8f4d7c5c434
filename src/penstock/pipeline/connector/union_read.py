"""Reading one view of table and log as a batch: `option("view", "table+log")`.

A DataFrame is pinned when it is loaded, on the driver's side. Tasks read files of the table, ranges
of the log, or both by buckets of their keys; none holds a secret.
"""

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.table import FileScanTask
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.connector.offsets_wanted import TopicRange
from penstock.pipeline.connector.read import connection, tasks_at_a_time
from penstock.pipeline.connector.read_plan import Division, divide
from penstock.pipeline.connector.table_read import chosen_columns, file_groups
from penstock.pipeline.connector.table_types import arrow_schema, fit
from penstock.pipeline.connector.union_filters import UnionFilters, union_filters
from penstock.pipeline.connector.union_options import UnionReadOptions
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.tables.pins import pin_once
from penstock.pipeline.tables.union import Union, UnionSettings, find_topic, load_union

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class UnionPartition(InputPartition):
    """The work of one task; goes to executors as it is.

    Args:
        plan: a pickled `Union` and its filters, the same for all tasks of a read.
        files: pickled `FileScanTask`s.
        ranges: of the log, where the table is appended to.
        changes: records as `newest_of_log` gives them, in Arrow's stream format, of the files'
            buckets; empty: none.
    """

    def __init__(
        self,
        plan: bytes,
        api: ClientOptions,
        *,
        files: bytes = b"",
        ranges: Sequence[Range] = (),
        changes: bytes = b"",
    ) -> None:
        super().__init__(None)
        self.plan = plan
        self.api = api
        self.files = files
        self.ranges = tuple(ranges)
        self.changes = changes


class UnionReader(DataSourceReader):
    """Reads a view.

    Args:
        union: as it was pinned when the DataFrame was loaded; None: it is pinned when it is
            planned, since the user has said its columns.
    """

    def __init__(
        self, options: UnionReadOptions, union: Union | None, schema: "StructType"
    ) -> None:
        self._options = options
        self._union = union
        self._schema = schema
        self._filters: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        # Tasks have their own part; what the filters left of the whole isn't theirs to know.
        return self.__dict__ | {"_filters": [], "_union": None}

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        options = self._options
        with PipelineClient(options.api) as client:
            union = self._union or pin_view(client, options)
            filters = union_filters(self._filters, prefix=union.prefix, is_upsert=union.is_upsert)
            plan = task_plan(union, filters)
            if union.is_upsert and union.ranges:
                return list(_by_key(client, options, union, filters, plan))
            files = _stored(union, filters)
            return [
                *of_files(options, files, plan),
                *of_log(client, options, union, filters, plan),
            ]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Read the rows of one task, as Arrow batches."""
        return read_union(partition, self._schema)


class FilteringUnionReader(UnionReader):
    """A read that heeds filters: only where the user says that it may, as `FilteringReader`."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        """Leave out what they exclude. Spark checks them all again."""
        self._filters = list(filters)
        return filters


def union_reader(
    options: UnionReadOptions, union: Union | None, schema: "StructType"
) -> UnionReader:
    """Return the reader that the options ask for."""
    kind = FilteringUnionReader if options.pushes_filters else UnionReader
    return kind(options, union, schema)


def pinned_union(options: UnionReadOptions) -> "tuple[Union, StructType]":
    """Pin a view as it is now; it, and the columns of a read.

    Raises: as `load_union`.
    """
    with PipelineClient(options.api) as client:
        union = pin_view(client, options)
    return union, chosen_columns(union.schema, options.columns)


def pin_view(client: PipelineClient, options: UnionReadOptions) -> Union:
    """Pin a topic, then load its view. Raises: as `load_union`."""
    topic = find_topic(client, options.topic)
    # Nothing tells a Python source that a query is over: the pin ends with its lease.
    pin = pin_once(client, topic.topic_id, lease_ms=options.lease_ms)
    return load_union(client, union_settings(options), topic.topic_id, pin=pin)


def union_settings(options: UnionReadOptions) -> UnionSettings:
    """Return what the options say of the view."""
    return UnionSettings(
        topic=options.topic,
        catalog=options.catalog,
        table=options.table,
        registry=options.registry,
        fails_on_loss=options.fails_on_loss,
    )


def task_plan(union: Union, filters: UnionFilters) -> bytes:
    """Return what all tasks of a read share."""
    return pickle.dumps((union.for_tasks(), filters.rows))


def of_files(
    options: UnionReadOptions, files: Sequence[FileScanTask], plan: bytes
) -> Iterator[InputPartition]:
    """The tasks that read files."""
    for group in file_groups(files, options.partition_bytes):
        yield UnionPartition(plan, options.api, files=pickle.dumps(group))


def of_log(
    client: PipelineClient,
    options: UnionReadOptions,
    union: Union,
    filters: UnionFilters,
    plan: bytes,
) -> Iterator[InputPartition]:
    """The tasks that read the log's part."""
    wanted = [
        TopicRange(
            topic=union.topic,
            topic_id=cut.topic_id,
            partition=cut.partition,
            start=cut.start,
            end=cut.end,
            size_bytes=size * (cut.end - cut.start) // (one.end - one.start),
        )
        for one, size in zip(union.ranges, union.range_bytes, strict=True)
        if (cut := filters.cut(one)) is not None
    ]
    division = Division(
        parallelism=tasks_at_a_time(options.parallelism), task_bytes=options.partition_bytes
    )
    for task in divide(wanted, division, client.runs):
        ranges = [Range(one.topic_id, one.partition, one.start, one.end) for one in task]
        yield UnionPartition(plan, options.api, ranges=ranges)


def read_union(partition: InputPartition, schema: "StructType") -> Iterator["pa.RecordBatch"]:
    """The rows of one task, as Arrow batches."""
    from penstock.pipeline.tables.union_rows import logged_rows, merged_rows, stored_rows

    if not isinstance(partition, UnionPartition):
        # Spark's own, which stands for "nothing to read" where there are no partitions.
        return
    # Made by our own plan.
    union, rows_filter = pickle.loads(partition.plan)  # noqa: S301
    files: list[FileScanTask] = pickle.loads(partition.files) if partition.files else []  # noqa: S301
    names = [field.name for field in schema.fields]
    store = union.open_files()
    if partition.changes:
        changes = _from_stream(partition.changes)
        found = merged_rows(union, store, files, changes, names, rows_filter)
    elif partition.ranges:
        client, objects = connection(partition.api)
        found = logged_rows(client, objects, union, partition.ranges, names, rows_filter)
    else:
        found = stored_rows(union, store, files, names, rows_filter)
    target = arrow_schema(schema)
    for rows in found:
        for batch in rows.to_batches():
            yield fit(batch, target)


def _stored(union: Union, filters: UnionFilters) -> list[FileScanTask]:
    from penstock.pipeline.tables.union_rows import plan_files

    return plan_files(union, union.open_files(), filters.rows)


def _by_key(
    client: PipelineClient,
    options: UnionReadOptions,
    union: Union,
    filters: UnionFilters,
    plan: bytes,
) -> Iterator[InputPartition]:
    """Buckets with changes, each whole in one task; the files of others as they come."""
    import pyarrow as pa

    from penstock.pipeline.tables.union_rows import (
        by_bucket,
        files_by_bucket,
        newest_of_log,
        plan_files,
    )

    with ObjectAccess(client) as objects:
        changed = by_bucket(union, newest_of_log(client, objects, union))
    stored = files_by_bucket(union, plan_files(union, union.open_files(), filters.rows))
    untouched = [
        file for bucket, files in stored.items() if bucket not in changed for file in files
    ]
    yield from of_files(options, untouched, plan)
    sizes = {
        bucket: rows.nbytes + sum(file.file.file_size_in_bytes for file in stored.get(bucket, ()))
        for bucket, rows in changed.items()
    }
    goal = min(
        options.partition_bytes, sum(sizes.values()) // tasks_at_a_time(options.parallelism) + 1
    )
    for buckets in _gathered(sizes, goal):
        files = [file for bucket in buckets for file in stored.get(bucket, ())]
        changes = pa.concat_tables([changed[bucket] for bucket in buckets])
        yield UnionPartition(plan, options.api, files=pickle.dumps(files), changes=_stream(changes))


def _gathered(sizes: dict[int, int], goal: int) -> Iterator[list[int]]:
    """Buckets of about so many bytes together."""
    group: list[int] = []
    size = 0
    for bucket, size_bytes in sorted(sizes.items()):
        if group and size + size_bytes > goal:
            yield group
            group, size = [], 0
        group.append(bucket)
        size += size_bytes
    if group:
        yield group


def _stream(rows: "pa.Table") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    compressed = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, rows.schema, options=compressed) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _from_stream(data: bytes) -> "pa.Table":
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
