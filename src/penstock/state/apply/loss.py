"""Applying AcceptLoss: records that are gone for good leave the log, by an operator's word.

Offsets never change: what is lost becomes a gap, as compaction leaves gaps. The run that held the
lost records is replaced by what is right of it, which stays where it lies.
"""

from collections.abc import Iterable
from typing import Final

from penstock.model.ids import PartitionKey
from penstock.records.markers import MARKER_BYTES
from penstock.state.answers import AnyAnswer, LossAccepted, Refusal, Refused
from penstock.state.apply.context import ApplyContext
from penstock.state.changes import RunsMoved
from penstock.state.commands import KEPT_FIELDS, KEPT_RUNS_MAX, AcceptLoss
from penstock.state.numbers import are_int64
from penstock.state.tables import PartitionRow
from penstock.state.transactions import Marker

_FOUND: Final = {
    "wal_runs": "SELECT end_offset, generation, position, length FROM wal_runs"
    " WHERE partition_key = ? AND base_offset = ?",
    "object_runs": "SELECT end_offset, object_id, position, length FROM object_runs"
    " WHERE partition_key = ? AND base_offset = ?",
}


def accept_loss(context: ApplyContext, command: AcceptLoss) -> AnyAnswer:
    """Replace one run by what is right of it, and note the offsets between as lost."""
    if len(command.kept) > KEPT_RUNS_MAX * KEPT_FIELDS:
        return Refused(
            Refusal.INVALID_REPLACEMENT,
            f"{len(command.kept) // KEPT_FIELDS} runs are kept, at most {KEPT_RUNS_MAX} may be",
        )
    tables = context.tables
    tables.flush()
    key = command.partition_key
    partition = tables.partition(key)
    if partition is None:
        return Refused(Refusal.UNKNOWN_PARTITION, f"partition key {key}")
    table, place = "wal_runs", command.wal
    if command.object_key:
        known = tables.object_state(command.object_key)
        table, place = "object_runs", -1 if known is None else known[0]
    found = tables.execute(_FOUND[table], (key, command.base_offset)).fetchone()
    seen = (command.end_offset, place, command.position, command.length)
    if found != seen:
        return Refused(Refusal.INPUT_CHANGED, f"the run at {command.base_offset} is another now")
    kept = _kept(command)
    lost = (
        None
        if kept is None
        else offsets_between(
            command.base_offset, command.end_offset, ((row[0], row[1]) for row in kept)
        )
    )
    if kept is None or not lost:
        return Refused(Refusal.INVALID_REPLACEMENT, "what is kept does not lie within the run")
    lost = without_aborts(context, key, partition, lost)
    tables.execute(
        f"DELETE FROM {table} WHERE partition_key = ? AND base_offset = ?",  # noqa: S608
        (key, command.base_offset),
    )
    tables.executemany(
        f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (
            (key, base, end, place, position, length, newest, batches, None if sum_ < 0 else sum_)
            for base, end, position, length, newest, batches, sum_ in kept
        ),
    )
    if command.object_key:
        tables.add_live_runs(place, len(kept) - 1)
    partition.bytes_live -= command.length - sum(row[3] for row in kept)
    tables.dirty_partitions.add(key)
    tables.executemany(
        "INSERT OR REPLACE INTO lost_ranges VALUES (?, ?, ?, ?)",
        ((key, start, end, context.time_ms) for start, end in lost),
    )
    context.changes.append(
        RunsMoved(
            partition_key=PartitionKey(key),
            start=command.base_offset,
            end=command.end_offset,
            cleaned=True,
            repaired=True,
        )
    )
    return LossAccepted([number for pair in lost for number in pair])


def _kept(command: AcceptLoss) -> list[tuple[int, ...]] | None:
    """The rows of what is kept; None: they don't ascend within the run."""
    numbers = command.kept
    if len(numbers) % KEPT_FIELDS or not are_int64((*numbers, command.partition_key)):
        return None
    rows = [tuple(numbers[at : at + KEPT_FIELDS]) for at in range(0, len(numbers), KEPT_FIELDS)]
    offset, byte = command.base_offset, command.position
    for base, end, position, length, _, batches, _ in rows:
        if base < offset or end <= base or position < byte or length <= 0 or batches <= 0:
            return None
        offset, byte = end, position + length
    if offset > command.end_offset or byte > command.position + command.length:
        return None
    return rows


def offsets_between(start: int, end: int, kept: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The offsets of [start, end) that no kept range [base, end) holds; `kept` ascends."""
    lost = []
    for base, kept_end in kept:
        if base > start:
            lost.append((start, base))
        start = kept_end
    if start < end:
        lost.append((start, end))
    return lost


def without_aborts(
    context: ApplyContext, key: int, partition: PartitionRow, lost: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Make markers of aborts that are among lost offsets again, as rows; what is lost without them.

    A reader that knows of an abort and met no marker would take its producer's later records for
    aborted. Which producer it was is all that readers look at: epoch and time are not known.
    """
    tables = context.tables
    left: list[tuple[int, int]] = []
    for start, end in lost:
        made = tables.execute(
            "SELECT marker_offset, producer_id FROM aborted WHERE partition_key = ?"
            " AND marker_offset >= ? AND marker_offset < ? ORDER BY marker_offset",
            (key, start, end),
        ).fetchall()
        for offset, producer_id in made:
            marker = Marker(producer_id, 0, commits=False, time_ms=context.time_ms)
            tables.new_wal_runs.append(
                [
                    key,
                    offset,
                    offset + 1,
                    marker.generation,
                    producer_id,
                    MARKER_BYTES,
                    context.time_ms,
                    1,
                    None,
                ]
            )
        partition.bytes_live += MARKER_BYTES * len(made)
        left += offsets_between(start, end, ((offset, offset + 1) for offset, _ in made))
    return left
