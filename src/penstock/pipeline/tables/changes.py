"""An executor's parts of an upsert: ranges into changes by bucket, and a bucket's files again.

Changes go from the first tasks to the second through staged Parquet files of the table's location,
sorted by bucket, a row group for each: a shuffle whose driver sees names and numbers alone.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import read_range
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.dead_letters import BadFile, BadWriter
from penstock.pipeline.tables.files import FilesOptions, TableFiles
from penstock.pipeline.tables.key_identity import key_identity
from penstock.pipeline.tables.newest import newest_rows
from penstock.pipeline.tables.parquet import (
    FileTarget,
    PartitionedWriter,
    WrittenFile,
    read_data_file,
)
from penstock.pipeline.tables.partitioning import transformed
from penstock.pipeline.tables.rows import decode_records, split_bad
from penstock.pipeline.tables.values import RowPlan, RowReader, SchemaIds, fit_rows
from penstock.system.randomness import SystemRandom

FOLDER: Final = "penstock-changes"
"""In a table's location."""
DELETED: Final = "penstock_deleted"
_STORED: Final = "penstock_stored"
_REDUCE_BYTES: Final = 64 << 20


class ChangesItem(msgspec.Struct, frozen=True):
    """One task: ranges into changes. `prefix`: of the columns that every record has."""

    api: ClientOptions
    files: FilesOptions
    target: FileTarget
    ranges: list[Range]
    plan: RowPlan
    prefix: str


class ChangesFile(msgspec.Struct, frozen=True):
    """Staged changes. `buckets`: of each row group, in their order; `bytes_of`: their sizes."""

    url: str
    buckets: list[int]
    bytes_of: list[int]


class ChangesResult(msgspec.Struct, frozen=True):
    """The changes that a task staged; the rest is as in `AppendResult`."""

    changes: list[ChangesFile]
    bad: list[BadFile]
    bytes_read: int
    unknown: SchemaIds = SchemaIds()


class MergeItem(msgspec.Struct, frozen=True):
    """One task: a bucket's files with its changes. `changes`: staged files and row groups."""

    files: FilesOptions
    target: FileTarget
    bucket: int
    stored: list[str]
    changes: list[tuple[str, int]]
    prefix: str


class MergeResult(msgspec.Struct, frozen=True):
    """The files that a task wrote, and the stored files that they replace; `rows`: keys that are
    new or changed."""

    files: list[WrittenFile]
    replaced: list[str]
    rows: int


def stage_changes(item: ChangesItem) -> ChangesResult:
    """Read the item's ranges and stage the newest record of each key. Raises: as `append_rows`."""
    attempt = SystemRandom().token_bytes(8).hex()
    files = TableFiles(item.files)
    schema = arrow_schema(item.target.iceberg_schema())
    reader = RowReader(item.plan, schema)
    staged = staged_schema(schema)
    gathered = staged.empty_table()
    bytes_read, reduce_bytes = 0, _REDUCE_BYTES
    unknown = SchemaIds()
    with (
        PipelineClient(item.api) as client,
        ObjectAccess(client) as objects,
        BadWriter(item.target.location, files, name=f"{attempt}-bad") as bad,
    ):
        for wanted in item.ranges:
            for part in read_range(client, objects, wanted):
                bytes_read += len(part.body)
                for records in decode_records(
                    part.body, partition=wanted.partition, start=wanted.start, end=wanted.end
                ):
                    bad.add(records.bad)
                    keyed = split_bad(records.rows, pc.is_null(records.rows["key"]), "no key")
                    bad.add(keyed.bad)
                    rows, wrong, ids = read_changes(keyed.rows, reader, staged)
                    unknown |= ids
                    if unknown:
                        continue
                    bad.add(wrong)
                    gathered = pa.concat_tables([gathered, rows])
                    if gathered.nbytes > reduce_bytes:
                        gathered = newest_rows(gathered, prefix=item.prefix)
                        # Of keys that are all different nothing goes: don't look at each chunk.
                        reduce_bytes = max(_REDUCE_BYTES, 2 * gathered.nbytes)
        if unknown:
            return ChangesResult([], [], bytes_read, unknown)
        gathered = newest_rows(gathered, prefix=item.prefix)
        changes = _stage(gathered, item, files, attempt)
        return ChangesResult(changes, bad.finish(), bytes_read)


def merge_bucket(item: MergeItem) -> MergeResult:
    """Write a bucket's changes, and those of its files again that hold rows which they replace.

    Raises:
        NotFoundError: a file is gone.
    """
    attempt = SystemRandom().token_bytes(8).hex()
    files = TableFiles(item.files)
    schema = arrow_schema(item.target.iceberg_schema())
    staged = staged_schema(schema)
    changes = pa.concat_tables(
        [staged.empty_table()]
        + [fit_rows(_read_group(files, url, group), staged) for url, group in item.changes]
    )
    changes = newest_rows(changes, prefix=item.prefix)
    changes, replaced_keys, touched = _decide(changes, files, item)
    name = f"upsert-{item.bucket:05}-{attempt}"
    with PartitionedWriter(item.target, files, name=lambda n: f"{name}-{n:03}") as writer:
        for url in touched:
            for rows in read_data_file(files, url, item.target):
                rows = fit_rows(rows, schema)
                keys = key_identity(rows.column(f"{item.prefix}key"))
                writer.add(rows.filter(pc.invert(pc.is_in(keys, value_set=replaced_keys))))
        writer.add(fit_rows(changes.filter(pc.invert(changes[DELETED])), schema))
        return MergeResult(writer.finish(), touched, changes.num_rows)


def changed_keys(stored: pa.Table, changes: pa.Table, *, prefix: str) -> pa.Array:
    """The identities of those keys whose change counts, and no stored row.

    Args:
        stored, changes: columns of `place_names`, of the same types.
    """
    contest = pa.concat_tables(
        [
            stored.append_column(_STORED, pa.array([True] * stored.num_rows, pa.bool_())),
            changes.append_column(_STORED, pa.array([False] * changes.num_rows, pa.bool_())),
        ]
    )
    winners = newest_rows(contest, prefix=prefix)
    changed = winners.filter(pc.invert(winners.column(_STORED))).column(f"{prefix}key")
    return key_identity(changed).combine_chunks()


def read_changes(
    records: pa.Table, reader: RowReader, staged: pa.Schema
) -> tuple[pa.Table, pa.Table, SchemaIds]:
    """Records as changes: rows, and tombstones; with bad ones and unknown schemas."""
    is_deleted = pc.is_null(records.column("value"))
    read = reader.read(records.filter(pc.invert(is_deleted)))
    tombstones = reader.read_tombstones(records.filter(is_deleted))
    rows = pa.concat_tables(
        [
            fit_rows(_marked(read.rows, is_deleted=False), staged),
            fit_rows(_marked(tombstones.rows, is_deleted=True), staged),
        ]
    )
    bad = pa.concat_tables([read.bad, tombstones.bad])
    return rows, bad, read.unknown | tombstones.unknown


def _stage(rows: pa.Table, item: ChangesItem, files: TableFiles, attempt: str) -> list[ChangesFile]:
    """Write changes as one file, a row group for each bucket."""
    if not rows.num_rows:
        return []
    (field,) = item.target.iceberg_spec().fields
    buckets = transformed(rows, field, item.target.iceberg_schema())
    buckets = buckets.to_numpy(zero_copy_only=False)
    order = np.argsort(buckets, kind="stable")
    rows, buckets = rows.take(pa.array(order)), buckets[order]
    numbers, starts = np.unique(buckets, return_index=True)
    ends = [*starts[1:].tolist(), len(buckets)]
    sizes: list[int] = []
    with tempfile.TemporaryDirectory(prefix="penstock-table-") as folder:
        path = Path(folder) / "changes.parquet"
        with pq.ParquetWriter(path, rows.schema, compression="lz4") as writer:
            for start, end in zip(starts.tolist(), ends, strict=True):
                group = rows.slice(start, end - start)
                sizes.append(group.nbytes)
                writer.write_table(group, row_group_size=group.num_rows)
        url = f"{item.target.location}/{FOLDER}/{attempt}.parquet"
        files.put_file(url, path)
    return [ChangesFile(url, numbers.tolist(), sizes)]


def _read_group(files: TableFiles, url: str, group: int) -> pa.Table:
    with files.open(url) as file:
        return pq.ParquetFile(file).read_row_group(group)


def _decide(
    changes: pa.Table, files: TableFiles, item: MergeItem
) -> tuple[pa.Table, pa.Array, list[str]]:
    """Find the changes that count, the stored rows that go, and the files that these lie in.

    Only keys and places of stored rows are read for it, so a file without any of the keys costs
    a column, and is left as it is.
    """
    key = f"{item.prefix}key"
    keys = key_identity(changes.column(key)).combine_chunks()
    places = changes.select(place_names(item.prefix))
    met: dict[str, pa.Table] = {}
    for url in item.stored:
        found = [
            rows.filter(pc.is_in(key_identity(rows.column(key)), value_set=keys))
            for rows in _stored_places(files, url, item, places.schema)
        ]
        rows = pa.concat_tables(found) if found else None
        if rows is not None and rows.num_rows:
            met[url] = rows
    if not met:
        return changes, keys.slice(0, 0), []
    changed = changed_keys(pa.concat_tables(met.values()), places, prefix=item.prefix)
    changes = changes.filter(pc.is_in(keys, value_set=changed))
    touched = [
        url
        for url, rows in met.items()
        if pc.any(pc.is_in(key_identity(rows[key]), value_set=changed)).as_py()
    ]
    return changes, changed, touched


def _stored_places(
    files: TableFiles, url: str, item: MergeItem, schema: pa.Schema
) -> Iterator[pa.Table]:
    # As the table has them now: a key's number may have been narrower when they were written.
    for rows in read_data_file(files, url, item.target, columns=place_names(item.prefix)):
        yield fit_rows(rows, schema)


def place_names(prefix: str) -> list[str]:
    """The columns by which `newest_rows` decides."""
    return [f"{prefix}{name}" for name in ("key", "partition", "offset", "timestamp")]


def staged_schema(schema: pa.Schema) -> pa.Schema:
    """A table's columns as changes have them: a tombstone has no value, whatever is required."""
    fields = [field.with_nullable(True) for field in schema]  # noqa: FBT003 - pyarrow's
    return pa.schema([*fields, pa.field(DELETED, pa.bool_())])


def _marked(rows: pa.Table, *, is_deleted: bool) -> pa.Table:
    return rows.append_column(DELETED, pa.array([is_deleted] * rows.num_rows, pa.bool_()))
