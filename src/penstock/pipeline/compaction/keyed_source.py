"""An item's batches lot by lot, with final offsets, however large its runs are. Pure.

Compaction by key goes over a partition several times, so what is held of it is bounded by lots and
not by runs, and all lots lie in the same memory: new memory for each costs more than reading it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.kernels.settle import NO_BATCH, settle
from penstock.model.errors import CorruptDataError
from penstock.pipeline.compaction.items import ItemStore, KeyedItem
from penstock.records.sums import partition_seed

_OPERATION: Final = "compact"
_INPUT_FIELDS: Final = 5
_LOT_COUNT: Final = 1024

LOT_BYTES: Final = 16 << 20
"""Asked for together, so that a store can read several stretches at once."""


@dataclass(slots=True, frozen=True)
class _Part:
    """Bytes [start, end) of a run; `run` is its number in the item."""

    run: int
    start: int
    end: int


class KeyedSource:
    """Reads an item's batches, as often as is asked.

    Batches that lie wholly below the log's start are left out.
    """

    def __init__(self, item: KeyedItem, store: ItemStore, *, lot_bytes: int = LOT_BYTES) -> None:
        self._objects = item.objects
        self._partition = item.partition
        self._store = store
        self._lot_bytes = lot_bytes
        self._subject = (
            f"partition {item.partition.partition} of topic id {item.partition.topic_id}"
        )
        self._seed = partition_seed(
            bytes.fromhex(item.partition.topic_id), item.partition.partition
        )
        self._space = bytearray()
        self.read_bytes = 0

    def regions(self, *, first_run: int = 0, end_run: int | None = None) -> Iterator[memoryview]:
        """Whole batches of runs [first_run, end_run) in offset order. What is given is overwritten
        by what comes next.

        Raises:
            NotFoundError, RetryableError: as the store.
            CorruptDataError: the batches of a run aren't those that the journal names.
        """
        runs = range(first_run, self._partition.run_count if end_run is None else end_run)
        rest = b""
        expected = total = 0
        for lot in self._lots(runs):
            length = sum(part.end - part.start for part in lot)
            if len(self._space) < len(rest) + length:
                self._space = bytearray(len(rest) + length)
            space = memoryview(self._space)
            space[: len(rest)] = rest
            places = [self._place(part) for part in lot]
            self._store.read_into(space[len(rest) : len(rest) + length], places)
            self.read_bytes += length
            data = np.frombuffer(space, dtype=np.uint8)
            at, limit, wanted = 0, len(rest), 0
            for part in lot:
                base_offset, end_offset, number, _, run_bytes = self._run(part.run)
                limit += part.end - part.start
                if part.start == 0:
                    expected, total = base_offset, 0
                behind, expected, begin, found = settle(
                    data,
                    at,
                    limit,
                    expected=expected,
                    raw=self._objects[number].raw,
                    log_start=self._partition.log_start,
                    seed=self._seed,
                )
                total += found
                if behind == NO_BATCH:
                    raise self._fault(f"no batch at byte {part.start + begin - at} of its run")
                if part.end == run_bytes and (behind != limit or expected != end_offset):
                    raise self._fault(
                        f"batches up to offset {expected - 1} and {limit - behind} bytes more, in a"
                        f" run that ends at {end_offset - 1}"
                    )
                if part.end == run_bytes:
                    self._partition.check_sum(part.run, total)
                if begin > at:
                    wanted = begin
                at = behind
            if at > wanted:
                yield space[wanted:at]
            rest = space[at:limit].tobytes()

    def _lots(self, runs: range) -> Iterator[list[_Part]]:
        lot: list[_Part] = []
        size = 0
        for part in self._parts(runs):
            if size + part.end - part.start > self._lot_bytes or len(lot) >= _LOT_COUNT:
                yield lot
                lot, size = [], 0
            lot.append(part)
            size += part.end - part.start
        if lot:
            yield lot

    def _parts(self, runs: range) -> Iterator[_Part]:
        room = self._lot_bytes
        for run in runs:
            start, run_bytes = 0, self._run(run)[4]
            while start < run_bytes:
                end = min(start + room, run_bytes)
                yield _Part(run, start, end)
                room -= end - start
                start = end
                if not room:
                    room = self._lot_bytes

    def _place(self, part: _Part) -> tuple[str, int, int, str]:
        _, _, number, position, _ = self._run(part.run)
        source = self._objects[number]
        return source.key, position + part.start, position + part.end, source.origin

    def _run(self, run: int) -> list[int]:
        return self._partition.inputs[_INPUT_FIELDS * run : _INPUT_FIELDS * (run + 1)]

    def _fault(self, detail: str) -> CorruptDataError:
        return CorruptDataError(_OPERATION, self._subject, detail)
