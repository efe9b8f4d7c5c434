"""An item's batches piece by piece, with final offsets, however large its runs are. Pure.

Compaction by key goes over a partition several times, so what is held of it is bounded by pieces
and not by runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from typing_extensions import Buffer

from penstock.lake.compaction.items import InputObject, ItemPartition, ItemStore
from penstock.model.errors import CorruptDataError
from penstock.records.batch import HEADER_BYTES, LENGTH_END, patch_run

_OPERATION: Final = "compact"
_INPUT_FIELDS: Final = 5
_LOT_COUNT: Final = 256
_BOUNDS: Final = Struct(">qi11xi")
"""Base offset, batch length, last offset delta. Source: `penstock.records.batch`."""

PIECE_BYTES: Final = 8 << 20
LOT_PIECES: Final = 4
"""Asked for together, so that a store can read several at once."""


@dataclass(slots=True, frozen=True)
class _Part:
    """Bytes [start, end) of a run; `run` is its number in the item."""

    run: int
    start: int
    end: int


def read_batches(
    objects: Sequence[InputObject],
    partition: ItemPartition,
    store: ItemStore,
    *,
    from_offset: int = 0,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[memoryview]:
    """Whole batches in offset order, some megabytes at a time.

    Batches that lie wholly below the log's start are left out, save the very last one.

    Args:
        from_offset: begin with the run that ends past it.

    Raises:
        NotFoundError, RetryableError: as the store.
        CorruptDataError: the batches of a run aren't those that the journal names.
    """
    reader = _Reader(objects, partition)
    parts = list(_parts(partition, from_offset, piece_bytes))
    for lot in _lots(parts, piece_bytes):
        for part, body in zip(
            lot, store.get_ranges([reader.place(part) for part in lot]), strict=True
        ):
            batches = reader.take(part, body)
            if batches.nbytes:
                yield batches


def _parts(partition: ItemPartition, from_offset: int, piece_bytes: int) -> Iterator[_Part]:
    inputs = partition.inputs
    for run in range(partition.run_count):
        _, end_offset, _, _, length = inputs[_INPUT_FIELDS * run : _INPUT_FIELDS * (run + 1)]
        if end_offset <= from_offset:
            continue
        for start in range(0, length, piece_bytes):
            yield _Part(run, start, min(start + piece_bytes, length))


def _lots(parts: Sequence[_Part], piece_bytes: int) -> Iterator[list[_Part]]:
    lot: list[_Part] = []
    size = 0
    for part in parts:
        length = part.end - part.start
        if lot and (size + length > LOT_PIECES * piece_bytes or len(lot) >= _LOT_COUNT):
            yield lot
            lot, size = [], 0
        lot.append(part)
        size += length
    if lot:
        yield lot


class _Reader:
    """Puts the batches together that the borders of pieces cut."""

    def __init__(self, objects: Sequence[InputObject], partition: ItemPartition) -> None:
        self._objects = objects
        self._partition = partition
        self._subject = f"partition {partition.partition} of topic id {partition.topic_id}"
        self._rest = memoryview(b"")
        self._expected = 0

    def place(self, part: _Part) -> tuple[str, int, int, str]:
        """What to ask the store for."""
        _, _, number, position, _ = self._run(part.run)
        source = self._objects[number]
        return source.key, position + part.start, position + part.end, source.origin

    def take(self, part: _Part, body: Buffer) -> memoryview:
        """The whole batches that there are now."""
        base_offset, end_offset, number, _, length = self._run(part.run)
        view = memoryview(body).cast("B")
        if view.nbytes != part.end - part.start:
            raise self._fault(f"{view.nbytes} of {part.end - part.start} bytes")
        if part.start == 0:
            self._expected = base_offset
        if self._rest.nbytes:
            view = memoryview(self._rest.tobytes() + view.tobytes())
        is_raw = self._objects[number].raw
        whole, from_here, following = self._whole(view, is_raw=is_raw)
        self._rest = view[whole:]
        batches = view[:whole]
        if is_raw and whole:
            if batches.readonly:
                batches = memoryview(bytearray(batches))
            patch_run(batches, self._expected, subject=self._subject)
        self._expected = following
        is_last = part.run == self._partition.run_count - 1
        if part.end == length and (self._rest.nbytes or following != end_offset):
            raise self._fault(
                f"batches up to offset {following - 1} and {self._rest.nbytes} bytes more, in a"
                f" run that ends at {end_offset - 1}"
            )
        if following <= self._partition.log_start and not (is_last and part.end == length):
            return batches[:0]
        return batches[from_here:]

    def _whole(self, view: memoryview, *, is_raw: bool) -> tuple[int, int, int]:
        """Where the last whole batch ends, where the first one begins that is wanted, and the
        offset behind the last."""
        position, end, expected = 0, view.nbytes, self._expected
        log_start = self._partition.log_start
        from_here = last = 0
        while end - position >= HEADER_BYTES:
            base_offset, length, delta = _BOUNDS.unpack_from(view, position)
            size = LENGTH_END + length
            if size < HEADER_BYTES or delta < 0 or (not is_raw and base_offset < expected):
                raise self._fault(
                    f"a batch of {size} bytes and offset {base_offset} where {expected} is due"
                )
            if position + size > end:
                break
            last = position
            expected = (expected if is_raw else base_offset) + delta + 1
            position += size
            if expected <= log_start:
                from_here = position
        # The last batch stays in any case: it holds the place of the log's end.
        return position, min(from_here, last), expected

    def _run(self, run: int) -> list[int]:
        return self._partition.inputs[_INPUT_FIELDS * run : _INPUT_FIELDS * (run + 1)]

    def _fault(self, detail: str) -> CorruptDataError:
        return CorruptDataError(_OPERATION, self._subject, detail)
