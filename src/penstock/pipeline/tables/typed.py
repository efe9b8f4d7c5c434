"""Tables whose columns are the values' fields: schemas are found, followed, and then read by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType

from penstock.lake.door import Range
from penstock.lake.tables.columns import RAW_NAMES, TYPED_PREFIX, record_fields
from penstock.lake.tables.evolution import (
    Evolution,
    Ids,
    check_no_required_beside,
    check_record_columns,
    iceberg_fields,
    iceberg_type,
    plan_evolution,
    value_type,
)
from penstock.lake.tables.formats import RecordType, SchemaText, compile_schema
from penstock.lake.tables.partitioning import parse_transforms, partition_spec
from penstock.lake.tables.values import BARE, BARE_ID, REGISTRY, ValuePlan
from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.pipeline.client import DoorClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.tables.append import (
    AppendItem,
    ScanItem,
    append_rows,
    find_schema_ids,
)
from penstock.pipeline.tables.catalog import translated
from penstock.pipeline.tables.files import files_options
from penstock.pipeline.tables.kinds import Design, Written
from penstock.pipeline.tables.parquet import FileTarget
from penstock.pipeline.tables.registry import Registry
from penstock.pipeline.tables.settings import FILE, TableSettings

SCHEMAS_PROPERTY: Final = "penstock.schemas"
"""Of a table: which schemas it has followed, as JSON."""
_FIRST_ID: Final = 1

T = TypeVar("T")
R = TypeVar("R", bound="Result")


class Followed(msgspec.Struct, frozen=True):
    """The schemas that a table has followed: ids of a registry; the text of a file."""

    ids: list[int] = []
    text: SchemaText | None = None


@dataclass(slots=True)
class ValueSchemas:
    """The schemas of one table's values, and the table's columns by them."""

    settings: TableSettings
    columns_added: list[str] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    """Ids that the registry does not have, as far as this call has asked."""
    _registry: Registry | None = None

    @property
    def is_framed(self) -> bool:
        """Whether values begin with a schema id."""
        return self.settings.schema != FILE

    def text(self, schema_id: int) -> SchemaText:
        """A schema by its id, or the file's."""
        if not self.is_framed:
            assert self.settings.value_schema is not None
            return self.settings.value_schema
        if self._registry is None:
            self._registry = Registry(self.settings.registry)
        return self._registry.schema(schema_id)

    def type(self, schema_id: int) -> RecordType:
        """A schema's columns. Raises: InvalidRequestError: a table can't have them."""
        kind = compile_schema(self.text(schema_id), framed=self.is_framed).type
        own = {f"{TYPED_PREFIX}{name}" for name in RAW_NAMES}
        for entry in kind.fields:
            if entry.name in own:
                raise InvalidRequestError(
                    "follow schema",
                    self.subject(schema_id),
                    f"its field {entry.name} is named as a column that every table has",
                )
        return kind

    def subject(self, schema_id: int) -> str:
        """For errors."""
        return f"schema {schema_id} of {self.settings.topic}" if self.is_framed else "the file's"

    def plan(self, followed: Followed) -> ValuePlan:
        """How executors read values."""
        if not self.is_framed:
            return ValuePlan(BARE, {BARE_ID: self.text(BARE_ID)})
        schemas = {schema_id: self.text(schema_id) for schema_id in followed.ids}
        return ValuePlan(REGISTRY, schemas | dict.fromkeys(self.missing, SchemaText(kind="")))

    def follow(self, table: Table, ids: Sequence[int]) -> Table:
        """Let the table's columns become what the schemas of these ids need, oldest first.

        Raises:
            IncompatibleSchemaError: they can't.
            ConflictError: somebody else changed the table meanwhile.
        """
        for schema_id in sorted(ids):
            table = self._follow_one(table, schema_id)
        return table

    def follow_file(self, table: Table) -> Table:
        """The same for a file's schema, if it is another than the last one."""
        if self.is_framed or followed_by(table).text == self.settings.value_schema:
            return table
        return self._follow_one(table, BARE_ID)

    def _follow_one(self, table: Table, schema_id: int) -> Table:
        followed = followed_by(table)
        subject = self.subject(schema_id)
        evolution = plan_evolution(
            value_type(table.schema()),
            self.type(schema_id),
            is_newer=not self.is_framed or schema_id > max(followed.ids, default=0),
            subject=subject,
        )
        after = (
            Followed(ids=sorted({*followed.ids, schema_id}))
            if self.is_framed
            else Followed(text=self.settings.value_schema)
        )
        with translated("follow schema", subject), table.transaction() as transaction:
            transaction.set_properties({SCHEMAS_PROPERTY: msgspec.json.encode(after).decode()})
            if not evolution.is_empty:
                with transaction.update_schema() as update:
                    _apply(update, evolution)
        self.columns_added += [".".join(path) for path, _ in evolution.added]
        return table


class TypedKind:
    """Appended to, by a registry's schemas or a file's."""

    def __init__(self, settings: TableSettings, client: DoorClient, engine: Engine) -> None:
        self._settings = settings
        self._client = client
        self._engine = engine
        self._schemas = ValueSchemas(settings)

    def design(self, items: Sequence[Sequence[Range]]) -> Design | None:
        """The oldest schema among the first records."""
        first = first_schema(self._schemas, self._client, self._engine, items)
        if first is None:
            return None
        schema = typed_schema(self._schemas.type(first))
        transforms = parse_transforms(self._settings.partition, rename=renaming(schema))
        return Design(
            schema=schema,
            spec=partition_spec(schema, transforms),
            properties=followed_property(self._schemas, first),
        )

    def check(self, table: Table) -> None:
        """Raises: InvalidRequestError: a column is gone or another."""
        name = ".".join(table.name())
        check_record_columns(table.schema(), prefix=TYPED_PREFIX, with_value=False, table=name)
        check_followed(self._schemas, table)

    def write(
        self, table: Table, target: FileTarget, items: Sequence[Sequence[Range]]
    ) -> tuple[Table, Written]:
        """See `TableKind.write`."""

        def new_item(now: Table, ranges: Sequence[Range], values: ValuePlan) -> AppendItem:
            return AppendItem(
                door=self._client.options,
                files=files_options(now.io.properties),
                target=msgspec.structs.replace(target, schema=now.schema().model_dump_json()),
                ranges=list(ranges),
                values=values,
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
    """Of a task that reads values."""

    @property
    def unknown_schemas(self) -> list[int]:
        """Ids that its plan did not have; it made nothing then."""
        ...


def run_following(
    engine: Engine,
    schemas: ValueSchemas | None,
    table: Table,
    items: Sequence[Sequence[Range]],
    task: Callable[[T], R],
    new_item: Callable[[Table, Sequence[Range], ValuePlan], T],
) -> tuple[Table, list[R]]:
    """Run a task on ranges. Items that meet schemas which the table has not followed yet come back
    with their ids; the table follows them, and these items run again.

    Args:
        schemas: None: values are raw.
    """
    if schemas is None:
        tasks = [new_item(table, ranges, ValuePlan()) for ranges in items]
        return table, [result for _, result in engine.run(task, tasks)]
    table = schemas.follow_file(table)
    waiting = list(items)
    results: list[R] = []
    while waiting:
        plan = schemas.plan(followed_by(table))
        tasks = [new_item(table, ranges, plan) for ranges in waiting]
        again: list[Sequence[Range]] = []
        unknown: set[int] = set()
        for index, result in engine.run(task, tasks):
            if result.unknown_schemas:
                again.append(waiting[index])
                unknown.update(result.unknown_schemas)
            else:
                results.append(result)
        known = {number for number in unknown if not schemas.text(number).is_missing}
        schemas.missing |= unknown - known
        table = schemas.follow(table, sorted(known))
        waiting = again
    return table, results


def followed_property(schemas: ValueSchemas, first: int) -> dict[str, str]:
    """Of a new table that begins with a schema."""
    followed = (
        Followed(ids=[first]) if schemas.is_framed else Followed(text=schemas.settings.value_schema)
    )
    return {SCHEMAS_PROPERTY: msgspec.json.encode(followed).decode()}


def typed_schema(values: RecordType) -> Schema:
    """A typed table's columns: the value's, then those of every record."""
    ids = Ids(_FIRST_ID)
    fields = iceberg_fields(values, ids)
    return Schema(
        *fields, *record_fields(prefix=TYPED_PREFIX, first_id=ids.take(), with_value=False)
    )


def renaming(schema: Schema) -> dict[str, str]:
    """Which columns a person may name shorter: `timestamp` is `kafka_timestamp`."""
    names = {column.name for column in schema.fields}
    return {name: f"{TYPED_PREFIX}{name}" for name in RAW_NAMES if name not in names}


def first_schema(
    schemas: ValueSchemas,
    client: DoorClient,
    engine: Engine,
    items: Sequence[Sequence[Range]],
) -> int | None:
    """The oldest schema of the first records; None without any.

    Raises:
        InvalidRequestError: there are records, and none has a schema that the registry has.
    """
    if not schemas.is_framed:
        return BARE_ID
    if not items:
        return None
    tasks = [ScanItem(door=client.options, ranges=list(ranges)) for ranges in items]
    found = {
        schema_id
        for _, ids in engine.run(find_schema_ids, tasks)
        for schema_id in ids
        if not schemas.text(schema_id).is_missing
    }
    if not found:
        raise InvalidRequestError(
            "make a table",
            schemas.settings.topic,
            "none of its first values begins with the id of a schema that the registry has",
            "is it written by a serializer that uses this registry?",
        )
    return min(found)


def followed_by(table: Table) -> Followed:
    """What a table has followed. Raises: CorruptDataError."""
    text = table.properties.get(SCHEMAS_PROPERTY, "{}")
    try:
        return msgspec.json.decode(text, type=Followed)
    except msgspec.MsgspecError as error:
        raise CorruptDataError("read a table's schemas", text[:100], str(error)) from error


def check_followed(schemas: ValueSchemas, table: Table) -> None:
    """Whether the table still has the columns of what it followed.

    Raises:
        IncompatibleSchemaError: somebody dropped or changed one.
    """
    followed = followed_by(table)
    name = ".".join(table.name())
    kinds = [schemas.type(schema_id) for schema_id in followed.ids]
    if followed.text is not None:
        kinds.append(compile_schema(followed.text, framed=False).type)
    for kind in kinds:
        plan_evolution(value_type(table.schema()), kind, is_newer=False, subject=f"table {name}")
    own = {entry.name for kind in kinds for entry in kind.fields}
    own |= {f"{TYPED_PREFIX}{column}" for column in RAW_NAMES}
    check_no_required_beside(table.schema(), frozenset(own), table=name)


def _apply(update: UpdateSchema, evolution: Evolution) -> None:
    # Ids here are only placeholders: PyIceberg gives new ones.
    ids = Ids(1_000_000)
    for path, kind in evolution.added:
        update.add_column(path, iceberg_type(kind, ids), required=False)
    for path, promoted in evolution.promoted:
        assert isinstance(promoted, IcebergType)
        update.update_column(path, field_type=promoted)
