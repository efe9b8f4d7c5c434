"""Tables whose columns are the values' fields: schemas are found, followed, and then read by."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from penstock.pipeline.api_messages import Range
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.append import (
    AppendItem,
    ScanItem,
    append_rows,
    find_schema_ids,
)
from penstock.pipeline.tables.columns import RAW_NAMES, TYPED_PREFIX
from penstock.pipeline.tables.files import files_options
from penstock.pipeline.tables.followed import RowSchemas
from penstock.pipeline.tables.kinds import Design, Written
from penstock.pipeline.tables.parquet import FileTarget
from penstock.pipeline.tables.partitioning import parse_transforms, partition_spec
from penstock.pipeline.tables.settings import TableSettings
from penstock.pipeline.tables.values import RowPlan, SchemaIds

T = TypeVar("T")
R = TypeVar("R", bound="Result")


class TypedKind:
    """Appended to, by a registry's schemas or a file's."""

    def __init__(self, settings: TableSettings, client: PipelineClient, engine: Engine) -> None:
        self._settings = settings
        self._client = client
        self._engine = engine
        self._schemas = RowSchemas(settings)

    def design(self, items: Sequence[Sequence[Range]]) -> Design | None:
        """The oldest schemas among the first records."""
        first = first_schemas(self._schemas, self._client, self._engine, items)
        if first is None:
            return None
        schema, properties = self._schemas.begin(first)
        transforms = parse_transforms(self._settings.partition, rename=renaming(schema))
        return Design(schema=schema, spec=partition_spec(schema, transforms), properties=properties)

    def check(self, table: Table) -> None:
        """Raises: InvalidRequestError: a column is gone or another."""
        self._schemas.check(table)

    def write(
        self, table: Table, target: FileTarget, items: Sequence[Sequence[Range]]
    ) -> tuple[Table, Written]:
        """See `TableKind.write`."""

        def new_item(now: Table, ranges: Sequence[Range], plan: RowPlan) -> AppendItem:
            return AppendItem(
                api=self._client.options,
                files=files_options(now.io.properties),
                target=msgspec.structs.replace(target, schema=now.schema().model_dump_json()),
                ranges=list(ranges),
                plan=plan,
            )

        table, results = run_following(
            self._engine, self._schemas, table, items, append_rows, new_item
        )
        added = [file for result in results for file in result.files]
        return table, Written(
            added=added,
            bad=[file for result in results for file in result.bad],
            bytes_read=sum(result.bytes_read for result in results),
            rows=sum(file.row_count for file in added),
            columns_added=self._schemas.columns_added,
        )


class Result(Protocol):
    """The result of a task that reads records."""

    @property
    def unknown(self) -> SchemaIds:
        """Schemas that its plan did not have; then the task made nothing."""
        ...


def run_following(
    engine: Engine,
    schemas: RowSchemas | None,
    table: Table,
    items: Sequence[Sequence[Range]],
    task: Callable[[T], R],
    new_item: Callable[[Table, Sequence[Range], RowPlan], T],
) -> tuple[Table, list[R]]:
    """Run a task on ranges. Items that meet schemas which the table has not followed yet come back
    with their ids; the table follows them, and these items run again.

    Args:
        schemas: None: keys and values are raw.
    """
    if schemas is None:
        tasks = [new_item(table, ranges, RowPlan()) for ranges in items]
        return table, [result for _, result in engine.run(task, tasks)]
    table = schemas.follow_files(table)
    waiting = list(items)
    results: list[R] = []
    while waiting:
        plan = schemas.plan(table)
        tasks = [new_item(table, ranges, plan) for ranges in waiting]
        again: list[Sequence[Range]] = []
        unknown = SchemaIds()
        for index, result in engine.run(task, tasks):
            if result.unknown:
                again.append(waiting[index])
                unknown |= result.unknown
            else:
                results.append(result)
        table = schemas.follow(table, unknown)
        waiting = again
    return table, results


def renaming(schema: Schema) -> dict[str, str]:
    """Return columns that a person may name shorter: `timestamp` is `kafka_timestamp`."""
    names = {column.name for column in schema.fields}
    return {name: f"{TYPED_PREFIX}{name}" for name in RAW_NAMES if name not in names}


def first_schemas(
    schemas: RowSchemas,
    client: PipelineClient,
    engine: Engine,
    items: Sequence[Sequence[Range]],
) -> SchemaIds | None:
    """The schemas of the first records; None without any, where records would say them."""
    parts = schemas.framed_parts
    if not parts:
        return SchemaIds()
    if not items:
        return None
    tasks = [ScanItem(api=client.options, ranges=list(ranges), parts=parts) for ranges in items]
    found = SchemaIds()
    for _, ids in engine.run(find_schema_ids, tasks):
        found |= ids
    return found
