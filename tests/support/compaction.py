"""Compaction's items over a store in memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import Buffer

from penstock.model.errors import NotFoundError
from penstock.records.decode import Record, decode_batch


@dataclass
class MemoryItemStore:
    """`penstock.pipeline.compaction.items.ItemStore` in memory."""

    objects: dict[str, bytes] = field(default_factory=dict)
    reads: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> Buffer:
        """As the port says."""
        self.reads += 1
        if key not in self.objects:
            raise NotFoundError("read", key, "no such object")
        return memoryview(self.objects[key])[start:end]

    def read_into(self, space: memoryview, ranges: Sequence[tuple[str, int, int, str]]) -> None:
        """As the port says."""
        space[:] = b"".join(
            self.get_range(key, start, end, origin=origin) for key, start, end, origin in ranges
        )

    def put(self, parts: Sequence[Buffer]) -> str:
        """As the port says."""
        key = f"out-{next(self._numbers)}"
        self.objects[key] = b"".join(parts)
        return key

    def token_bytes(self, count: int) -> bytes:
        """As the port says, but that they can be guessed."""
        return bytes(range(count))


def records_of(body: Buffer) -> list[tuple[int, Record]]:
    """(offset, record) of whole batches with final offsets; CRCs checked."""
    from penstock.records.batch import batch_bounds, crc_is_right

    view = memoryview(body)
    found = []
    position = 0
    while position < len(view):
        base, size = batch_bounds(view, position)
        batch = view[position : position + size]
        assert crc_is_right(batch)
        found += [(base + record.offset_delta, record) for record in decode_batch(batch)]
        position += size
    return found
