"""One view of table and log in this process, as Arrow batches: pinned for as long as it is read."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression, parser
from pyparsing import ParseException

from penstock.model.errors import InvalidRequestError
from penstock.model.table_names import PIN_JOB
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.tables.union import Union, UnionSettings, find_topic, load_union
from penstock.pipeline.tables.union_rows import (
    arrow_filter,
    by_bucket,
    files_by_bucket,
    logged_rows,
    merged_rows,
    newest_of_log,
    plan_files,
    stored_rows,
    view_schema,
)


@contextmanager
def scan_union(
    client: PipelineClient,
    settings: UnionSettings,
    *,
    columns: Sequence[str] | None = None,
    row_filter: str | BooleanExpression | None = None,
) -> Iterator[pa.RecordBatchReader]:
    """The rows of a view, to be read before the context ends, which ends the pin, too.

    Args:
        columns: wanted ones, in their order; None: all.
        row_filter: PyIceberg's, or its text.

    Raises:
        InvalidRequestError: no such column, or not a filter of the table's columns.
        As `load_union` and `penstock.pipeline.tables.union_rows`, the latter while it is read.
    """
    topic = find_topic(client, settings.topic)
    with (
        JobLease(client, kind=PIN_JOB, name=topic.topic_id),
        ObjectAccess(client) as objects,
    ):
        union = load_union(client, settings, topic.topic_id)
        names = _names(union, columns)
        target = view_schema(union, names)
        wanted = _filter(union, row_filter)
        with closing(_rows(client, objects, union, names, wanted)) as rows:
            yield pa.RecordBatchReader.from_batches(
                target, (batch for table in rows for batch in table.to_batches())
            )


def _names(union: Union, columns: Sequence[str] | None) -> list[str]:
    there = [field.name for field in union.schema.fields]
    missing = sorted(set(columns or ()) - set(there))
    if missing:
        raise InvalidRequestError(
            "read table and log",
            f"column {missing[0]!r}",
            "the table hasn't got it",
            f"there are {', '.join(there)}",
        )
    return there if columns is None else list(columns)


def _filter(union: Union, given: str | BooleanExpression | None) -> BooleanExpression | None:
    try:
        found = parser.parse(given) if isinstance(given, str) else given
        arrow_filter(union.schema, found)
    except (ParseException, TypeError, ValueError) as error:
        raise InvalidRequestError(
            "read table and log",
            "row_filter",
            f"{given} is not a filter of the table's columns: {error}",
        ) from error
    return found


def _rows(
    client: PipelineClient,
    objects: ObjectAccess,
    union: Union,
    names: Sequence[str],
    row_filter: BooleanExpression | None,
) -> Generator[pa.Table, None, None]:
    files = union.open_files()
    if union.is_upsert and union.ranges:
        yield from _by_key(client, objects, union, names, row_filter)
        return
    tasks = plan_files(union, files, row_filter)
    yield from stored_rows(union, files, tasks, names, row_filter)
    yield from logged_rows(client, objects, union, union.ranges, names, row_filter)


def _by_key(
    client: PipelineClient,
    objects: ObjectAccess,
    union: Union,
    names: Sequence[str],
    row_filter: BooleanExpression | None,
) -> Iterator[pa.Table]:
    """The rows of a table with one row per key; the filter comes last, since a stored row that it
    excludes may still be the newest of its key."""
    files = union.open_files()
    keep = arrow_filter(union.schema, row_filter)
    wanted = names if keep is None else [field.name for field in union.schema.fields]
    target = view_schema(union, names)
    changes = newest_of_log(client, objects, union)
    changed = by_bucket(union, changes)
    stored = files_by_bucket(union, plan_files(union, files))
    for bucket in sorted({*stored, *changed}):
        tasks = stored.get(bucket, [])
        found = (
            merged_rows(union, files, tasks, changed[bucket], wanted)
            if bucket in changed
            else stored_rows(union, files, tasks, wanted)
        )
        for rows in found:
            kept = rows if keep is None else rows.filter(keep)
            yield kept.select(target.names)
