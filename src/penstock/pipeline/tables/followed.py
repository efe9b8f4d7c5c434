"""The schemas that a table's values and keys have, and how its columns follow them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType, StringType

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.model.malformed import MALFORMED
from penstock.pipeline.tables.catalog import translated
from penstock.pipeline.tables.columns import (
    REST_COLUMN,
    REST_PROPERTY,
    TYPED_KEY,
    TYPED_NAMES,
    TYPED_PREFIX,
    record_fields,
)
from penstock.pipeline.tables.decoders import compile_schema
from penstock.pipeline.tables.evolution import (
    Evolution,
    Ids,
    IncompatibleSchemaError,
    check_no_required_beside,
    check_record_columns,
    iceberg_fields,
    iceberg_type,
    key_type,
    plan_evolution,
    value_type,
)
from penstock.pipeline.tables.formats import (
    Decoder,
    FieldType,
    RecordType,
    UnsupportedSchemaError,
    columns_of,
)
from penstock.pipeline.tables.parts import BARE, BARE_ID, KEY, REGISTRY, VALUE, PartPlan
from penstock.pipeline.tables.registry import Registry
from penstock.pipeline.tables.schema_text import SchemaText
from penstock.pipeline.tables.settings import (
    DEAD_LETTER,
    FILE,
    RAW,
    REST,
    UPSERT,
    TableSettings,
)
from penstock.pipeline.tables.values import RowPlan, SchemaIds

_FIRST_ID: Final = 1
_PROPERTIES: Final = {VALUE: "penstock.schemas", KEY: "penstock.key-schemas"}
"""The table's properties with the schemas that it has followed, as JSON."""


class Followed(msgspec.Struct, frozen=True):
    """The schemas that a table has followed: ids of a registry; the text of a file."""

    ids: list[int] = []
    text: SchemaText | None = None


@dataclass(slots=True, kw_only=True)
class PartSchemas:
    """The schemas of one table's values, or of its keys, which `part` says, and the columns by
    them: a value's fields are columns, and a key is the one column TYPED_KEY.

    Args:
        topic: the topic's name, for errors.
        kind: registry or file.
        given: the schema, with kind = file.
        is_identity: whether the schema's values identify rows; see `compile_schema`.
        registry: the registry, with kind = registry.
        is_reader: whether columns follow in memory alone: the table stays as it is.
        sets_aside: whether records of a schema that the table can't follow are bad records, rather
            than an error.
        unknown: see `JsonDecoder`.
    """

    topic: str
    part: str
    kind: str
    given: SchemaText | None
    is_identity: bool
    registry: Registry | None
    is_reader: bool = False
    columns_added: list[str] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    """Ids that the registry does not have, as far as this call has asked."""
    sets_aside: bool = False
    unknown: str = ""
    refused: dict[int, str] = field(default_factory=dict)
    """Why the table can't follow schemas, by their ids, as far as this call has met them."""

    @property
    def is_framed(self) -> bool:
        """Whether the bytes begin with a schema id."""
        return self.kind != FILE

    def text(self, schema_id: int) -> SchemaText:
        """A schema by its id, or the file's."""
        if not self.is_framed:
            assert self.given is not None
            return self.given
        assert self.registry is not None
        return self.registry.schema(schema_id)

    def type(self, schema_id: int) -> RecordType:
        """A schema's columns. Raises: InvalidRequestError: a table can't have them."""
        text = self.text(schema_id)
        return self._columns(self._compiled(text, framed=self.is_framed), schema_id)

    def _compiled(self, text: SchemaText, *, framed: bool) -> Decoder:
        return compile_schema(text, framed=framed, is_identity=self.is_identity)

    def _columns(self, decoder: Decoder, schema_id: int) -> RecordType:
        if self.part == KEY:
            # A record without a key is none of an upsert table, so that its key is required.
            return RecordType(
                fields=(FieldType(name=TYPED_KEY, type=decoder.type, required=self.is_identity),)
            )
        kind = columns_of(decoder, subject=self.subject(schema_id))
        for entry in kind.fields:
            if entry.name in TYPED_NAMES or (entry.name == REST_COLUMN and self.unknown == REST):
                raise IncompatibleSchemaError(
                    "follow schema",
                    self.subject(schema_id),
                    f"its field {entry.name} is named as a column that every table has",
                )
        return kind

    def subject(self, schema_id: int) -> str:
        """For errors."""
        what = "schema" if self.part == VALUE else "key schema"
        if self.is_framed:
            return f"{what} {schema_id} of {self.topic}"
        return f"the {what} of the file"

    def plan(self, table: Table) -> PartPlan:
        """Return the plan by which executors read keys or values."""
        if not self.is_framed:
            schemas = {BARE_ID: self.text(BARE_ID)}
            return PartPlan(BARE, schemas, self.is_identity, self.unknown)
        schemas = {schema_id: self.text(schema_id) for schema_id in self._followed_by(table).ids}
        schemas |= dict.fromkeys(self.missing, SchemaText(kind=""))
        schemas |= {number: SchemaText(kind="", text=why) for number, why in self.refused.items()}
        return PartPlan(REGISTRY, schemas, self.is_identity, self.unknown)

    def follow(self, table: Table, ids: Sequence[int]) -> Table:
        """Let the table's columns become what the schemas of these ids need, oldest first.

        Raises:
            IncompatibleSchemaError: the columns can't become that.
            ConflictError: another program changed the table meanwhile.
        """
        known = [number for number in ids if not self.text(number).is_missing]
        self.missing |= set(ids) - set(known)
        for schema_id in sorted(known):
            try:
                table = self._follow_one(table, schema_id)
            except (IncompatibleSchemaError, UnsupportedSchemaError) as error:
                if not self.sets_aside:
                    raise
                self.refused[schema_id] = f"{error.subject}: {error.detail}"
        return table

    def follow_file(self, table: Table) -> Table:
        """The same for a file's schema, if it is another than the last one."""
        followed = self._followed_by(table).text
        if self.is_framed or followed == self.given:
            return table
        try:
            return self._follow_one(table, BARE_ID)
        except (IncompatibleSchemaError, UnsupportedSchemaError):
            if not self.sets_aside or followed is None:
                raise
            # Values say not which schema they are of: the last one decides which of them fit.
            self.given = followed
            return table

    def first(self, ids: frozenset[int]) -> int:
        """The oldest of the schemas that the first records have; of a file, it.

        Raises:
            InvalidRequestError: there are records, and none has a schema that the registry has.
        """
        if not self.is_framed:
            return BARE_ID
        known = [number for number in ids if not self.text(number).is_missing]
        if known:
            return min(known)
        raise InvalidRequestError(
            "make a table",
            self.topic,
            f"none of its first {self.part}s begins with the id of a schema that the registry has",
            "is it written by a serializer that uses this registry?",
        )

    def property_of(self, first: int) -> dict[str, str]:
        """Return the properties of a new table that begins with a schema."""
        followed = Followed(ids=[first]) if self.is_framed else Followed(text=self.given)
        return {_PROPERTIES[self.part]: msgspec.json.encode(followed).decode()}

    def check(self, table: Table) -> RecordType:
        """Return the type that the table has to have after all that it followed.

        Raises:
            IncompatibleSchemaError: another program dropped or changed a column.
        """
        followed = self._followed_by(table)
        kinds = [self.type(schema_id) for schema_id in followed.ids]
        if followed.text is not None:
            kinds.append(self._columns(self._compiled(followed.text, framed=False), BARE_ID))
        subject = f"table {'.'.join(table.name())}"
        for kind in kinds:
            plan_evolution(self._columns_of(table), kind, is_newer=False, subject=subject)
        return RecordType(fields=tuple(entry for kind in kinds for entry in kind.fields))

    def _follow_one(self, table: Table, schema_id: int) -> Table:
        followed = self._followed_by(table)
        subject = self.subject(schema_id)
        evolution = plan_evolution(
            self._columns_of(table),
            self.type(schema_id),
            is_newer=not self.is_framed or schema_id > max(followed.ids, default=0),
            subject=subject,
        )
        if self.is_identity and evolution.added:
            added = ", ".join(".".join(path) for path, _ in evolution.added)
            raise IncompatibleSchemaError(
                "follow schema",
                subject,
                f"{added} is new in the key, which identifies the table's rows",
                "write such keys to another topic, or begin a new table",
            )
        after = (
            Followed(ids=sorted({*followed.ids, schema_id}))
            if self.is_framed
            else Followed(text=self.given)
        )
        with translated("follow schema", subject):
            transaction = table.transaction()
            transaction.set_properties(
                {_PROPERTIES[self.part]: msgspec.json.encode(after).decode()}
            )
            if not evolution.is_empty:
                with transaction.update_schema() as update:
                    _apply(update, evolution)
            table = self.changed(table, transaction)
        self.columns_added += [".".join(path) for path, _ in evolution.added]
        return table

    def changed(self, table: Table, transaction: Transaction) -> Table:
        """Return the table with what a transaction changes: in memory alone for a reader."""
        if not self.is_reader:
            transaction.commit_transaction()
            return table
        return Table(
            table.name(),
            transaction.table_metadata,
            table.metadata_location,
            table.io,
            table.catalog,
        )

    def _followed_by(self, table: Table) -> Followed:
        text = table.properties.get(_PROPERTIES[self.part])
        if text is None and self.part == KEY:
            # Only the property says this, since a schema may well say that keys are bytes.
            raise IncompatibleSchemaError(
                "follow schema",
                f"table {'.'.join(table.name())}",
                "its keys are bytes, as producers wrote them, and of no schema",
                "begin a new table",
            )
        return _decode_followed(text or "{}")

    def _columns_of(self, table: Table) -> RecordType:
        if self.part == KEY:
            return key_type(table.schema())
        return value_type(table.schema(), without=table.properties.get(REST_PROPERTY))


def settings_by(table: Table, settings: TableSettings) -> TableSettings:
    """Settings by which a reader follows a table's schemas: what the table has followed says what
    kind of schemas these are, whatever options its job has.

    Args:
        settings: resolved where the topic's configs say the schema; see `resolve`.
    """
    changes: dict[str, Any] = {"schema": RAW, "key_kind": RAW}
    for part, kind, given in (
        (VALUE, "schema", "value_schema"),
        (KEY, "key_kind", "key_schema"),
    ):
        text = table.properties.get(_PROPERTIES[part])
        if text is None:
            continue
        followed = _decode_followed(text)
        if followed.text is None:
            changes[kind] = REGISTRY
        else:
            changes[kind] = FILE
            changes[given] = getattr(settings, given) or followed.text
    return msgspec.structs.replace(settings, **changes)


def _decode_followed(text: str) -> Followed:
    try:
        return msgspec.json.decode(text, type=Followed)
    except MALFORMED as error:
        raise CorruptDataError("read a table's schemas", text[:100], str(error)) from error


class RowSchemas:
    """The schemas of one table's values, and of its keys where these have any.

    Args:
        settings: resolved; its values have a schema.
        is_reader: see `PartSchemas`.
    """

    def __init__(self, settings: TableSettings, *, is_reader: bool = False) -> None:
        uses_registry = REGISTRY in (settings.schema, settings.key_kind)
        registry = Registry(settings.registry) if uses_registry else None
        self.value = PartSchemas(
            topic=settings.topic,
            part=VALUE,
            kind=settings.schema,
            given=settings.value_schema,
            is_identity=False,
            registry=registry,
            is_reader=is_reader,
            sets_aside=settings.incompatible == DEAD_LETTER,
            unknown=settings.unknown,
        )
        self.key: PartSchemas | None = None
        if settings.key_kind != RAW:
            self.key = PartSchemas(
                topic=settings.topic,
                part=KEY,
                kind=settings.key_kind,
                given=settings.key_schema,
                is_identity=settings.mode == UPSERT,
                registry=registry,
                is_reader=is_reader,
                sets_aside=settings.incompatible == DEAD_LETTER,
            )
        self._parts = [part for part in (self.value, self.key) if part is not None]

    @property
    def framed_parts(self) -> list[str]:
        """VALUE, KEY: those by which records say which schemas they have."""
        return [part.part for part in self._parts if part.is_framed]

    @property
    def columns_added(self) -> list[str]:
        """List the columns that were added since this began."""
        return [name for part in self._parts for name in part.columns_added]

    def plan(self, table: Table) -> RowPlan:
        """Return the plan by which executors read records."""
        key = PartPlan() if self.key is None else self.key.plan(table)
        return RowPlan(value=self.value.plan(table), key=key)

    def follow(self, table: Table, ids: SchemaIds) -> Table:
        """See `PartSchemas.follow`."""
        table = self.value.follow(table, sorted(ids.value))
        return table if self.key is None else self.key.follow(table, sorted(ids.key))

    def follow_files(self, table: Table) -> Table:
        """See `PartSchemas.follow_file`; and give the table the column that the topic's policy
        about unknown properties needs."""
        for part in self._parts:
            table = part.follow_file(table)
        if self.value.unknown != REST or REST_PROPERTY in table.properties:
            return table
        with translated("follow schema", f"table {'.'.join(table.name())}"):
            transaction = table.transaction()
            transaction.set_properties({REST_PROPERTY: REST_COLUMN})
            with transaction.update_schema() as update:
                update.add_column(REST_COLUMN, StringType(), required=False)
            return self.value.changed(table, transaction)

    def check(self, table: Table) -> None:
        """Check that a table has the columns of what it followed, and of every record.

        Raises:
            InvalidRequestError: another program dropped or changed a column.
        """
        name = ".".join(table.name())
        if self.key is None and _PROPERTIES[KEY] in table.properties:
            raise IncompatibleSchemaError(
                "follow schema",
                f"table {name}",
                "its keys are of a schema, and not bytes as producers wrote them",
                "penstock.table.key.schema or --key-schema says which",
            )
        check_record_columns(
            table.schema(),
            prefix=TYPED_PREFIX,
            with_value=False,
            with_key=self.key is None,
            table=name,
        )
        own = {entry.name for part in self._parts for entry in part.check(table).fields}
        check_no_required_beside(table.schema(), TYPED_NAMES | own, table=name)

    def begin(self, first: SchemaIds) -> tuple[Schema, dict[str, str]]:
        """A new table's columns and properties: the oldest schemas of the first records; the
        value's fields, then the columns of every record."""
        number = self.value.first(first.value)
        properties = self.value.property_of(number)
        ids = Ids(_FIRST_ID)
        fields = iceberg_fields(self.value.type(number), ids)
        if self.key is not None:
            number = self.key.first(first.key)
            properties |= self.key.property_of(number)
            fields += iceberg_fields(self.key.type(number), ids)
        fields += record_fields(
            prefix=TYPED_PREFIX,
            first_id=ids.take(),
            with_value=False,
            with_key=self.key is None,
        )
        return Schema(*fields), properties


def _apply(update: UpdateSchema, evolution: Evolution) -> None:
    # Ids here are only placeholders: PyIceberg gives new ones.
    ids = Ids(1_000_000)
    for path, kind in evolution.added:
        update.add_column(path, iceberg_type(kind, ids), required=False)
    for path, promoted in evolution.promoted:
        assert isinstance(promoted, IcebergType)
        update.update_column(path, field_type=promoted)
