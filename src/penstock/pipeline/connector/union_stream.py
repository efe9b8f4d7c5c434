"""`readStream` of one view of table and log: the files of one snapshot, in bounded batches, then
the log from exactly where that snapshot ends.

All that is remembered from batch to batch is in the offsets (docs/formats/stream-offsets.md). The
process that plans renews the pin for as long as the snapshot, or the log that it lacks, is needed;
a query that is started again takes the pin over that its checkpoint names.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyiceberg.table import FileScanTask
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.model.errors import (
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
)
from penstock.model.table_names import PIN_JOB
from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.connector.offsets import (
    StreamOffsets,
    TableOffsets,
    TopicOffsets,
    from_json,
    to_json,
)
from penstock.pipeline.connector.stream import HAS_LIMITS, StreamPlanner
from penstock.pipeline.connector.union_filters import union_filters
from penstock.pipeline.connector.union_options import UnionReadOptions, log_options
from penstock.pipeline.connector.union_read import (
    of_files,
    of_log,
    pin_view,
    read_union,
    task_plan,
    union_settings,
)
from penstock.pipeline.connector.union_stream_plan import (
    advance_table,
    check_same_view,
    files_between,
)
from penstock.pipeline.lease import JobLease
from penstock.pipeline.tables.pins import PIN_AGE_MS
from penstock.pipeline.tables.stored_order import StoredFile, sum_of
from penstock.pipeline.tables.union import Union
from penstock.pipeline.tables.union_stream import (
    at_snapshot,
    check_appended,
    follow_schemas,
    ordered_files,
    snapshot_is_gone,
)
from penstock.system.heard import Cause, heard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)


class UnionStreamPlanner:
    """The driver's side of a stream of table and log. It lives as long as the query runs.

    Args:
        view: as it was pinned when the DataFrame was loaded; None: the user has said its columns.
        columns: the DataFrame's.
    """

    def __init__(
        self, options: UnionReadOptions, view: Union | None, columns: Sequence[str]
    ) -> None:
        self._options = options
        self._settings = union_settings(options)
        self._view = view
        self._columns = tuple(columns)
        self._takes_all = view is not None and options.columns is None
        self._log = StreamPlanner(log_options(options))
        self._client = PipelineClient(options.api)
        self._initial: StreamOffsets | None = None
        self._pin: JobLease | None = None
        self._caught_up_at: Mapping[int, int] | None = None
        self._files: tuple[int, list[FileScanTask], list[StoredFile]] | None = None

    def initial(self) -> StreamOffsets:
        """Return the start of a query without a checkpoint: the newest snapshot, unread."""
        if self._initial is None:
            self._initial = self._begin()
        return self._initial

    def _begin(self) -> StreamOffsets:
        view = self._loaded()
        if not self._client.is_job_open(view.pin):
            # It was loaded long ago.
            self._view = view = pin_view(self._client, self._options)
        snapshot_id = view.metadata.current_snapshot_id or 0
        _, files = self._ordered(view, snapshot_id)
        table = TableOffsets(
            name=view.table,
            snapshot_id=snapshot_id,
            files=len(files),
            files_sum=sum_of(files),
            read=0,
            pin=view.pin,
        )
        topic = TopicOffsets(topic_id=view.topic_id, partitions=view.begins)
        return StreamOffsets(topics={view.topic: topic}, initial=True, table=table)

    def freeze(self) -> None:
        """From now on the stream ends where the log ends now."""
        self._log.freeze()

    def advance(self, start: StreamOffsets, *, rows_max: int | None) -> StreamOffsets:
        """Return the end of the batch that begins at `start`; `start`: there is no batch yet."""
        table = self._same_view(start)
        if not table.is_read:
            pin = self._hold(table)
            _, files = self._snapshot(table)
            end = advance_table(start, files, rows_max=rows_max, files_max=self._options.files_max)
            assert end.table is not None
            return replace(end, table=replace(end.table, pin=pin))
        pin = self._hold(table) if table.pin and not self._is_caught_up(start) else 0
        if not pin:
            self._let_loads_pin_go(0)
        plain = replace(start, table=None)
        end = self._log.advance(plain, rows_max=rows_max, rows_min=None)
        return start if end is plain else replace(end, table=replace(table, pin=pin))

    def partitions(self, start: StreamOffsets, end: StreamOffsets) -> list[InputPartition]:
        """The tasks of a batch."""
        if start == end:
            return []
        table = self._same_view(end)
        self._same_view(start)
        places = files_between(start, end)
        view = self._loaded()
        filters = union_filters([], prefix=view.prefix, is_upsert=False)
        if places:
            self._hold(table)
            files, _ = self._snapshot(table)
            plan = task_plan(view, filters)
            return list(of_files(self._options, files[places.start : places.stop], plan))
        found = self._log.ranges(replace(start, table=None), replace(end, table=None))
        ranges = [Range(one.topic_id, one.partition, one.start, one.end) for one in found]
        view = self._followed(view, ranges)
        view = replace(
            view,
            ranges=tuple(ranges),
            range_bytes=tuple(one.size_bytes for one in found),
            tolerates_cleaning=True,
        )
        return list(of_log(self._client, self._options, view, filters, task_plan(view, filters)))

    def latest(self) -> StreamOffsets | None:
        """Return the log's ends, as last asked for; for a query's progress."""
        return self._log.latest() if self._log.latest().topics else None

    def close(self) -> None:
        """Close the connections. The pin is left to the query that goes on."""
        if self._pin is not None:
            self._pin.leave()
        self._log.close()
        self._client.close()

    # -- the view ----------------------------------------------------------------------------------

    def _loaded(self) -> Union:
        if self._view is None:
            self._view = pin_view(self._client, self._options)
        check_appended(self._view)
        missing = set(self._columns) - {field.name for field in self._view.schema.fields}
        if missing:
            raise InvalidRequestError(
                "read stream",
                f"column {min(missing)!r}",
                f"table {self._view.table} hasn't got it",
            )
        return self._view

    def _same_view(self, offsets: StreamOffsets) -> TableOffsets:
        return check_same_view(offsets, topic=self._options.topic, table=self._loaded().table)

    def _snapshot(self, table: TableOffsets) -> tuple[list[FileScanTask], list[StoredFile]]:
        """The files of a checkpoint's snapshot, which the table still has."""
        view = at_snapshot(self._loaded(), self._settings, table.snapshot_id)
        tasks, files = self._ordered(view, table.snapshot_id)
        if (len(files), sum_of(files)) != (table.files, table.files_sum):
            raise snapshot_is_gone(table.name, table.snapshot_id)
        return tasks, files

    def _ordered(
        self, view: Union, snapshot_id: int
    ) -> tuple[list[FileScanTask], list[StoredFile]]:
        if self._files is None or self._files[0] != snapshot_id:
            self._files = (snapshot_id, *ordered_files(view))
        return self._files[1], self._files[2]

    def _followed(self, view: Union, ranges: Sequence[Range]) -> Union:
        """The view with what newer schemas in the ranges need."""
        followed = follow_schemas(self._client, view, self._settings, ranges)
        before = {field.name for field in view.schema.fields}
        added = [field.name for field in followed.schema.fields if field.name not in before]
        if added and self._takes_all:
            raise InvalidRequestError(
                "read stream",
                f"topic {self._options.topic!r}",
                f"a newer schema came, with {', '.join(added)}, after the query had begun",
                "start the query again from its checkpoint: the columns are there then; or name "
                "the wanted ones by the option columns",
            )
        self._view = followed
        return followed

    # -- the pin -----------------------------------------------------------------------------------

    def _hold(self, table: TableOffsets) -> int:
        """Renew the checkpoint's pin from now on, or a new one where it is over; its number."""
        if self._pin is not None:
            return self._pin.job
        lease = JobLease(
            self._client,
            kind=PIN_JOB,
            name=self._loaded().topic_id,
            lease_ms=self._options.lease_ms,
            age_max_ms=PIN_AGE_MS,
        )
        try:
            lease.take_over(table.pin)
        except (FencedError, NotFoundError) as error:
            lease.__enter__()
            message = f"the pin {table.pin} of snapshot {table.snapshot_id} is over"
            heard(Cause.JOB_LEASE, error, logger, message)
        self._pin = lease
        self._let_loads_pin_go(lease.job)
        return lease.job

    def _let_loads_pin_go(self, held: int) -> None:
        """End the pin that `load()` opened, where the checkpoint has another or needs none."""
        view = self._loaded()
        if view.pin in (0, held):
            return
        self._view = replace(view, pin=0)
        try:
            self._client.close_job(view.pin)
        except PenstockError as error:
            heard(Cause.JOB_LEASE, error, logger, f"job {view.pin} ends with its lease")

    def _is_caught_up(self, start: StreamOffsets) -> bool:
        """Whether the stream has come to where the log ended when it had read the table: from
        there on it is a stream of the log as any, and the pin ends."""
        if self._caught_up_at is None:
            (topic,) = self._log.newest().topics.values()
            self._caught_up_at = topic.partitions
        (known,) = start.topics.values()
        caught_up = all(
            known.partitions.get(partition, 0) >= end
            for partition, end in self._caught_up_at.items()
        )
        if caught_up and self._pin is not None:
            self._pin.close()
            self._pin = None
        return caught_up


class _UnionStreamReader(DataSourceStreamReader):
    """The reader, of which tasks get the columns alone."""

    def __init__(self, options: UnionReadOptions, view: Union | None, schema: "StructType") -> None:
        self._options = options
        self._view = view
        self._schema = schema
        self._planner: UnionStreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the reader to tasks, which have files and ranges of their own.
        return self.__dict__ | {"_view": None, "_planner": None}

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The rows of one task."""
        return read_union(partition, self._schema)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a query without a checkpoint."""
        return to_json(self._plan.initial())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch."""
        return self._plan.partitions(from_json(start), from_json(end))

    def stop(self) -> None:
        """End the query on the driver's side."""
        if self._planner is not None:
            self._planner.close()

    @property
    def _plan(self) -> UnionStreamPlanner:
        if self._planner is None:
            columns = [field.name for field in self._schema.fields]
            self._planner = UnionStreamPlanner(self._options, self._view, columns)
        return self._planner


if HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class UnionStreamReader(_UnionStreamReader, SupportsTriggerAvailableNow):
        """For Spark 4.2 and later, whose engine hands over start and limit."""

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            """Return the end of the batch that begins at `start`."""
            rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            before = from_json(start)
            end = self._plan.advance(before, rows_max=rows_max)
            return start if end is before else to_json(end)

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            """Return the batch size of the options."""
            rows_max = self._options.rows_max
            return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            """Return the log's end, for the query's progress."""
            latest = self._plan.latest()
            return None if latest is None else to_json(latest)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """End where the log ends now."""
            self._plan.freeze()


def union_stream_reader(
    options: UnionReadOptions, view: Union | None, schema: "StructType"
) -> DataSourceStreamReader:
    """Return the reader of a stream of table and log.

    Raises:
        InvalidRequestError: the table has one row per key; or this Spark does not say where a
            batch begins.
    """
    if not HAS_LIMITS:
        raise InvalidRequestError(
            "read stream",
            "option view",
            "a stream of table and log needs Spark 4.2 or later: 4.1 does not say where the first "
            "batch after a restart begins",
            "read it by spark.read, or stream the log alone: leave the option view out",
        )
    if view is not None:
        check_appended(view)
    return UnionStreamReader(options, view, schema)
