"""Merging the small batches of a region into large ones.

The slow twin is in `tests/support/twins/merging.py`; docs/compaction.md has the rules. A
merged batch is decoded again, from the bytes that will be stored, and compared with its inputs.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy import int64, uint8

from penstock.kernels import merge
from penstock.kernels.arrays import Int64s, Uint8s
from penstock.kernels.blocks import BlockArena
from penstock.kernels.index import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_DELTA,
    POSITION,
    RECORD_COUNT,
    SIZE,
    BatchIndex,
    index_batches,
)
from penstock.model.errors import CorruptDataError
from penstock.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
)
from penstock.records.merging import (
    AS_PRODUCED,
    RECORD_BYTES_MIN,
    Merging,
    commonest,
    finish_batch,
)

CHUNK_BYTES: Final = 16 << 20
"""Uncompressed bytes of records that are looked at together; a group doesn't go past them."""
_OPERATION: Final = "merge batches"


class Merger:
    """Merges one region after the other, in memory that is used again. One thread."""

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._arena = BlockArena()
        self._decoded = BlockArena()
        self._out: Uint8s = np.empty(0, dtype=uint8)
        self.merged_batches = 0
        """Batches that became part of a larger one, so far."""

    def merge(
        self, region: memoryview, merging: Merging, *, subject: str = "batches"
    ) -> Iterator[memoryview]:
        """The batches to store, in order, some together.

        Args:
            region: whole batches of one partition with final offsets, in offset order.

        Raises:
            CorruptDataError: the bytes are not whole, undamaged batches; or a merged batch didn't
                hold what went into it.
        """
        index = index_batches(region, subject=subject)
        rows = index.rows
        wrong = merge.first_wrong_crc(index.data, rows)
        if wrong < len(rows):
            position, size = int(rows[wrong, POSITION]), int(rows[wrong, SIZE])
            raise CorruptDataError(
                "read batches",
                f"{subject} at byte {position}",
                f"CRC-32C differs in a batch of {size} bytes",
            )
        blocks = np.zeros((len(rows), merge.BLOCK_COLUMNS), dtype=int64)
        first = 0
        while first < len(rows):
            last = self._chunk(index, first, blocks, merging.bytes_max, subject)
            yield from self._merge_chunk(index, first, last, blocks, merging, subject)
            first = last

    def _chunk(
        self, index: BatchIndex, first: int, blocks: Int64s, bytes_max: int, subject: str
    ) -> int:
        """Decompress batches from `first` on: the end of the chunk."""
        rows = index.rows
        # As stored; of what is decompressed here, fewer may be too many.
        end = int(rows[first, POSITION]) + self._chunk_bytes
        last = first + max(1, int(np.searchsorted(rows[first:, POSITION], end)))
        rows, blocks = rows[first:last], blocks[first:last]
        arena = self._arena
        arena.clear()
        arena.reserve(self._chunk_bytes)
        arena.used = merge.find_blocks(index.data, rows, blocks, arena.data, 0, bytes_max)
        enough = arena.used + self._chunk_bytes
        pending = np.flatnonzero(blocks[:, merge.BLOCK_SOURCE] == merge.PENDING)
        for row, (position, size, attributes, count) in zip(
            pending.tolist(),
            rows[pending][:, (POSITION, SIZE, ATTRIBUTES, RECORD_COUNT)].tolist(),
            strict=True,
        ):
            if arena.used >= enough:
                return first + row
            before = arena.used
            try:
                start, end = arena.append(
                    attributes & CODEC_MASK,
                    index.view[position + HEADER_BYTES : position + size],
                    subject=subject,
                    bytes_max=bytes_max,
                )
            except CorruptDataError:
                # A client sent it so, since its CRC is right.
                start = end = before
            if count * RECORD_BYTES_MIN > end - start:
                arena.used = before
                blocks[row, merge.BLOCK_SOURCE] = merge.STAYS
            else:
                blocks[row] = merge.IN_ARENA, start, end
        return last

    def _merge_chunk(
        self,
        index: BatchIndex,
        first: int,
        last: int,
        blocks: Int64s,
        merging: Merging,
        subject: str,
    ) -> Iterator[memoryview]:
        rows, blocks = index.rows[first:last], blocks[first:last]
        merges = blocks[:, merge.BLOCK_SOURCE] != merge.STAYS
        sizes = blocks[:, merge.BLOCK_END] - blocks[:, merge.BLOCK_START]
        room = int((sizes[merges] + merge.RECORD_GROWTH_BYTES * rows[merges, RECORD_COUNT]).sum())
        if len(self._out) < room:
            self._out = np.empty(room, dtype=uint8)
        groups = np.empty((len(rows), merge.GROUP_COLUMNS), dtype=int64)
        count = merge.merge_blocks(
            index.data, self._arena.data, rows, blocks, merging.bytes_max, self._out, groups
        )
        stays_from = -1
        for group in groups[:count].tolist():
            if group[merge.GROUP_COUNT] == merge.STAYS:
                if stays_from < 0:
                    stays_from = group[merge.GROUP_FIRST]
                continue
            if stays_from >= 0:
                yield _slice(index, rows, stays_from, group[merge.GROUP_FIRST])
                stays_from = -1
            yield self._finish(index, rows, blocks, group, merging, subject)
        if stays_from >= 0:
            yield _slice(index, rows, stays_from, len(rows))

    def _finish(
        self,
        index: BatchIndex,
        rows: Int64s,
        blocks: Int64s,
        group: list[int],
        merging: Merging,
        subject: str,
    ) -> memoryview:
        """One merged batch, compared with what went into it."""
        first, last = group[merge.GROUP_FIRST], group[merge.GROUP_LAST]
        count = group[merge.GROUP_COUNT]
        rows, blocks = rows[first:last], blocks[first:last]
        codec = merging.codec
        if codec == AS_PRODUCED:
            codecs = rows[rows[:, RECORD_COUNT] > 0, ATTRIBUTES] & CODEC_MASK
            codec = int(codecs[0]) if (codecs == codecs[0]).all() else commonest(codecs.tolist())
        flags = int(rows[0, ATTRIBUTES]) & (LOG_APPEND_TIME | DELETE_HORIZON)
        base_offset = int(rows[0, BASE_OFFSET])
        at = int(rows[0, POSITION])
        leader_epoch = HEADER.unpack_from(index.view, at)[2]
        header = (
            base_offset,
            0,
            leader_epoch,
            MAGIC,
            0,
            flags,
            int(rows[-1, BASE_OFFSET] + rows[-1, LAST_DELTA]) - base_offset,
            group[merge.GROUP_BASE_TIMESTAMP],
            group[merge.GROUP_MAX_TIMESTAMP],
            -1,
            -1,
            -1,
            count,
        )
        body = self._out[group[merge.GROUP_START] : group[merge.GROUP_END]]
        batch = memoryview(finish_batch(merging, codec, header, body.data))
        if not self._holds(index, rows, blocks, batch, subject):
            raise CorruptDataError(
                _OPERATION,
                subject,
                f"the batch of offsets {base_offset} to {base_offset + header[6]} doesn't hold the"
                f" {count} records of its {len(rows)} inputs",
                "the inputs stay as they are; report it",
            )
        self.merged_batches += len(rows)
        return batch

    def _holds(
        self,
        index: BatchIndex,
        rows: Int64s,
        blocks: Int64s,
        batch: memoryview,
        subject: str,
    ) -> bool:
        """Whether a batch, decoded from its own bytes, has the records of others."""
        fields = HEADER.unpack_from(batch)
        if fields[1] + LENGTH_END != len(batch):
            return False
        self._decoded.clear()
        start, end = self._decoded.append(
            fields[5] & CODEC_MASK, batch[HEADER_BYTES:], subject=subject
        )
        return merge.same_records(
            index.data,
            self._arena.data,
            rows,
            blocks,
            self._decoded.data,
            start,
            end,
            fields[0],
            fields[7],
            fields[12],
        )


def _slice(index: BatchIndex, rows: Int64s, first: int, last: int) -> memoryview:
    end = int(rows[last - 1, POSITION] + rows[last - 1, SIZE])
    return index.view[int(rows[first, POSITION]) : end]
