"""Copies of a stored run: pieces that are put together, and the proof that they are the run. Pure.

A copy counts only if it is the run by everything that the state knows of it: offsets, length,
count of batches, greatest timestamp, each batch's CRC-32C and leader epoch, and the run's sum.
Of what was stored below feature level 4 no sum is known: then only the same place of the same
object counts, since two partitions may hold batches of equal offsets and lengths.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.log.checking import EpochStarts, Rules, check_batches
from penstock.model.errors import CorruptDataError
from penstock.records.batch import patch_run
from penstock.segment import RunDescriber
from penstock.state.leader_epochs import epoch_of_offset
from penstock.state.rows import StoredRun

_ANYWHERE: Final = 1 << 62


class Piece(NamedTuple):
    """Bytes of an object that hold the offsets [base_offset, end_offset) of a partition."""

    key: str
    base_offset: int
    end_offset: int
    position: int
    length: int


def cover(run: StoredRun, pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces that follow one another from the run's first to its last offset; empty: there are
    none. What is left over between runs is left out; the sum decides."""
    by_start: dict[int, list[Piece]] = {}
    for piece in pieces:
        if run.base_offset <= piece.base_offset and piece.end_offset <= run.end_offset:
            by_start.setdefault(piece.base_offset, []).append(piece)
    found: list[Piece] = []
    offset, length = run.base_offset, 0
    while offset < run.end_offset:
        here = by_start.get(offset)
        if here is None:
            return []
        # The longest: of compaction's inputs and outputs the outputs are the fewer.
        piece = max(here, key=lambda one: one.end_offset)
        found.append(piece)
        offset, length = piece.end_offset, length + piece.length
    return found if length == run.length else []


def labelled(data: bytes, run: StoredRun, epochs: EpochStarts) -> memoryview | None:
    """Bytes as producers sent them, with the run's offsets written in; None: they aren't its
    batches, or were appended in several leader epochs."""
    view = memoryview(bytearray(data))
    epoch = epoch_of_offset(epochs, run.base_offset)
    if epoch != epoch_of_offset(epochs, run.end_offset - 1):
        return None
    try:
        end = patch_run(view, run.base_offset, epoch, subject="a copy")
    except CorruptDataError:
        return None
    return view if end == run.end_offset else None


def is_the_run(
    data: memoryview, run: StoredRun, seed: int | None, epochs: EpochStarts, *, same_place: bool
) -> bool:
    """Whether bytes, with final offsets, are the run.

    Args:
        seed: of the partition's sums; None: its topic is gone.
        same_place: the bytes come from the run's own object and position.
    """
    if len(data) != run.length or seed is None or (run.sum is None and not same_place):
        return False
    # The sum proves gaps as well as batches; without one there may be none.
    gap_end = _ANYWHERE if run.sum is not None else 0
    found = check_batches(data, Rules(run.end_offset, gap_end, epochs, seed), run.base_offset)
    if (
        found.fault is not None
        or found.position != len(data)
        or found.end_offset != run.end_offset
        or found.batch_count != run.batch_count
        or (run.sum is not None and found.sum != run.sum)
    ):
        return False
    return describe(data, run).max_timestamp == run.max_timestamp


def describe(data: memoryview, run: StoredRun) -> RunDescriber:
    """A proven copy, for the index of the object that it is put in."""
    described = RunDescriber(
        base_offset=run.base_offset,
        operation="restore run",
        subject=f"partition key {run.partition_key}",
    )
    described.add(data)
    return described


def joined(parts: Sequence[bytes | memoryview]) -> memoryview:
    """Bytes in one piece of memory."""
    return memoryview(parts[0]) if len(parts) == 1 else memoryview(b"".join(parts))
