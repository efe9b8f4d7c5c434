"""Applying RestoreRuns: an object that a repair has put takes the place of what is damaged.

A copy must be the run that the state names, whole, by everything that the state knows of it. What
was encoded again from a table is other batches with the same records: these offsets are noted, so
that they are not taken for batches that producers have sent. Offsets never change.
"""

from itertools import pairwise
from typing import Final

from penstock.model.ids import PartitionKey
from penstock.state.answers import AnyAnswer, Refusal, RunsRestored
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.loss import offsets_between, without_aborts
from penstock.state.apply.records import refuse_object
from penstock.state.changes import RunsMoved
from penstock.state.commands import KEPT_FIELDS, RestoredRun, RestoreRuns
from penstock.state.numbers import are_int64
from penstock.state.tables import PartitionRow

_FIELDS: Final = "position, length, max_timestamp, batch_count, sum"
_FOUND: Final = {
    table: f"SELECT end_offset, {place}, {_FIELDS} FROM {table}"  # noqa: S608
    " WHERE partition_key = ? AND base_offset = ?"
    for table, place in (("wal_runs", "generation"), ("object_runs", "object_id"))
}
_LOST: Final = (
    "SELECT start_offset, end_offset FROM lost_ranges"
    " WHERE partition_key = ? AND start_offset <= ? ORDER BY start_offset DESC LIMIT 1"
)

_Row = tuple[int, ...]


def restore_runs(context: ApplyContext, command: RestoreRuns) -> AnyAnswer:
    """Run by run; 0 or a Refusal for each."""
    refusal = refuse_object(context, command.object_key)
    if refusal is not None:
        return refusal
    tables = context.tables
    tables.flush()
    object_id = tables.add_object(command.object_key, command.object_bytes)
    codes = [int(_restore(context, command, object_id, run) or 0) for run in command.runs]
    return RunsRestored(codes)


def _restore(
    context: ApplyContext, command: RestoreRuns, object_id: int, run: RestoredRun
) -> Refusal | None:
    tables = context.tables
    key = run.partition_key
    # An integer that SQLite can't hold would raise, and end every agent that applies the entry.
    if not are_int64(
        (key, run.base_offset, run.end_offset, run.position, *run.kept, *run.restored)
    ):
        return Refusal.INVALID_REPLACEMENT
    partition = tables.partition(key)
    if partition is None:
        return Refusal.UNKNOWN_PARTITION
    kept = _rows(run.kept, run.base_offset, run.end_offset)
    restored = _rows(run.restored, run.base_offset, run.end_offset)
    if (
        kept is None
        or not restored
        or not _lie_within(restored, 0, command.object_bytes)
        or _overlap(kept, restored)
    ):
        return Refusal.INVALID_REPLACEMENT
    # Retention may have passed the run between the look that found it and this entry.
    if run.end_offset <= partition.log_start:
        return Refusal.INPUT_CHANGED
    refusal = (
        _take_run(context, command, run, kept, restored, partition)
        if run.length
        else _take_lost(context, command, run, kept)
    )
    if refusal is not None:
        return refusal
    tables.executemany(
        "INSERT INTO object_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (_values(key, object_id, row) for row in restored),
    )
    tables.add_live_runs(object_id, len(restored))
    partition.bytes_live += sum(row[3] for row in restored)
    tables.dirty_partitions.add(key)
    if command.rebuilt:
        _note(context, "rebuilt_ranges", key, [(row[0], row[1]) for row in restored])
        both = sorted((row[0], row[1]) for row in (*kept, *restored))
        missing = offsets_between(run.base_offset, run.end_offset, both)
        missing = without_aborts(context, key, partition, missing)
        _note(context, "lost_ranges", key, missing)
    context.changes.append(
        RunsMoved(
            partition_key=PartitionKey(key),
            start=run.base_offset,
            end=run.end_offset,
            cleaned=command.rebuilt,
            repaired=True,
        )
    )
    return None


def _take_run(
    context: ApplyContext,
    command: RestoreRuns,
    run: RestoredRun,
    kept: list[_Row],
    restored: list[_Row],
    partition: PartitionRow,
) -> Refusal | None:
    """Take the run that is listed out of the state, and put back what is kept of it."""
    tables = context.tables
    key = run.partition_key
    table, place = "wal_runs", run.wal
    if run.object_key:
        known = tables.object_state(run.object_key)
        table, place = "object_runs", -1 if known is None else known[0]
    found = tables.execute(_FOUND[table], (key, run.base_offset)).fetchone()
    if found is None or found[:4] != (run.end_offset, place, run.position, run.length):
        return Refusal.INPUT_CHANGED
    _, _, _, _, newest, batches, number = found
    if not command.rebuilt:
        copy = (run.base_offset, run.end_offset, run.length, newest, batches)
        if kept or len(restored) != 1:
            return Refusal.INVALID_REPLACEMENT
        base, end, _, length, copied_newest, copied_batches, copied_sum = restored[0]
        if (base, end, length, copied_newest, copied_batches) != copy:
            return Refusal.INVALID_REPLACEMENT
        if number is not None and number != copied_sum:
            return Refusal.INVALID_REPLACEMENT
    elif not _lie_within(kept, run.position, run.position + run.length):
        return Refusal.INVALID_REPLACEMENT
    tables.execute(
        f"DELETE FROM {table} WHERE partition_key = ? AND base_offset = ?",  # noqa: S608
        (key, run.base_offset),
    )
    tables.executemany(
        f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (_values(key, place, row) for row in kept),
    )
    if run.object_key:
        tables.add_live_runs(place, len(kept) - 1)
    partition.bytes_live -= run.length - sum(row[3] for row in kept)
    return None


def _take_lost(
    context: ApplyContext, command: RestoreRuns, run: RestoredRun, kept: list[_Row]
) -> Refusal | None:
    """Take the offsets out of the lost range that holds them."""
    if kept or not command.rebuilt:
        # Of a loss that was accepted nothing is known any more that would prove a copy.
        return Refusal.INVALID_REPLACEMENT
    key = run.partition_key
    found = context.tables.execute(_LOST, (key, run.base_offset)).fetchone()
    if found is None or found[1] < run.end_offset:
        return Refusal.INPUT_CHANGED
    start, end = found
    context.tables.execute(
        "DELETE FROM lost_ranges WHERE partition_key = ? AND start_offset = ?", (key, start)
    )
    left = [(start, run.base_offset), (run.end_offset, end)]
    _note(context, "lost_ranges", key, [(low, high) for low, high in left if low < high])
    return None


def _note(context: ApplyContext, table: str, key: int, ranges: list[tuple[int, int]]) -> None:
    context.tables.executemany(
        f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)",  # noqa: S608
        ((key, start, end, context.time_ms) for start, end in ranges),
    )


def _values(key: int, place: int, row: _Row) -> _Row:
    base, end, position, length, newest, batches, number = row
    known = None if number < 0 else number
    return (key, base, end, place, position, length, newest, batches, known)  # type: ignore[return-value]


def _rows(numbers: list[int], start: int, end: int) -> list[_Row] | None:
    """Flat numbers as one row per run; None: they don't ascend within the offsets."""
    if len(numbers) % KEPT_FIELDS:
        return None
    rows: list[_Row] = [
        tuple(numbers[at : at + KEPT_FIELDS]) for at in range(0, len(numbers), KEPT_FIELDS)
    ]
    offset = start
    for base, last, _, length, _, batches, _ in rows:
        if base < offset or last <= base or length <= 0 or batches <= 0:
            return None
        offset = last
    return rows if offset <= end else None


def _lie_within(rows: list[_Row], start: int, end: int) -> bool:
    """Whether the bytes of runs follow one another within [start, end)."""
    for _, _, position, length, *_ in rows:
        if position < start:
            return False
        start = position + length
    return start <= end


def _overlap(kept: list[_Row], restored: list[_Row]) -> bool:
    both = sorted((row[0], row[1]) for row in (*kept, *restored))
    return any(end > base for (_, end), (base, _) in pairwise(both))
