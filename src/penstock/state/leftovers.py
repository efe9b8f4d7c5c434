"""Rows that a deletion leaves to be cleared by later entries. Used by apply.

Deleting a topic and raising a log start take effect in one entry, whatever they delete: the name is
free and the offsets are gone for readers at once. Of the rows that hang on them an entry deletes at
most `ROWS_PER_COMMAND`; what remains is noted in `leftovers`, and `ClearLeftovers` goes on with it,
so that no entry holds up the others for longer, however large the topic was.

Rows of a deleted topic are those of a topic key that is never given out again. Rows below a log
start end at or below the start. No reader finds either: see docs/formats/journal.md, "Leftovers".
"""

from collections import Counter
from typing import Final

from penstock.model.ids import PARTITION_BITS
from penstock.state.tables import Tables

ROWS_PER_COMMAND: Final = 5_000
UNBOUNDED: Final = 1 << 62
"""Below the level of integrity a command deletes all of its rows."""
TOPIC: Final = 0
TRIM: Final = 1
_RUNS: Final = ("wal_runs", "object_runs")
# Runs in WALs first: what is moved into an object meanwhile is cleared there.
_OF_A_TOPIC: Final = (*_RUNS, "producers", "aborted")
_SECOND: Final = {
    "wal_runs": "base_offset",
    "object_runs": "base_offset",
    "producers": "producer_id",
    "aborted": "marker_offset",
}


def note(tables: Tables, kind: int, key: int, topic_id: bytes = b"") -> None:
    """Leave rows to later entries. `key`: the partition's, or the first of the topic's."""
    tables.execute("INSERT OR IGNORE INTO leftovers VALUES (?, ?, ?)", (kind, key, topic_id))


def clear(tables: Tables, rows_max: int) -> tuple[int, bool]:
    """Delete rows that were left, of one deletion after the other.

    Returns:
        How many rows were deleted, and whether any are left.
    """
    tables.flush()
    left = rows_max
    while left > 0:
        found = tables.execute("SELECT kind, key, topic_id FROM leftovers LIMIT 1").fetchone()
        if found is None:
            return rows_max - left, False
        kind, key, topic_id = found
        if kind == TOPIC:
            cleared = clear_topic(tables, key, topic_id, left)
        else:
            partition = tables.partition(key)
            # A partition that is gone is its topic's leftover.
            cleared = 0
            if partition is not None:
                cleared, length = clear_below(tables, key, partition.log_start, left)
                partition.bytes_live -= length
                tables.dirty_partitions.add(key)
        left -= cleared
        if left > 0:
            tables.execute("DELETE FROM leftovers WHERE kind = ? AND key = ?", (kind, key))
    return rows_max - left, True


def clear_topic(tables: Tables, first: int, topic_id: bytes, rows_max: int) -> int:
    """Delete rows of the partition keys of one topic from `first` on, and groups' offsets of it.

    Returns: how many, at most `rows_max`; fewer where nothing is left.
    """
    left = rows_max
    last = first + (1 << PARTITION_BITS)
    for table in _OF_A_TOPIC:
        if left > 0:
            left -= _clear_range(tables, table, first, last, left)
    for table in ("group_offsets", "share_partitions"):
        if left > 0:
            rows = tables.execute(
                f"SELECT group_id, partition FROM {table} WHERE topic_id = ? LIMIT ?",  # noqa: S608
                (topic_id, left),
            ).fetchall()
            tables.executemany(
                f"DELETE FROM {table} WHERE group_id = ? AND topic_id = ? AND partition = ?",  # noqa: S608
                ((group_id, topic_id, partition) for group_id, partition in rows),
            )
            left -= len(rows)
    return rows_max - left


def clear_below(tables: Tables, key: int, start: int, rows_max: int) -> tuple[int, int]:
    """Delete runs of a partition that end at or below its log start, and aborted transactions that
    ended below it.

    Returns: how many, at most `rows_max`, and their bytes.
    """
    left = rows_max
    length = 0
    gone: Counter[int] = Counter()
    for table in _RUNS:
        if left <= 0:
            break
        # Runs don't overlap, so those below the log start come first.
        bound = tables.execute(
            f"SELECT base_offset FROM {table} WHERE partition_key = ? AND base_offset < ?"  # noqa: S608
            " AND end_offset <= ? ORDER BY base_offset LIMIT 1 OFFSET ?",
            (key, start, start, left),
        ).fetchone()
        below = (key, start if bound is None else bound[0], start)
        where = "WHERE partition_key = ? AND base_offset < ? AND end_offset <= ?"
        if table == "object_runs":
            for object_id, count in tables.execute(
                f"SELECT object_id, count(*) FROM object_runs {where} GROUP BY object_id",  # noqa: S608
                below,
            ):
                gone[object_id] += count
        (part,) = tables.execute(
            f"SELECT coalesce(sum(length), 0) FROM {table} {where}",  # noqa: S608
            below,
        ).fetchone()
        length += part
        left -= tables.execute(f"DELETE FROM {table} {where}", below).rowcount  # noqa: S608
    tables.drop_object_runs(sorted(gone.items()))
    if left > 0:
        left -= tables.execute(
            "DELETE FROM aborted WHERE partition_key = ? AND marker_offset IN (SELECT marker_offset"
            " FROM aborted WHERE partition_key = ? AND marker_offset < ? LIMIT ?)",
            (key, key, start, left),
        ).rowcount
    return rows_max - left, length


def _clear_range(tables: Tables, table: str, first: int, last: int, rows_max: int) -> int:
    second = _SECOND[table]
    where = "partition_key >= ? AND partition_key < ?"
    arguments: tuple[int, ...] = (first, last)
    bound = tables.execute(
        f"SELECT partition_key, {second} FROM {table} WHERE {where}"  # noqa: S608
        f" ORDER BY partition_key, {second} LIMIT 1 OFFSET ?",
        (first, last, rows_max),
    ).fetchone()
    if bound is not None:
        where = f"partition_key >= ? AND (partition_key, {second}) < (?, ?)"
        arguments = (first, *bound)
    if table == "object_runs":
        dropped = tables.execute(
            f"SELECT object_id, count(*) FROM object_runs WHERE {where} GROUP BY object_id",  # noqa: S608
            arguments,
        ).fetchall()
        tables.drop_object_runs(dropped)
    return tables.execute(f"DELETE FROM {table} WHERE {where}", arguments).rowcount  # noqa: S608
