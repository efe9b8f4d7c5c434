"""Measures how far tables are behind their topics, in records and in seconds. Pure.

Seconds are counted by the clock of the process that looks, never by records' own timestamps, which
producers set as they like: the lag of a table is the time since a record was first seen that it
still lacks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MARKS_MAX: Final = 32
"""Remembered looks of a table; with more, each second one is forgotten, so that the lag of one that
is far behind is shown a little too short at most by the distance of two looks."""


@dataclass(frozen=True, slots=True)
class Behind:
    """The records that a table lacks. `seconds`: since the oldest of these records was seen."""

    records: int
    seconds: float


@dataclass(slots=True)
class _Mark:
    seen_s: float
    ends: Sequence[int]
    """Per partition: the high watermark then."""


@dataclass(slots=True)
class _Table:
    marks: list[_Mark] = field(default_factory=list)


class Lags:
    """Remembers what was seen of each topic that has a table."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}

    def look(
        self,
        name: str,
        *,
        now_s: float,
        starts: Sequence[int],
        ends: Sequence[int],
        held: Mapping[int, int],
        held_for_s: float | None,
    ) -> Behind:
        """Note how far topic and table are, and return what the table lacks.

        Args:
            name: the table's.
            now_s: by a monotonic clock.
            starts, ends: per partition, the log's start and the high watermark.
            held: per partition, the next offset that the table wants.
            held_for_s: for how long the table has been where it is; None: it isn't known. At the
                first look its missing records count as seen when it came there.
        """
        table = self._tables.get(name)
        wanted = [max(held.get(partition, start), start) for partition, start in enumerate(starts)]
        if table is None:
            table = self._tables[name] = _Table()
            table.marks.append(_Mark(now_s - (held_for_s or 0.0), tuple(ends)))
        elif list(table.marks[-1].ends if table.marks else ()) != list(ends):
            table.marks.append(_Mark(now_s, tuple(ends)))
        if len(table.marks) > MARKS_MAX:
            # The oldest stays: it says how long ago.
            table.marks[1:] = table.marks[2::2]
        records = sum(max(0, end - offset) for end, offset in zip(ends, wanted, strict=True))
        while len(table.marks) > 1 and _covers(wanted, table.marks[0].ends):
            del table.marks[0]
        if not records:
            return Behind(0, 0.0)
        return Behind(records, max(0.0, now_s - table.marks[0].seen_s))

    def keep(self, names: Iterable[str]) -> None:
        """Forget all other tables."""
        for name in set(self._tables) - set(names):
            del self._tables[name]


def _covers(wanted: Sequence[int], ends: Sequence[int]) -> bool:
    return all(offset >= end for offset, end in zip(wanted, ends, strict=False))
