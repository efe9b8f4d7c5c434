"""An executor's part of a table that is appended to: ranges of a topic into Parquet files."""

import msgspec

from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import read_range
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.dead_letters import BadFile, BadWriter
from penstock.pipeline.tables.files import FilesOptions, TableFiles
from penstock.pipeline.tables.parquet import FileTarget, PartitionedWriter, WrittenFile
from penstock.pipeline.tables.parts import KEY, VALUE, wire_ids
from penstock.pipeline.tables.rows import decode_records
from penstock.pipeline.tables.values import RowPlan, RowReader, SchemaIds
from penstock.system.randomness import SystemRandom


class AppendItem(msgspec.Struct, frozen=True):
    """One task. Holds no secret: it goes to executors, and into Spark's event log."""

    api: ClientOptions
    files: FilesOptions
    target: FileTarget
    ranges: list[Range]
    plan: RowPlan


class AppendResult(msgspec.Struct, frozen=True):
    """The files that a task wrote. `unknown`: schemas that the plan did not have; then the task
    wrote nothing, and the item has to run again with these schemas."""

    files: list[WrittenFile]
    bad: list[BadFile]
    bytes_read: int
    unknown: SchemaIds = SchemaIds()
    decoded_bytes: int = 0


def append_rows(item: AppendItem) -> AppendResult:
    """Read the item's ranges and write their rows.

    Raises:
        LogTruncatedError: retention was faster than the plan.
        RetryableError, CorruptDataError: of an agent, the objects or the warehouse.
    """
    attempt = SystemRandom().token_bytes(6).hex()
    first, last = item.ranges[0], item.ranges[-1]
    stem = f"{first.partition:05}-{first.start:012}-{last.partition:05}-{last.end:012}-{attempt}"
    files = TableFiles(item.files)
    reader = RowReader(item.plan, arrow_schema(item.target.iceberg_schema()))
    bytes_read = decoded_bytes = 0
    unknown = SchemaIds()
    with (
        PipelineClient(item.api) as client,
        ObjectAccess(client) as objects,
        PartitionedWriter(item.target, files, name=lambda n: f"{stem}-{n:03}") as writer,
        BadWriter(item.target.location, files, name=f"{stem}-bad") as bad,
    ):
        for wanted in item.ranges:
            for part in read_range(client, objects, wanted):
                bytes_read += len(part.body)
                for records in decode_records(
                    part.body, partition=wanted.partition, start=wanted.start, end=wanted.end
                ):
                    decoded_bytes += records.rows.nbytes
                    bad.add(records.bad)
                    rows = reader.read(records.rows)
                    unknown |= rows.unknown
                    if not unknown:
                        bad.add(rows.bad)
                        writer.add(rows.rows)
        if unknown:
            return AppendResult([], [], bytes_read, unknown)
        return AppendResult(writer.finish(), bad.finish(), bytes_read, decoded_bytes=decoded_bytes)


class ScanItem(msgspec.Struct, frozen=True):
    """One task that looks for schema ids alone. `parts`: VALUE, KEY, those that begin with one."""

    api: ClientOptions
    ranges: list[Range]
    parts: list[str]


def find_schema_ids(item: ScanItem) -> SchemaIds:
    """The schema ids in the item's parts of ranges. Raises: as `append_rows`."""
    found: dict[str, set[int]] = {VALUE: set(), KEY: set()}
    with PipelineClient(item.api) as client, ObjectAccess(client) as objects:
        for wanted in item.ranges:
            for part in read_range(client, objects, wanted):
                for records in decode_records(
                    part.body, partition=wanted.partition, start=wanted.start, end=wanted.end
                ):
                    for name in item.parts:
                        found[name] |= wire_ids(records.rows.column(name))
    return SchemaIds(value=frozenset(found[VALUE]), key=frozenset(found[KEY]))
