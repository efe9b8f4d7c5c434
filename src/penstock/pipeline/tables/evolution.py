"""A table's columns may change in two ways: new optional columns, and type promotions. Pure.

Everything else stops the table, since the only other way to go on would be nulls where there are
values.
"""

from dataclasses import dataclass, field

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.tables.columns import TYPED_KEY, TYPED_NAMES, record_fields
from penstock.pipeline.tables.formats import AnyType, FieldType, ListOf, MapOf, RecordType

Path = tuple[str, ...]


class IncompatibleSchemaError(InvalidRequestError):
    """A schema that the table can't follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """The changes of a table's columns, in this order."""

    added: list[tuple[Path, AnyType]] = field(default_factory=list)
    promoted: list[tuple[Path, IcebergType]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the table has all there is to have."""
        return not self.added and not self.promoted


def plan_evolution(
    table: RecordType, schema: RecordType, *, is_newer: bool, subject: str
) -> Evolution:
    """Plan how a table follows a schema.

    Args:
        table: the table's value columns.
        schema: the columns of the schema's values.
        is_newer: whether the schema is newer than all that the table has followed: then it has to
            keep every column. An older one may lack optional columns, and can have none that the
            table lacks.

    Raises:
        IncompatibleSchemaError: with everything that is wrong.
    """
    evolution = Evolution()
    problems: list[str] = []
    _compare(table, schema, (), is_newer, evolution, problems)
    if problems:
        raise IncompatibleSchemaError(
            "follow schema",
            subject,
            "; ".join(problems),
            "only new optional columns and int to long, float to double, wider decimals are "
            "followed: write such values to another topic, or begin a new table",
        )
    return evolution


def key_type(schema: Schema) -> RecordType:
    """A typed table's key column alone, without ids."""
    return RecordType(
        fields=tuple(_field(column) for column in schema.fields if column.name == TYPED_KEY)
    )


def value_type(schema: Schema, *, without: str | None = None) -> RecordType:
    """A typed table's value columns, without ids.

    Args:
        without: a column of ours that is not of the values' schemas.
    """
    others = {*TYPED_NAMES, without}
    return RecordType(
        fields=tuple(_field(column) for column in schema.fields if column.name not in others)
    )


def iceberg_fields(record: RecordType, ids: "Ids") -> list[NestedField]:
    """Columns with ids; only for a new table, whose ids the catalog replaces anyway."""
    numbered = [(ids.take(), entry) for entry in record.fields]
    return [
        NestedField(number, entry.name, iceberg_type(entry.type, ids), required=entry.required)
        for number, entry in numbered
    ]


def iceberg_type(kind: AnyType, ids: "Ids") -> IcebergType:
    """A type with ids."""
    if isinstance(kind, RecordType):
        return StructType(*iceberg_fields(kind, ids))
    if isinstance(kind, ListOf):
        return ListType(
            element_id=ids.take(),
            element_type=iceberg_type(kind.element, ids),
            element_required=kind.element_required,
        )
    if isinstance(kind, MapOf):
        return MapType(
            key_id=ids.take(),
            key_type=iceberg_type(kind.key, ids),
            value_id=ids.take(),
            value_type=iceberg_type(kind.value, ids),
            value_required=kind.value_required,
        )
    return kind


class Ids:
    """Field ids, one after the other."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self) -> int:
        """The next one."""
        self._next += 1
        return self._next - 1


def check_record_columns(
    schema: Schema, *, prefix: str, with_value: bool, table: str, with_key: bool = True
) -> None:
    """Check that a table has the columns that every record has, and no other required ones.

    Args:
        with_key: whether the key is bytes, too; one of a schema is looked at with the schema.

    Raises:
        InvalidRequestError: another program changed the columns.
    """
    for wanted in record_fields(
        prefix=prefix, first_id=1, with_value=with_value, with_key=with_key
    ):
        found = next((column for column in schema.fields if column.name == wanted.name), None)
        if found is None:
            problem = "is gone"
        elif _strip(found.field_type) != _strip(wanted.field_type):
            problem = f"is {found.field_type}, not {wanted.field_type}"
        elif wanted.required and not found.required:
            continue
        elif found.required and not wanted.required:
            problem = "has become required"
        else:
            continue
        raise InvalidRequestError(
            "write table", table, f"column {wanted.name} {problem}", "undo that change"
        )


def check_no_required_beside(schema: Schema, own: frozenset[str], *, table: str) -> None:
    """Raises: InvalidRequestError: a required column was added, which no record has."""
    for column in schema.fields:
        if column.required and column.name not in own:
            raise InvalidRequestError(
                "write table", table, f"column {column.name} is required, and no record has it"
            )


def _compare(
    table: RecordType,
    schema: RecordType,
    path: Path,
    is_newer: bool,  # noqa: FBT001 - recursive and private
    evolution: Evolution,
    problems: list[str],
) -> None:
    ours = {entry.name: entry for entry in table.fields}
    theirs = {entry.name: entry for entry in schema.fields}
    for name, have in ours.items():
        if name in theirs:
            continue
        if is_newer:
            problems.append(f"column {_text((*path, name))} is gone")
        elif have.required:
            problems.append(f"column {_text((*path, name))} is required and not there")
    for name, want in theirs.items():
        at = (*path, name)
        if name in ours:
            have = ours[name]
            if have.required and not want.required:
                problems.append(f"column {_text(at)} may be null and is required in the table")
            _compare_types(have.type, want.type, at, is_newer, evolution, problems)
        elif is_newer:
            evolution.added.append((at, want.type))
        else:
            problems.append(f"column {_text(at)} is of an older schema, and no later one has it")


def _compare_types(
    have: AnyType,
    want: AnyType,
    at: Path,
    is_newer: bool,  # noqa: FBT001
    evolution: Evolution,
    problems: list[str],
) -> None:
    if isinstance(have, RecordType) and isinstance(want, RecordType):
        _compare(have, want, at, is_newer, evolution, problems)
    elif isinstance(have, ListOf) and isinstance(want, ListOf):
        if have.element_required and not want.element_required:
            problems.append(f"elements of {_text(at)} may be null and are required in the table")
        _compare_types(have.element, want.element, (*at, "element"), is_newer, evolution, problems)
    elif isinstance(have, MapOf) and isinstance(want, MapOf):
        if have.key != want.key:
            problems.append(f"keys of {_text(at)} are {want.key}, not {have.key}")
        if have.value_required and not want.value_required:
            problems.append(f"values of {_text(at)} may be null and are required in the table")
        _compare_types(have.value, want.value, (*at, "value"), is_newer, evolution, problems)
    elif have == want:
        return
    elif is_newer and isinstance(want, IcebergType) and _widens(have, want):
        evolution.promoted.append((at, want))
    elif not is_newer and _widens(want, have):
        return
    else:
        problems.append(f"column {_text(at)} is {_shown(want)}, and {_shown(have)} in the table")


def _widens(narrow: AnyType, wide: AnyType) -> bool:
    """Source: Iceberg specification, "Schema Evolution"."""
    if isinstance(narrow, IntegerType):
        return isinstance(wide, LongType)
    if isinstance(narrow, FloatType):
        return isinstance(wide, DoubleType)
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    return False


def _field(column: NestedField) -> FieldType:
    return FieldType(name=column.name, type=_strip(column.field_type), required=column.required)


def _strip(kind: IcebergType) -> AnyType:
    """A type without ids."""
    if isinstance(kind, StructType):
        return RecordType(fields=tuple(_field(column) for column in kind.fields))
    if isinstance(kind, ListType):
        return ListOf(element=_strip(kind.element_type), element_required=kind.element_required)
    if isinstance(kind, MapType):
        return MapOf(
            key=_strip(kind.key_type),
            value=_strip(kind.value_type),
            value_required=kind.value_required,
        )
    return kind


def _text(path: Path) -> str:
    return ".".join(path)


def _shown(kind: AnyType) -> str:
    if isinstance(kind, RecordType):
        return "a struct"
    if isinstance(kind, ListOf):
        return "a list"
    if isinstance(kind, MapOf):
        return "a map"
    return str(kind)
