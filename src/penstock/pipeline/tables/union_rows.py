"""The rows of one view of table and log: stored ones, the log's, and both by key.

All sides give the columns that are asked for, with the table's types, and none that `row_filter`
excludes.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import LogTruncatedError, read_range
from penstock.pipeline.tables.catalog import translated
from penstock.pipeline.tables.changes import (
    DELETED,
    changed_keys,
    place_names,
    read_changes,
    staged_schema,
)
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.key_identity import key_identity
from penstock.pipeline.tables.newest import newest_rows
from penstock.pipeline.tables.partitioning import transformed
from penstock.pipeline.tables.rows import decode_records
from penstock.pipeline.tables.union import Union, check_not_cleaned
from penstock.pipeline.tables.values import RowReader, fit_rows

logger = logging.getLogger(__name__)

LOG_BYTES_MAX: Final = 512 << 20
"""The greatest size of the log's part of an upsert table, reduced to the newest of each key."""
_HINT: Final = (
    "DeleteRecords, or retention after the pin's end, was faster: read it again, or "
    "failOnDataLoss=false goes on without them"
)
_REDUCE_BYTES: Final = 64 << 20


def view_schema(union: Union, names: Sequence[str] | None = None) -> pa.Schema:
    """The view's columns as Arrow's: those that are named, in that order, or all."""
    plain = _plain(union.schema)
    return plain if names is None else pa.schema([plain.field(name) for name in names])


def plan_files(
    union: Union, files: FileIO, row_filter: BooleanExpression | None = None
) -> list[FileScanTask]:
    """The files of the snapshot that may have rows of the filter, with their deletes."""
    with translated("plan a read", union.table):
        scan = DataScan(
            table_metadata=union.metadata, io=files, row_filter=row_filter or AlwaysTrue()
        )
        return list(scan.plan_files())


def stored_rows(
    union: Union,
    files: FileIO,
    tasks: Sequence[FileScanTask],
    names: Sequence[str],
    row_filter: BooleanExpression | None = None,
) -> Iterator[pa.Table]:
    """The rows of files; one file at a time is in memory."""
    target = view_schema(union, names)
    with translated("read", union.table):
        scan = ArrowScan(
            union.metadata, files, union.schema.select(*names), row_filter or AlwaysTrue()
        )
        for task in tasks:
            for batch in scan.to_record_batches([task]):
                if batch.num_rows:
                    yield fit_rows(pa.Table.from_batches([batch]), target)


def logged_rows(
    client: PipelineClient,
    objects: ObjectAccess,
    union: Union,
    ranges: Sequence[Range],
    names: Sequence[str],
    row_filter: BooleanExpression | None = None,
) -> Iterator[pa.Table]:
    """The rows of ranges of the log, of a table that is appended to.

    Raises:
        ConflictError: compaction by key has cleaned them since the pin.
        LogTruncatedError, NotFoundError: they are gone.
    """
    reader = RowReader(union.plan, arrow_schema(union.schema))
    target = view_schema(union, names)
    keep = arrow_filter(union.schema, row_filter)
    for wanted in ranges:
        for records in _records(client, objects, union, wanted):
            read = reader.read(records)
            assert not read.unknown, read.unknown
            rows = read.rows if keep is None else read.rows.filter(keep)
            if rows.num_rows:
                yield fit_rows(rows, target)
    check_not_cleaned(client, union, ranges)


def newest_of_log(client: PipelineClient, objects: ObjectAccess, union: Union) -> pa.Table:
    """The log's part of a table with one row per key: the newest record of each, tombstones too,
    with the column DELETED.

    Raises:
        InvalidRequestError: more than LOG_BYTES_MAX.
        As `logged_rows`.
    """
    schema = arrow_schema(union.schema)
    staged = staged_schema(schema)
    reader = RowReader(union.plan, schema)
    gathered = staged.empty_table()
    reduce_bytes = _REDUCE_BYTES
    for wanted in union.ranges:
        for records in _records(client, objects, union, wanted):
            keyed = records.filter(records.column("key").is_valid())
            rows, _, unknown = read_changes(keyed, reader, staged)
            assert not unknown, unknown
            gathered = pa.concat_tables([gathered, rows])
            if gathered.nbytes > reduce_bytes:
                gathered = newest_rows(gathered, prefix=union.prefix)
                _check_size(union, gathered)
                reduce_bytes = max(_REDUCE_BYTES, 2 * gathered.nbytes)
    check_not_cleaned(client, union, union.ranges)
    gathered = newest_rows(gathered, prefix=union.prefix)
    _check_size(union, gathered)
    return gathered


def merged_rows(
    union: Union,
    files: FileIO,
    tasks: Sequence[FileScanTask],
    changes: pa.Table,
    names: Sequence[str],
    row_filter: BooleanExpression | None = None,
) -> Iterator[pa.Table]:
    """The rows of files and changes of the same buckets, one of each key.

    Args:
        tasks: all that may have a row of the changes' keys.
        changes: as `newest_of_log` gives them.
        row_filter: about keys alone: another would leave out stored rows that count.
    """
    key = f"{union.prefix}key"
    target = view_schema(union, names)
    wanted = list(dict.fromkeys([*names, *place_names(union.prefix)]))
    keys = key_identity(changes.column(key))
    places = changes.select(place_names(union.prefix))
    is_beaten = np.zeros(changes.num_rows, dtype=bool)
    for rows in stored_rows(union, files, tasks, wanted, row_filter):
        own = key_identity(rows.column(key))
        is_met = pc.is_in(own, value_set=keys.combine_chunks())
        if pc.any(is_met).as_py():
            met = rows.filter(is_met)
            is_asked = pc.is_in(keys, value_set=key_identity(met.column(key)).combine_chunks())
            stored = fit_rows(met.select(places.column_names), places.schema)
            changed = changed_keys(stored, places.filter(is_asked), prefix=union.prefix)
            is_changed = pc.is_in(keys, value_set=changed)
            is_beaten |= _flags(pc.and_(is_asked, pc.invert(is_changed)))
            rows = rows.filter(pc.invert(pc.is_in(own, value_set=changed)))
        if rows.num_rows:
            yield fit_rows(rows, target)
    rows = changes.filter(pc.and_(pc.invert(changes.column(DELETED)), pa.array(~is_beaten)))
    keep = arrow_filter(union.schema, row_filter)
    if keep is not None:
        rows = rows.filter(keep)
    if rows.num_rows:
        yield fit_rows(rows, target)


def by_bucket(union: Union, changes: pa.Table) -> dict[int, pa.Table]:
    """Changes by the table's buckets."""
    (field,) = union.metadata.spec().fields
    if not changes.num_rows:
        return {}
    buckets = _flags(transformed(changes, field, union.schema))
    return {
        int(bucket): changes.filter(pa.array(buckets == bucket)) for bucket in np.unique(buckets)
    }


def files_by_bucket(union: Union, tasks: Sequence[FileScanTask]) -> dict[int, list[FileScanTask]]:
    """A snapshot's files by the table's buckets.

    Raises:
        InvalidRequestError: another program has written one of other buckets.
    """
    found: dict[int, list[FileScanTask]] = {}
    for task in tasks:
        if task.file.spec_id != union.metadata.default_spec_id:
            raise InvalidRequestError(
                "read table and log", union.table, f"{task.file.file_path} is of other buckets"
            )
        found.setdefault(task.file.partition[0], []).append(task)
    return found


def arrow_filter(schema: Schema, row_filter: BooleanExpression | None) -> Any:
    """A filter as Arrow's expression; None: it excludes nothing."""
    if row_filter is None or row_filter == AlwaysTrue():
        return None
    return expression_to_pyarrow(bind(schema, row_filter, case_sensitive=True), schema)


def _records(
    client: PipelineClient, objects: ObjectAccess, union: Union, wanted: Range
) -> Iterator[pa.Table]:
    """The records of a range that can be rows, as far as no schema is asked."""
    start = wanted.start
    while start < wanted.end:
        rest = Range(wanted.topic_id, wanted.partition, start, wanted.end)
        try:
            for part in read_range(client, objects, rest):
                for records in decode_records(
                    part.body, partition=rest.partition, start=rest.start, end=rest.end
                ):
                    yield records.rows
                start = part.next_offset
            return
        except LogTruncatedError as error:
            if union.fails_on_loss:
                raise LogTruncatedError(
                    union.topic, wanted.partition, error.wanted, error.available, _HINT
                ) from error
            available = min(error.available, wanted.end)
            logger.warning(
                "%s-%d: offsets %d to %d are gone; going on after them",
                union.topic,
                wanted.partition,
                start,
                available - 1,
            )
            start = available


def _plain(schema: Schema) -> pa.Schema:
    """Without the ids of fields, and any column may be null: so a reader has it."""
    return pa.schema([pa.field(field.name, field.type) for field in arrow_schema(schema)])


def _check_size(union: Union, rows: pa.Table) -> None:
    if rows.nbytes > LOG_BYTES_MAX:
        raise InvalidRequestError(
            "read table and log",
            union.table,
            f"the log has {rows.nbytes >> 20} MiB of changed keys beyond it, and a view of one row "
            f"per key takes {LOG_BYTES_MAX >> 20} MiB",
            "penstock pipeline table brings the table up to date",
        )


def _flags(values: Any) -> Any:
    return (
        values.to_numpy(zero_copy_only=False)
        if isinstance(values, pa.Array)
        else (values.to_numpy())
    )
