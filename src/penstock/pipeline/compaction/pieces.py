"""Pieces of a plan packed into items, an object each. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from penstock.pipeline.compaction.items import MIB, CompactionSettings, ItemPartition, JoinItem
from penstock.pipeline.compaction.listing import Listing, PartitionRuns
from penstock.records.merging import Merging

GARBAGE: Final = "garbage"
SCATTERED: Final = "scattered"


@dataclass(slots=True)
class Piece:
    """One output run: adjacent runs of one partition."""

    topic_id: bytes
    partition: int
    ordinal: int
    """The piece's number within its partition: an object holds at most one run per partition."""
    runs: PartitionRuns
    start: int
    end: int
    size_bytes: int
    reason: str
    log_start: int
    merging: Merging | None = None


@dataclass(slots=True)
class _Open:
    """An item that is being filled."""

    pieces: list[Piece] = field(default_factory=list)
    size_bytes: int = 0
    run_count: int = 0


def fill(pieces: list[Piece], listing: Listing, settings: CompactionSettings) -> Iterator[JoinItem]:
    """Pack pieces into objects. Neighbours in (topic id, partition) go together, since that is how
    they lie in their input objects too, where one read then has them all."""
    pieces.sort(key=lambda piece: (piece.ordinal, piece.topic_id, piece.partition))
    for _, round_ in groupby(pieces, key=lambda piece: piece.ordinal):
        filled = _Open()
        for piece in round_:
            run_count = piece.end - piece.start
            if filled.pieces and (
                filled.size_bytes + piece.size_bytes > settings.object_bytes_target
                or filled.run_count + run_count > settings.item_runs_max
                or len(filled.pieces) >= settings.item_partitions_max
            ):
                yield make_item(filled.pieces, listing, settings)
                filled = _Open()
            filled.pieces.append(piece)
            filled.size_bytes += piece.size_bytes
            filled.run_count += run_count
        yield make_item(filled.pieces, listing, settings)


def make_item(pieces: Sequence[Piece], listing: Listing, settings: CompactionSettings) -> JoinItem:
    """One object of these pieces, which are sorted by (topic id, partition), each once."""
    numbers: dict[int, int] = {}
    partitions = []
    for piece in pieces:
        runs, start, end = piece.runs, piece.start, piece.end
        inputs = [0] * (5 * (end - start))
        inputs[0::5] = runs.bases[start:end]
        inputs[1::5] = runs.ends[start:end]
        inputs[2::5] = [
            numbers.setdefault(number, len(numbers)) for number in runs.objects[start:end]
        ]
        inputs[3::5] = runs.positions[start:end]
        inputs[4::5] = runs.lengths[start:end]
        partitions.append(
            ItemPartition(
                topic_id=piece.topic_id.hex(),
                partition=piece.partition,
                inputs=inputs,
                log_start=piece.log_start,
                sums=runs.sums[start:end],
                merging=piece.merging,
            )
        )
    return JoinItem(
        objects=[listing.input_object(number) for number in numbers],
        partitions=partitions,
        reason=_reason(pieces, settings),
    )


def _reason(pieces: Sequence[Piece], settings: CompactionSettings) -> str:
    counts = Counter(piece.reason for piece in pieces)
    meanings = {
        "target": f"reach {settings.run_bytes_target / MIB:g} MiB",
        "growth": f"grow {settings.growth}-fold",
        "old": f"are old and grow {settings.old_growth}-fold",
        "small": "are rewritten for that alone",
        GARBAGE: f"lie in objects of which less than {settings.live_share_min:.0%} is live",
        SCATTERED: f"are old and lie in objects below {settings.small_object_bytes / MIB:g} MiB",
    }
    reasons = [f"{counts[name]} {meaning}" for name, meaning in meanings.items() if counts[name]]
    if merged := sum(piece.merging is not None for piece in pieces):
        reasons.append(f"{merged} have small batches to merge")
    return ", ".join(reasons)
