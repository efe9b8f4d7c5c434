"""Spark's filters as PyIceberg's: what can't be said is left out, since Spark checks all again.
Pure."""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyiceberg import expressions as iceberg
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression

_IS_NULL: Any = iceberg.IsNull
_NOT_NULL: Any = iceberg.NotNull
_IN: Any = iceberg.In
_COMPARED: dict[str, Any] = {
    "EqualTo": iceberg.EqualTo,
    "LessThan": iceberg.LessThan,
    "LessThanOrEqual": iceberg.LessThanOrEqual,
    "GreaterThan": iceberg.GreaterThan,
    "GreaterThanOrEqual": iceberg.GreaterThanOrEqual,
}


def push(filters: Sequence[Any]) -> BooleanExpression:
    """Return what all rows that pass the `pyspark.sql.datasource.Filter`s pass, too."""
    found: BooleanExpression = AlwaysTrue()
    for one in filters:
        said = _say(one)
        if said is not None:
            found = And(found, said)
    return found


def _say(one: Any) -> Any:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if not attribute:
        return None
    # PyIceberg takes a name wherever it says a term.
    column: Any = ".".join(attribute)
    kind = type(one).__name__
    if kind == "IsNotNull":
        return _NOT_NULL(column)
    if kind == "IsNull":
        return _IS_NULL(column)
    value = getattr(one, "value", None)
    if kind == "In":
        values = [_literal(each) for each in value if each is not None] if value else []
        return _IN(column, values) if values and None not in values else None
    literal = _literal(value)
    compare = _COMPARED.get(kind)
    return None if compare is None or literal is None else compare(column, literal)


def _literal(value: Any) -> Any:
    """A value as PyIceberg takes it; None: it doesn't."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return value if isinstance(value, bool | int | float | str | bytes | Decimal) else None
