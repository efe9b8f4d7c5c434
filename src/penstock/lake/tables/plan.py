"""Which ranges one commit takes, and how they are shared out to executors. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.lake.door import PartitionState, Range
from penstock.model.errors import ConflictError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a table does not hold yet. `ranges`: that the log has. `lost`: that it has no more."""

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
    topic_id: str, partitions: Sequence[PartitionState], held: Mapping[int, int]
) -> Wanted:
    """From what the table holds to the high watermark; a new partition from its log's start.

    Raises:
        ConflictError: the table holds more than the log does. Going on where it ends would pass
            over other records of the same offsets.
    """
    ends = [state.high_watermark for state in partitions]
    for partition, offset in sorted(held.items()):
        end = ends[partition] if partition < len(ends) else 0
        if offset > end:
            raise ConflictError(
                "follow topic",
                f"partition {partition} of topic {topic_id}",
                f"was followed up to offset {offset}, and its high watermark is {end}",
                "the log has gone back (a restore?): roll the table back to a snapshot from before "
                "that time, or drop it and make it anew with --restart",
            )
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
    """What is held once these items are: partition -> next offset."""
    after = dict(held)
    for item in items:
        for piece in item:
            after[piece.partition] = max(after.get(piece.partition, 0), piece.end)
    return after


def _piece(area: Range, start: int, end: int) -> Range:
    return Range(topic_id=area.topic_id, partition=area.partition, start=start, end=end)
