"""What a table's columns may become."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from penstock.pipeline.tables.evolution import (
    Ids,
    IncompatibleSchemaError,
    iceberg_type,
    plan_evolution,
    value_type,
)
from penstock.pipeline.tables.formats import AnyType, FieldType, ListOf, MapOf, RecordType

INT, LONG, FLOAT, DOUBLE, TEXT = (
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    StringType(),
)


NARROW, WIDE = DecimalType(5, 2), DecimalType(9, 2)


def struct(**fields: AnyType | tuple[AnyType, bool]) -> RecordType:
    """Fields are optional; (type, True) is required."""
    return RecordType(
        fields=tuple(
            FieldType(
                name=name,
                type=kind[0] if isinstance(kind, tuple) else kind,
                required=isinstance(kind, tuple) and kind[1],
            )
            for name, kind in fields.items()
        )
    )


def many(kind: AnyType, *, required: bool = True) -> ListOf:
    return ListOf(element=kind, element_required=required)


def mapped(kind: AnyType, key: IcebergType = TEXT) -> MapOf:
    return MapOf(key=key, value=kind, value_required=False)


@pytest.mark.parametrize(
    ("have", "want", "added", "promoted"),
    [
        (struct(a=INT), struct(a=INT), [], []),
        (struct(a=INT), struct(a=(INT, True)), [], []),
        (struct(a=INT), struct(b=TEXT, a=INT), [(("b",), TEXT)], []),
        (struct(a=INT), struct(a=INT, b=(TEXT, True)), [(("b",), TEXT)], []),
        (struct(a=INT), struct(a=LONG), [], [(("a",), LONG)]),
        (struct(a=FLOAT), struct(a=DOUBLE), [], [(("a",), DOUBLE)]),
        (
            struct(a=DecimalType(5, 2)),
            struct(a=DecimalType(9, 2)),
            [],
            [(("a",), DecimalType(9, 2))],
        ),
        (struct(a=struct(b=INT)), struct(a=struct(b=INT, c=INT)), [(("a", "c"), INT)], []),
        (struct(a=many(INT)), struct(a=many(LONG)), [], [(("a", "element"), LONG)]),
        (
            struct(a=many(struct(b=INT))),
            struct(a=many(struct(b=INT, c=TEXT))),
            [(("a", "element", "c"), TEXT)],
            [],
        ),
        (struct(a=mapped(INT)), struct(a=mapped(LONG)), [], [(("a", "value"), LONG)]),
    ],
)
def test_what_is_followed(
    have: RecordType, want: RecordType, added: list[object], promoted: list[object]
) -> None:
    plan = plan_evolution(have, want, is_newer=True, subject="s")
    assert (plan.added, plan.promoted) == (added, promoted)
    assert plan.is_empty == (not added and not promoted)


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (struct(a=INT, b=INT), struct(a=INT)),
        (struct(a=INT), struct(b=INT)),
        (struct(a=(INT, True)), struct(a=INT)),
        (struct(a=LONG), struct(a=INT)),
        (struct(a=DOUBLE), struct(a=FLOAT)),
        (struct(a=INT), struct(a=DOUBLE)),
        (struct(a=INT), struct(a=TEXT)),
        (struct(a=TEXT), struct(a=struct(b=TEXT))),
        (struct(a=DecimalType(9, 2)), struct(a=DecimalType(9, 3))),
        (struct(a=DecimalType(9, 2)), struct(a=DecimalType(8, 2))),
        (struct(a=struct(b=INT)), struct(a=struct(c=INT))),
        (struct(a=many(INT)), struct(a=many(TEXT))),
        (struct(a=many(INT)), struct(a=many(INT, required=False))),
        (struct(a=many(INT)), struct(a=INT)),
        (struct(a=mapped(INT)), struct(a=mapped(INT, key=LONG))),
    ],
)
def test_anything_else_stops_the_table(have: RecordType, want: RecordType) -> None:
    with pytest.raises(IncompatibleSchemaError):
        plan_evolution(have, want, is_newer=True, subject="s")


def test_an_older_schema_fits_or_does_not_and_never_changes_anything() -> None:
    table = struct(a=(LONG, True), b=TEXT)
    for fits in (struct(a=(INT, True)), struct(a=(LONG, True), b=TEXT)):
        assert plan_evolution(table, fits, is_newer=False, subject="s").is_empty
    for does_not in (
        struct(b=TEXT),
        struct(a=(TEXT, True)),
        struct(a=(LONG, True), c=TEXT),
        struct(a=LONG),
    ):
        with pytest.raises(IncompatibleSchemaError):
            plan_evolution(table, does_not, is_newer=False, subject="s")


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(IncompatibleSchemaError) as caught:
        plan_evolution(struct(a=INT, b=INT), struct(b=TEXT), is_newer=True, subject="schema 7")
    assert "column a is gone; column b is string, and int in the table" in str(caught.value)
    assert "schema 7" in str(caught.value)


def test_types_survive_their_ids() -> None:
    kind = struct(a=many(struct(b=(INT, True), c=mapped(many(TEXT)))))
    found = iceberg_type(kind, Ids(1))
    schema = Schema(*found.fields)  # type: ignore[attr-defined]
    assert value_type(schema) == kind
    # Those of every record are no part of the value.
    wider = Schema(*schema.fields, NestedField(99, "kafka_offset", LONG, required=True))
    assert value_type(wider) == kind
