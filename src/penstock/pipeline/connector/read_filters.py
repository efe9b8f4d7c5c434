"""A read can heed some of a query's filters before it reads. Pure.

| filter | what is done | who checks again |
| --- | --- | --- |
| `topic`, `partition`: =, <=>, IN, and NOT of them | others aren't read | |
| `partition`, `offset`: <, <=, >, >= ; `offset`: =, <=> | the range is cut | |
| `timestamp`: =, <=>, >, >= | begins where the time index finds the first such record | Spark |
| IS NOT NULL of a column that never is null | | |
| anything else | | Spark |

Timestamps don't rise with offsets, so that no upper bound can end a read, and every record is
looked at by Spark.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET_MAX: Final = 2**63 - 1

Test = Callable[[Any], bool]


@dataclass(slots=True)
class Pushed:
    """The part that filters leave: a partition is read if all its tests pass, in [start, end)."""

    topics: list[Test] = field(default_factory=list)
    partitions: list[Test] = field(default_factory=list)
    start: int = 0
    end: int = _OFFSET_MAX
    time_ms: int | None = None
    """Records before the first one of this time or later are of no use."""

    def takes(self, topic: str, partition: int) -> bool:
        """Whether anything of a partition is wanted."""
        return all(test(topic) for test in self.topics) and all(
            test(partition) for test in self.partitions
        )


def push(filters: Sequence[Any]) -> tuple[Pushed, list[Any]]:
    """Take what can be heeded out of `pyspark.sql.datasource.Filter`s, which all must hold.

    Returns: what is heeded, and the filters that Spark still has to check.
    """
    pushed = Pushed()
    left = [one for one in filters if not _take(one, pushed)]
    return pushed, left


def _take(one: Any, pushed: Pushed) -> bool:
    """Heed one filter; whether that was all there is to it."""
    kind = type(one).__name__
    if kind == "Not":
        return _take_not(one.child, pushed)
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:
        return False
    column = attribute[0]
    if kind == "IsNotNull":
        return column in _NEVER_NULL
    value = getattr(one, "value", None)
    if column in {"topic", "partition"}:
        test = _test(kind, value, str if column == "topic" else int)
        if test is None:
            return False
        (pushed.topics if column == "topic" else pushed.partitions).append(test)
        return True
    if column == "offset":
        return _take_offset(kind, value, pushed)
    if column == "timestamp":
        _take_timestamp(kind, value, pushed)
    return False


def _take_not(child: Any, pushed: Pushed) -> bool:
    attribute = getattr(child, "attribute", ())
    kind = type(child).__name__
    if attribute not in {("topic",), ("partition",)} or kind not in {"EqualTo", "In"}:
        return False
    test = _test(kind, child.value, str if attribute == ("topic",) else int)
    if test is None:
        return False
    tests = pushed.topics if attribute == ("topic",) else pushed.partitions
    # Neither column is ever null, so that what isn't equal is unequal.
    tests.append(lambda value: not test(value))
    return True


def _test(kind: str, value: Any, type_: type) -> Test | None:
    if kind == "In":
        # A null in the list equals nothing; NOT IN with one is true of nothing, so leave it.
        values = frozenset(_of(type_, value)) if isinstance(value, Iterable) else frozenset()
        complete = isinstance(value, Iterable) and len(values) == len(set(value))
        return values.__contains__ if complete else None
    if type(value) is not type_:
        return None
    if kind in {"EqualTo", "EqualNullSafe"}:
        return lambda other: bool(other == value)
    if type_ is int:
        if kind == "LessThan":
            return lambda other: bool(other < value)
        if kind == "LessThanOrEqual":
            return lambda other: bool(other <= value)
        if kind == "GreaterThan":
            return lambda other: bool(other > value)
        if kind == "GreaterThanOrEqual":
            return lambda other: bool(other >= value)
    return None


def _of(type_: type, values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if type(value) is type_)


def _take_offset(kind: str, value: Any, pushed: Pushed) -> bool:
    if kind == "In":
        if isinstance(value, Iterable):
            numbers = list(_of(int, value))
            pushed.start = max(pushed.start, min(numbers, default=0))
            pushed.end = min(pushed.end, max(numbers, default=-1) + 1)
        return False
    if type(value) is not int:
        return False
    if kind in {"EqualTo", "EqualNullSafe"}:
        pushed.start, pushed.end = max(pushed.start, value), min(pushed.end, value + 1)
    elif kind == "LessThan":
        pushed.end = min(pushed.end, value)
    elif kind == "LessThanOrEqual":
        pushed.end = min(pushed.end, value + 1)
    elif kind == "GreaterThan":
        pushed.start = max(pushed.start, value + 1)
    elif kind == "GreaterThanOrEqual":
        pushed.start = max(pushed.start, value)
    else:
        return False
    return True


def _take_timestamp(kind: str, value: Any, pushed: Pushed) -> None:
    if kind not in {"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"}:
        return
    if not isinstance(value, datetime) or value.tzinfo is None:
        return
    # Records have whole milliseconds; rounding down takes some that Spark then leaves out.
    time_ms = (value - _EPOCH) // timedelta(milliseconds=1)
    pushed.time_ms = max(time_ms, pushed.time_ms if pushed.time_ms is not None else 0, 0)
