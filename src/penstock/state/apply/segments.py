"""Applying commands that move, trim and delete what is stored."""

from penstock.model.ids import PartitionKey
from penstock.records.sums import SUM_MASK, join_sums
from penstock.state import leftovers
from penstock.state.answers import (
    AnyAnswer,
    Condemned,
    Done,
    LeftoversCleared,
    LogTrimmed,
    Refusal,
    SegmentStored,
)
from penstock.state.apply.context import ApplyContext
from penstock.state.apply.histories import is_any_open
from penstock.state.apply.jobs import is_of_open_job
from penstock.state.apply.records import refuse_object
from penstock.state.changes import HeadMoved, RunsMoved
from penstock.state.commands import (
    ClearLeftovers,
    CondemnObjects,
    ForgetObjects,
    MovedRun,
    StoreSegment,
    TrimLog,
)
from penstock.state.meta import FEATURE_LEVEL
from penstock.state.schema import INTEGRITY_LEVEL
from penstock.state.tables import PartitionRow, RunValues

_SOURCE_FIELDS = 4
_DELETE_SPAN = "DELETE FROM wal_runs WHERE partition_key = ? AND base_offset BETWEEN ? AND ?"
_HALF_BITS = 32
_LOW = (1 << _HALF_BITS) - 1
"""Numbers of so many bits may be summed over 2^31 rows in SQLite's integers."""
_SUMS = (
    "SELECT min(base_offset), max(end_offset), sum(length), max(max_timestamp), sum(batch_count),"  # noqa: S608 - masks
    " sum(end_offset - base_offset), count(*), min(generation), max(generation),"
    f" sum(generation & {_LOW}), sum(base_offset & {_LOW}), sum(position & {_LOW}),"
    # A sum of 63 bits doesn't fit into SQLite's integers: by halves, and counted where known.
    f" count(sum), sum(sum & {_LOW}), sum(sum >> {_HALF_BITS})"
    " FROM wal_runs WHERE partition_key = ? AND base_offset BETWEEN ? AND ?"
)


def store_segment(context: ApplyContext, command: StoreSegment) -> AnyAnswer:
    """Name runs in the object instead of the WAL, as far as they are still there as listed."""
    refusal = refuse_object(context, command.object_key)
    if refusal is not None:
        return refusal
    tables = context.tables
    tables.flush()
    object_id = tables.add_object(command.object_key, command.object_bytes)
    moved_count = row_count = 0
    for run in command.runs:
        rows, count = _move(context, run, object_id)
        moved_count += count
        row_count += len(rows)
        # Inserted here, not at the end: a later run of the command may be of the same partition.
        tables.executemany("INSERT INTO object_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        if rows:
            context.changes.append(
                RunsMoved(
                    partition_key=PartitionKey(run.partition_key),
                    start=rows[0][1],
                    end=rows[-1][2],
                )
            )
    tables.add_live_runs(object_id, row_count)
    return SegmentStored(moved_count)


def _move(context: ApplyContext, run: MovedRun, object_id: int) -> tuple[list[RunValues], int]:
    """Take the runs that are as listed out of the WAL; their rows in the object, and how many."""
    sources = run.runs
    if not sources:
        return [], 0
    key = run.partition_key
    span = (key, sources[0], sources[-_SOURCE_FIELDS])
    whole = _joined(context, run, object_id, span)
    if whole is not None:
        context.tables.execute(_DELETE_SPAN, span)
        return [whole], len(sources) // _SOURCE_FIELDS
    # One range read instead of a look-up per run: a segment may hold thousands of them.
    stored = context.tables.execute(
        "SELECT base_offset, end_offset, generation, position, length, max_timestamp,"
        " batch_count, sum FROM wal_runs"
        " WHERE partition_key = ? AND base_offset BETWEEN ? AND ? ORDER BY base_offset",
        span,
    ).fetchall()
    found = {row[0]: row for row in stored}
    rows: list[RunValues] = []
    taken: list[tuple[int, int]] = []
    position = run.position
    row: RunValues | None = None
    row_end = -1
    at = iter(sources)
    for base_offset, generation, wal_position, length in zip(at, at, at, at, strict=True):
        source = found.pop(base_offset, None)
        if source is not None and source[2:5] == (generation, wal_position, length):
            _, end_offset, _, _, _, newest, batch_count, number = source
            taken.append((key, base_offset))
            if row is not None and row_end == position and row[2] == base_offset:
                row[2] = end_offset
                row[5] += length
                row[6] = max(row[6], newest)
                row[7] += batch_count
                row[8] = join_sums(row[8], number)
            else:
                row = [
                    key,
                    base_offset,
                    end_offset,
                    object_id,
                    position,
                    length,
                    newest,
                    batch_count,
                    number,
                ]
                rows.append(row)
            row_end = position + length
        elif source is not None:
            found[base_offset] = source
        position += length
    if found:
        # Something in between stays: one by one.
        context.tables.executemany(
            "DELETE FROM wal_runs WHERE partition_key = ? AND base_offset = ?", taken
        )
    else:
        context.tables.execute(_DELETE_SPAN, span)
    return rows, len(taken)


def _joined(
    context: ApplyContext, run: MovedRun, object_id: int, span: tuple[int, int, int]
) -> RunValues | None:
    """The one row that the runs become if all are as listed, and nothing is between them: nearly
    always so, and a quarter of the time that it takes one by one.

    A run stays as it is until it is gone, and offsets are given once. So as many as were listed are
    those that were; that their sums are the same tells a list of something else.
    """
    base, end, length, newest, batches, records, *sums, known, low, high = context.tables.execute(
        _SUMS, span
    ).fetchone()
    listed = run.runs
    bases, generations, positions, lengths = (listed[at::_SOURCE_FIELDS] for at in range(4))
    if (
        length != sum(lengths)
        or records != end - base
        or sums
        != [
            len(bases),
            min(generations),
            max(generations),
            *map(_sum_of_low, (generations, bases, positions)),
        ]
    ):
        return None
    number = None if known < len(bases) else ((high << _HALF_BITS) + low) & SUM_MASK
    return [run.partition_key, base, end, object_id, run.position, length, newest, batches, number]


def _sum_of_low(numbers: list[int]) -> int:
    # Markers have generations below 0.
    is_low = min(numbers) >= 0 and max(numbers) <= _LOW
    return sum(numbers if is_low else map(_LOW.__and__, numbers))


def trim_log(context: ApplyContext, command: TrimLog) -> AnyAnswer:
    """Raise log starts and drop the runs wholly below, the last of them by later entries where
    there are many."""
    tables = context.tables
    tables.flush()
    is_bounded = tables.meta_int(FEATURE_LEVEL) >= INTEGRITY_LEVEL
    rows_left = leftovers.ROWS_PER_COMMAND if is_bounded else leftovers.UNBOUNDED
    starts: list[int] = []
    at = iter(command.items)
    for key, wanted in zip(at, at, strict=True):
        partition = tables.partition(key)
        if partition is None:
            starts.append(-Refusal.UNKNOWN_PARTITION)
            continue
        start = partition.next_offset if wanted == -1 else wanted
        if not 0 <= start <= partition.next_offset:
            starts.append(-Refusal.OFFSET_OUT_OF_RANGE)
            continue
        if start > partition.log_start:
            rows_left -= _trim(context, key, partition, start, rows_left)
        starts.append(partition.log_start)
    return LogTrimmed(starts)


def _trim(
    context: ApplyContext, key: int, partition: PartitionRow, start: int, rows_max: int
) -> int:
    tables = context.tables
    cleared, length = leftovers.clear_below(tables, key, start, rows_max)
    if cleared >= rows_max:
        leftovers.note(tables, leftovers.TRIM, key)
    for table in ("lost_ranges", "rebuilt_ranges"):
        tables.execute(
            f"DELETE FROM {table} WHERE partition_key = ? AND end_offset <= ?",  # noqa: S608
            (key, start),
        )
    partition.bytes_live -= length
    partition.log_start = start
    tables.dirty_partitions.add(key)
    context.changes.append(HeadMoved(PartitionKey(key), start, partition.next_offset))
    return cleared


def clear_leftovers(context: ApplyContext, command: ClearLeftovers) -> AnyAnswer:
    """Go on with deletions that earlier entries left."""
    rows_max = min(max(1, command.rows_max), leftovers.ROWS_PER_COMMAND)
    return LeftoversCleared(*leftovers.clear(context.tables, rows_max))


def condemn_objects(context: ApplyContext, command: CondemnObjects) -> AnyAnswer:
    """Declare objects dead: what no run names, and keys that were never named at all.

    A key that is condemned before its command arrives is refused then, so an agent that stalled
    between put and commit can't name what is gone. An object that a restored cluster inherited
    (`origin`) is never condemned: without a live run it is forgotten. What an open job may have
    put and not named yet is left alone, even if an agent takes it for an orphan; so is every key
    that was never named while a lost history is open.
    """
    tables = context.tables
    # An unknown key may be what a history that the journal has lost names: of acknowledged records.
    spares_unknown = is_any_open(tables)
    condemned: list[str] = []
    for key in command.keys:
        known = tables.execute(
            "SELECT object_id, live_runs, condemned_position, origin FROM objects WHERE key = ?",
            (key,),
        ).fetchone()
        if known is None:
            if spares_unknown or is_of_open_job(tables, key):
                continue
            object_id = tables.add_object(key, 0)
        else:
            object_id, live_runs, condemned_position, origin = known
            if condemned_position is not None:
                condemned.append(key)
                continue
            if live_runs:
                continue
            if origin:
                # Another cluster's, which deletes it when it is done with it itself.
                tables.execute("DELETE FROM objects WHERE object_id = ?", (object_id,))
                continue
        tables.execute(
            "UPDATE objects SET condemned_position = ?, condemned_ms = ? WHERE object_id = ?",
            (context.position, context.time_ms, object_id),
        )
        condemned.append(key)
    return Condemned(condemned)


def forget_objects(context: ApplyContext, command: ForgetObjects) -> AnyAnswer:
    """Drop the rows of condemned objects; others stay."""
    context.tables.executemany(
        "DELETE FROM objects WHERE key = ? AND condemned_position IS NOT NULL",
        ((key,) for key in command.keys),
    )
    return Done()
