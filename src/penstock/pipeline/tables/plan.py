"""One commit takes certain ranges, which executors share. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import ConflictError
from penstock.pipeline.api_messages import PartitionState, Range
from penstock.state.leader_epochs import (
    FIRST_EPOCH,
    EpochStart,
    end_of_epoch,
    epoch_of_offset,
)

ITEM_BYTES_MIN: Final = 4 << 20
"""Items aren't cut smaller only so that all executors have one: each writes a file of its own."""
_NO_PARTITION: Final = PartitionState(log_start=0, high_watermark=0, size_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The records that a table lacks. `ranges`: the log has them. `lost`: the log no longer has
    them."""

    ranges: tuple[Range, ...]
    lost: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExtent:
    """Offsets [start, end) of a partition and how many bytes they lie in."""

    partition: int
    start: int
    end: int
    length_bytes: int


def plan_wanted(
    topic_id: str,
    partitions: Sequence[PartitionState],
    held: Mapping[int, int],
    epochs: Mapping[int, int] | None = None,
) -> Wanted:
    """From what the table holds to the high watermark; a new partition from its log's start.

    Args:
        held: by partition, next offsets.
        epochs: by partition, the leader epochs of the records before those, where they are known.

    Raises:
        ConflictError: the table holds more than the log does, or other records. Going on where it
            ends would pass over other records of the same offsets.
    """
    check_history(topic_id, partitions, held, epochs)
    ranges: list[Range] = []
    lost: list[Range] = []
    for partition, state in enumerate(partitions):
        start = held.get(partition, state.log_start)
        if start < state.log_start:
            end = state.log_start
            lost.append(Range(topic_id=topic_id, partition=partition, start=start, end=end))
            start = end
        if start < state.high_watermark:
            ranges.append(
                Range(topic_id=topic_id, partition=partition, start=start, end=state.high_watermark)
            )
    return Wanted(ranges=tuple(ranges), lost=tuple(lost))


def check_history(
    topic_id: str,
    partitions: Sequence[PartitionState],
    held: Mapping[int, int],
    epochs: Mapping[int, int] | None = None,
) -> None:
    """Check that a table's records are the log's. Args and Raises: as `plan_wanted`."""
    for partition, offset in sorted(held.items()):
        state = partitions[partition] if partition < len(partitions) else _NO_PARTITION
        found = _other_history(state, offset, (epochs or {}).get(partition))
        if found:
            raise ConflictError(
                "follow topic",
                f"partition {partition} of topic {topic_id}",
                f"was followed up to offset {offset}, and {found}",
                "the log has gone back (a restore?): roll the table back to a snapshot from before "
                "that time, or drop it and make it again with --restart",
            )


def _other_history(state: PartitionState, offset: int, epoch: int | None) -> str:
    """Say why the records before `offset`, the last of them of leader epoch `epoch`, are not this
    log's; "": they are, or nothing speaks against it."""
    if offset > state.high_watermark:
        return f"its high watermark is {state.high_watermark}"
    if epoch is None or not offset:
        return ""
    found = end_of_epoch(_starts(state), epoch, end_offset=state.high_watermark)
    if found is None or found[0] != epoch:
        # Of another restore: of the same backup, too, after which epochs differ.
        return f"its log has no records of leader epoch {epoch}, of which the last one was"
    if found[1] < offset:
        return f"leader epoch {epoch}, of which the last record was, ends at {found[1]} in its log"
    return ""


def epochs_before(
    offsets: Mapping[int, int], partitions: Sequence[PartitionState]
) -> dict[int, int]:
    """Return, by partition, the leader epoch of the record before a next offset."""
    return {
        partition: epoch_of_offset(_starts(partitions[partition]), offset - 1)
        for partition, offset in offsets.items()
        if offset
    }


def _starts(state: PartitionState) -> Sequence[EpochStart]:
    return state.epoch_starts or FIRST_EPOCH


def cut_ranges(
    wanted: Sequence[Range], runs: Iterable[RunExtent], *, bytes_max: int
) -> list[tuple[Range, int]]:
    """The wanted ranges in pieces of at most about `bytes_max`, each with its size in bytes.

    A run that is larger is cut by offsets, as if its records were of one size. What no run
    covers (a gap that compaction left, a WAL that isn't listed) belongs to the piece before it,
    so that the pieces tile the ranges.
    """
    assert bytes_max > 0
    by_partition: dict[int, list[RunExtent]] = {}
    for run in runs:
        by_partition.setdefault(run.partition, []).append(run)
    pieces: list[tuple[Range, int]] = []
    for area in wanted:
        start, size_bytes = area.start, 0
        for run in sorted(by_partition.get(area.partition, ()), key=lambda run: run.start):
            low, high = max(run.start, area.start), min(run.end, area.end)
            if low >= high:
                continue
            length_bytes = max(run.length_bytes * (high - low) // (run.end - run.start), 1)
            parts = -(-length_bytes // bytes_max)
            for part in range(parts):
                part_start = low + (high - low) * part // parts
                if size_bytes and size_bytes + length_bytes // parts > bytes_max:
                    pieces.append((_piece(area, start, part_start), size_bytes))
                    start, size_bytes = part_start, 0
                size_bytes += length_bytes // parts
        if start < area.end:
            pieces.append((_piece(area, start, area.end), size_bytes))
    return [piece for piece in pieces if piece[0].start < piece[0].end]


def item_bytes(pieces_bytes: int, *, parallelism: int, commit_bytes: int, bytes_max: int) -> int:
    """Return how many stored bytes an item takes, so that a commit is work for all executors.

    Args:
        pieces_bytes: all that is wanted.
        bytes_max: no item takes more.
    """
    share = -(-min(pieces_bytes, commit_bytes) // parallelism)
    return min(max(share, ITEM_BYTES_MIN), bytes_max)


def remaining_pieces(
    pieces: Sequence[tuple[Range, int]], wanted: Sequence[Range]
) -> list[tuple[Range, int]] | None:
    """Return the rest of an earlier plan's pieces for the ranges that are wanted now.

    None: they don't tile these ranges, which then have to be planned again.
    """
    by_partition: dict[int, list[tuple[Range, int]]] = {}
    for piece, size_bytes in pieces:
        by_partition.setdefault(piece.partition, []).append((piece, size_bytes))
    left: list[tuple[Range, int]] = []
    for area in wanted:
        at = area.start
        for piece, size_bytes in by_partition.get(area.partition, ()):
            start, end = max(piece.start, area.start), min(piece.end, area.end)
            if start >= end:
                continue
            if start != at:
                return None
            part_bytes = size_bytes * (end - start) // (piece.end - piece.start)
            left.append((_piece(area, start, end), part_bytes))
            at = end
        if at != area.end:
            return None
    return left


def share_out(
    pieces: Sequence[tuple[Range, int]], *, item_bytes: int, commit_bytes: int
) -> list[list[list[Range]]]:
    """Pieces as commits of items: an item holds up to `item_bytes` of however many partitions,
    so that many partitions don't mean many small files; a commit up to `commit_bytes`.

    A partition's pieces stay in order from commit to commit.
    """
    commits: list[list[list[Range]]] = []
    in_item = in_commit = 0
    for piece, size_bytes in pieces:
        if not commits or (in_commit and in_commit + size_bytes > commit_bytes):
            commits.append([[]])
            in_item = in_commit = 0
        elif in_item and in_item + size_bytes > item_bytes:
            commits[-1].append([])
            in_item = 0
        commits[-1][-1].append(piece)
        in_item += size_bytes
        in_commit += size_bytes
    return commits


def offsets_after(held: Mapping[int, int], items: Iterable[Sequence[Range]]) -> dict[int, int]:
    """Return what is held once these items are: partition -> next offset."""
    after = dict(held)
    for item in items:
        for piece in item:
            after[piece.partition] = max(after.get(piece.partition, 0), piece.end)
    return after


def _piece(area: Range, start: int, end: int) -> Range:
    return Range(topic_id=area.topic_id, partition=area.partition, start=start, end=end)
