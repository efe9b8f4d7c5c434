"""Applying what becomes of journal time: its jumps are noted (`mark_time`), and times that it had
when it was ahead come down with it (`SetJournalTime`).

Journal time itself is lowered by the entry, before its commands are applied (`journal_time`). What
is left is a walk over all rows that hold a time of the journal, in key order, some thousand rows
per entry; `meta` holds where the next entry goes on. A row that is written meanwhile has a time of
the lowered journal already.
"""

from typing import Any, Final, NamedTuple

import msgspec

from penstock.state.answers import AnyAnswer, JournalTimeSet, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.commands import SetJournalTime
from penstock.state.journal_time import AGREEMENT_MS
from penstock.state.meta import FEATURE_LEVEL, TIME_JUMP, TIME_MARK, TIME_WALK
from penstock.state.schema import TRANSACTIONS_LEVEL
from penstock.state.tables import Tables
from penstock.state.time_jumps import MARK_MS, Marks, decoded, encoded, moved

ROWS_PER_COMMAND: Final = 5_000


class Timed(NamedTuple):
    """A table with times of the journal: its primary key, and the columns."""

    table: str
    key: tuple[str, ...]
    times: tuple[str, ...]


TIMED: Final = (
    Timed("objects", ("object_id",), ("condemned_ms",)),
    Timed("producers", ("partition_key", "producer_id"), ("last_timestamp",)),
    Timed("groups", ("group_id",), ("empty_since_ms",)),
    Timed("group_offsets", ("group_id", "topic_id", "partition"), ("commit_ms",)),
    Timed("pipeline_jobs", ("job",), ("opened_ms", "renewed_ms")),
    Timed("writers", ("writer_id",), ("time_ms",)),
    Timed("table_progress", ("topic_id", "table_name"), ("time_ms",)),
    Timed("clean", ("partition_key",), ("time_ms",)),
    Timed("lost_ranges", ("partition_key", "start_offset"), ("time_ms",)),
    Timed("rebuilt_ranges", ("partition_key", "start_offset"), ("time_ms",)),
    Timed("lost_histories", ("history",), ("noted_ms", "closed_ms")),
    Timed("transactions", ("producer_id",), ("changed_ms",)),
    Timed("pending_offsets", ("producer_id", "group_id", "topic_id", "partition"), ("commit_ms",)),
)
"""All of them, in the order of the walk, whose place is state: new ones come last.
docs/formats/journal.md, "Journal time", lists them, and a test compares both with the schema."""


def mark_time(tables: Tables, time_ms: int) -> None:
    """Note how far journal time is, now and then, and each jump of it."""
    mark_ms = tables.meta_int(TIME_MARK)
    if 0 <= time_ms - mark_ms < MARK_MS or tables.meta_int(FEATURE_LEVEL) < TRANSACTIONS_LEVEL:
        return
    before = tables.meta_text(TIME_JUMP)
    marks = moved(Marks(mark_ms, decoded(before)), time_ms)
    tables.set_meta(TIME_MARK, marks.mark_ms)
    if encoded(marks.jump) != before:
        tables.set_meta(TIME_JUMP, encoded(marks.jump))


def set_journal_time(context: ApplyContext, command: SetJournalTime) -> AnyAnswer:
    """Go on with the walk; one that `begins` starts at the first row."""
    time_ms = context.time_ms
    if time_ms > command.time_ms + AGREEMENT_MS:
        # The entry lowers journal time only where the journal's clock and the appender's agree.
        return Refused(
            Refusal.CLOCKS_DISAGREE, f"journal time {time_ms}, asked for {command.time_ms}"
        )
    tables = context.tables
    place = _first() if command.begins else _place(tables)
    left = min(max(1, command.rows_max), ROWS_PER_COMMAND)
    lowered = 0
    tables.flush()
    while place is not None and left > 0:
        timed, after = TIMED[place[0]], place[1:]
        rows = _rows_after(tables, timed, after, left)
        lowered += _lower(tables, timed, rows, time_ms)
        if len(rows) == left:
            place = [place[0], *rows[-1][: len(timed.key)]]
        else:
            place = [place[0] + 1] if place[0] + 1 < len(TIMED) else None
        left -= len(rows)
    if lowered:
        # Producers are kept in memory with their times.
        tables.producers.clear()
        tables.transactions.forget()
    _set_place(tables, place)
    return JournalTimeSet(lowered, place is None)


def _rows_after(
    tables: Tables, timed: Timed, after: list[Any], limit: int
) -> list[tuple[Any, ...]]:
    """(key..., times...) of the rows past a key; an empty key: from the first row on."""
    keys, marks = ", ".join(timed.key), ", ".join("?" * len(timed.key))
    where = f"WHERE ({keys}) > ({marks})" if after else ""
    return tables.execute(
        f"SELECT {keys}, {', '.join(timed.times)} FROM {timed.table} {where}"  # noqa: S608
        f" ORDER BY {keys} LIMIT ?",
        (*after, limit),
    ).fetchall()


def _lower(tables: Tables, timed: Timed, rows: list[tuple[Any, ...]], time_ms: int) -> int:
    """Set times above journal time to it; returns in how many rows."""
    ahead = [
        row[: len(timed.key)]
        for row in rows
        if any(found is not None and found > time_ms for found in row[len(timed.key) :])
    ]
    sets = ", ".join(f"{column} = min({column}, ?)" for column in timed.times)
    key = " AND ".join(f"{column} = ?" for column in timed.key)
    tables.executemany(
        # min() of NULL is NULL: what has no time keeps none.
        f"UPDATE {timed.table} SET {sets} WHERE {key}",  # noqa: S608
        ((*(time_ms for _ in timed.times), *row) for row in ahead),
    )
    return len(ahead)


def _first() -> list[Any]:
    return [0]


def _place(tables: Tables) -> list[Any] | None:
    """The table's number, and the key that the walk has come to."""
    text = tables.meta_text(TIME_WALK)
    return msgspec.msgpack.decode(bytes.fromhex(text)) if text else None


def _set_place(tables: Tables, place: list[Any] | None) -> None:
    text = "" if place is None else msgspec.msgpack.encode(place).hex()
    if text != tables.meta_text(TIME_WALK):
        tables.set_meta(TIME_WALK, text)
