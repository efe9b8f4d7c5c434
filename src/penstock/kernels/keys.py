"""Finds keys and their batches for compaction, and makes batches of some records of others.

A kept record keeps its bytes: its offset and timestamp are relative to the batch's base offset and
base timestamp, and neither changes, unless the batch gets a delete horizon (KIP-534): that takes
the place of its base timestamp, and timestamps are written again relative to it. The slow twin is
in `tests/support/twins/keyed.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from crc32c import crc32c
from numpy import int64, uint8, uint64
from typing_extensions import Buffer

from penstock.kernels import keyed, parse
from penstock.kernels.arrays import Int64s, Uint8s, Uint64s
from penstock.kernels.blocks import BlockArena
from penstock.kernels.compress import compress
from penstock.kernels.index import (
    ATTRIBUTES,
    POSITION,
    RECORD_COUNT,
    SIZE,
    BatchIndex,
    check_crcs,
    index_batches,
)
from penstock.kernels.record_blocks import blocks_of, corrupt
from penstock.model.errors import CorruptDataError
from penstock.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
)

CHUNK_BYTES: Final = 64 << 20
_RECORD_GROWTH_BYTES: Final = 12
_NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChunk:
    """Some adjacent batches of a region, and their records in offset order.

    Control batches have no records here, and are kept as they are unless `retain` is given others.

    Args:
        batches: the region's index; the chunk has its rows [first, last).
        offsets, timestamps: per record; timestamps in ms since the epoch.
        hashes: shape (records, 2): high and low half of the key's hash; zeros without a key.
        has_key, is_tombstone: per record.
        batch_of: per record the row of its batch in `batches`.
        bounds: per batch of the chunk where its records begin, and at the end where all end.
        is_opaque: per batch of the chunk whether its records can't be read; it has none here then.
        is_skipped: per batch of the chunk whether it was left out; it has no records here then, and
            none that is kept.
    """

    batches: BatchIndex
    first: int
    last: int
    offsets: Int64s
    timestamps: Int64s
    hashes: Uint64s
    has_key: Uint8s
    is_tombstone: Uint8s
    batch_of: Int64s
    bounds: Int64s
    data: Uint8s
    spans: Int64s
    is_opaque: Uint8s
    is_skipped: Uint8s

    @property
    def record_count(self) -> int:
        """Count the records."""
        return len(self.offsets)


def key_chunks(
    buffer: Buffer,
    hash_key: tuple[int, int],
    *,
    chunk_bytes: int = CHUNK_BYTES,
    keeps_opaque: bool = False,
    skips: Uint8s | None = None,
    arena: BlockArena | None = None,
    subject: str = "batches",
) -> Iterator[KeyChunk]:
    """Look into a region of whole batches, chunk by chunk.

    Args:
        buffer: whole batches with final offsets, in offset order.
        hash_key: two unsigned 64-bit integers, at random, so that no client can prepare keys that
            collide; the same wherever hashes are compared.
        chunk_bytes: of uncompressed records; a chunk is at most one batch larger. A chunk's
            records must no longer be used when the next is asked for.
        keeps_opaque: what to do with a batch whose CRC is right and whose records aren't what its
            header says: a client sent such a batch to a topic whose records aren't validated.
            True: it is as a control batch, without records and kept as it is.
        skips: per batch of the region whether it isn't looked into, since nothing of it is kept.
        arena: to decompress into, whose memory is used again; None: one of its own.

    Raises:
        CorruptDataError: the bytes are not whole, undamaged batches.
    """
    index = index_batches(buffer, subject=subject)
    rows = index.rows
    check_crcs(index.view, rows, subject=subject)
    blocks = blocks_of(rows)
    blocks[rows[:, ATTRIBUTES] & CONTROL != 0, parse.BLOCK_COUNT] = 0
    key = np.array(hash_key, dtype=uint64)
    opaque = np.zeros(len(rows), dtype=uint8)
    skipped = np.zeros(len(rows), dtype=uint8) if skips is None else skips
    blocks[skipped != 0, parse.BLOCK_COUNT] = 0
    arena = BlockArena() if arena is None else arena
    arena.clear()
    first, in_chunk = 0, 0
    for row, (codec, start, end, count) in enumerate(
        zip(
            (rows[:, ATTRIBUTES] & CODEC_MASK).tolist(),
            blocks[:, parse.BLOCK_START].tolist(),
            blocks[:, parse.BLOCK_END].tolist(),
            blocks[:, parse.BLOCK_COUNT].tolist(),
            strict=True,
        )
    ):
        if count:
            before = arena.used
            try:
                blocks[row, : parse.BLOCK_END + 1] = arena.append(
                    codec, index.view[start:end], subject=f"{subject} at byte {start}"
                )
            except CorruptDataError:
                if not keeps_opaque:
                    raise
                arena.used, blocks[row, parse.BLOCK_COUNT], opaque[row] = before, 0, 1
            in_chunk = arena.used
        if in_chunk >= chunk_bytes:
            marks = opaque, skipped
            yield _chunk(
                index, first, row + 1, blocks, arena.data, key, marks, keeps_opaque, subject
            )
            arena.clear()
            first, in_chunk = row + 1, 0
    if first < len(rows):
        marks = opaque, skipped
        yield _chunk(index, first, len(rows), blocks, arena.data, key, marks, keeps_opaque, subject)


def retain(
    chunk: KeyChunk,
    keep: Uint8s,
    *,
    keep_empty: Uint8s | bool,
    delete_horizons: Int64s | None = None,
    replaced: Mapping[int, memoryview] = MappingProxyType({}),
) -> list[memoryview]:
    """The chunk's batches with some of their records, as parts to write one behind the other.

    A batch keeps its offsets, producer fields and codec; one that keeps all its records is copied
    byte for byte.

    Args:
        keep: per record, 0 or 1 (or bool).
        keep_empty: what becomes of batches without a record left, of all or per batch of the
            chunk: kept as a header alone, or left out.
        delete_horizons: per batch of the chunk, ms: from when on its tombstones may go (KIP-534);
            -1: nothing changes in this.
        replaced: per batch of the chunk, as far as there is one, what is written in its place.
    """
    assert len(keep) == chunk.record_count
    keep = np.ascontiguousarray(keep, dtype=uint8)
    rows = chunk.batches.rows[chunk.first : chunk.last]
    count = len(rows)
    kept_before = np.zeros(chunk.record_count + 1, dtype=int64)
    np.cumsum(keep != 0, out=kept_before[1:])
    kept = np.diff(kept_before[chunk.bounds])
    records = np.diff(chunk.bounds)
    horizons = np.full(count, -1, dtype=int64) if delete_horizons is None else delete_horizons
    empties = np.broadcast_to(np.asarray(keep_empty, dtype=bool), (count,))
    is_control = rows[:, ATTRIBUTES] & CONTROL != 0
    whole = (
        is_control
        | (chunk.is_opaque != 0)
        | np.where(rows[:, RECORD_COUNT] == 0, empties, (kept == records) & (horizons < 0))
    ) & (chunk.is_skipped == 0)
    whole[list(replaced)] = False
    view = chunk.batches.view
    parts: list[memoryview] = []
    stretch = -1
    for batch, is_whole in enumerate(whole.tolist()):
        start = int(rows[batch, POSITION])
        if is_whole:
            if stretch < 0:
                stretch = start
            continue
        if stretch >= 0:
            parts.append(view[stretch:start])
            stretch = -1
        if batch in replaced:
            parts.append(replaced[batch])
            continue
        original = view[start : start + int(rows[batch, SIZE])]
        if kept[batch]:
            parts.append(_rewritten(chunk, original, batch, keep, int(horizons[batch])))
        elif empties[batch]:
            parts.append(emptied(original))
    if stretch >= 0:
        parts.append(view[stretch : int(rows[-1, POSITION] + rows[-1, SIZE])])
    return parts


def emptied(original: memoryview) -> memoryview:
    """A batch's header without its records."""
    fields = list(HEADER.unpack_from(original))
    fields[5] &= ~(CODEC_MASK | DELETE_HORIZON)
    fields[7] = _NO_TIMESTAMP
    fields[12] = 0
    return _sealed(fields, memoryview(bytearray(HEADER_BYTES)))


def _chunk(
    index: BatchIndex,
    first: int,
    last: int,
    blocks: Int64s,
    data: Uint8s,
    hash_key: Uint64s,
    marks: tuple[Uint8s, Uint8s],
    keeps_opaque: bool,  # noqa: FBT001 - private
    subject: str,
) -> KeyChunk:
    all_blocks = blocks
    blocks, opaque = blocks[first:last], marks[0][first:last]
    counts = blocks[:, parse.BLOCK_COUNT]
    room = blocks[:, parse.BLOCK_END] - blocks[:, parse.BLOCK_START]
    crowded = np.flatnonzero(counts * parse.RECORD_BYTES_MIN > room)
    if len(crowded):
        if not keeps_opaque:
            raise corrupt(parse.BAD_COUNT, blocks[crowded[0]], subject)
        counts[crowded], opaque[crowded] = 0, 1
    bounds = np.zeros(len(blocks) + 1, dtype=int64)
    np.cumsum(counts, out=bounds[1:])
    count = int(bounds[-1])
    offsets, timestamps = np.empty(count, dtype=int64), np.empty(count, dtype=int64)
    hashes, flags = np.empty((count, 2), dtype=uint64), np.empty(count, dtype=uint8)
    spans = np.empty((count, 2), dtype=int64)
    _, fault, block = keyed.find_keys(
        data, blocks, hash_key, offsets, timestamps, hashes, flags, spans
    )
    if fault != parse.FINE:
        if not keeps_opaque:
            raise corrupt(fault, blocks[block], subject)
        # Each by itself, then all others once more: a client that sends many such costs no more.
        for at in range(len(blocks)):
            _, fault, _ = keyed.find_keys(
                data, blocks[at : at + 1], hash_key, offsets, timestamps, hashes, flags, spans
            )
            if fault != parse.FINE:
                counts[at], opaque[at] = 0, 1
        return _chunk(index, first, last, all_blocks, data, hash_key, marks, keeps_opaque, subject)
    return KeyChunk(
        batches=index,
        first=first,
        last=last,
        offsets=offsets,
        timestamps=timestamps,
        hashes=hashes,
        has_key=flags & keyed.HAS_KEY,
        is_tombstone=(flags & keyed.IS_TOMBSTONE) >> 1,
        batch_of=np.repeat(np.arange(first, last, dtype=int64), counts),
        bounds=bounds,
        data=data,
        spans=spans,
        is_opaque=opaque,
        is_skipped=marks[1][first:last],
    )


def _rewritten(
    chunk: KeyChunk, original: memoryview, batch: int, keep: Uint8s, horizon: int
) -> memoryview:
    first, last = int(chunk.bounds[batch]), int(chunk.bounds[batch + 1])
    room = int(chunk.spans[last - 1, 1] - chunk.spans[first, 0])
    if horizon >= 0:
        room += _RECORD_GROWTH_BYTES * (last - first)
    out = np.empty(HEADER_BYTES + room, dtype=uint8)
    size, count, newest = keyed.write_kept(
        chunk.data, chunk.spans, chunk.timestamps, keep, first, last, horizon, out[HEADER_BYTES:]
    )
    fields = list(HEADER.unpack_from(original))
    codec = fields[5] & CODEC_MASK
    if horizon >= 0:
        fields[5] |= DELETE_HORIZON
        fields[7] = horizon
    if not fields[5] & LOG_APPEND_TIME:
        fields[8] = newest
    fields[12] = count
    if not codec:
        return _sealed(fields, memoryview(out.data)[: HEADER_BYTES + size])
    block = compress(codec, out[HEADER_BYTES : HEADER_BYTES + size].data)
    batch_bytes = bytearray(HEADER_BYTES + len(block))
    batch_bytes[HEADER_BYTES:] = block
    return _sealed(fields, memoryview(batch_bytes))


def _sealed(fields: list[int], batch: memoryview) -> memoryview:
    fields[1] = len(batch) - LENGTH_END
    fields[4] = 0
    HEADER.pack_into(batch, 0, *fields)
    fields[4] = crc32c(batch[CRC_FROM:])
    batch[17:21] = fields[4].to_bytes(4, "big")
    return batch
