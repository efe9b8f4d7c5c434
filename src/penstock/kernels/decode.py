"""Record batches into Arrow columns.

Columns are plain `binary` with 32-bit offsets, since that is what Spark takes (it refuses views
and large ones); so what is decoded comes in chunks that are far below 2 GiB. Control batches are
left out, and so are empty ones, which compaction leaves. Offsets may have gaps. Timestamps are
right also where the header's base timestamp is a delete horizon (KIP-534): the deltas count
from it.

The slow twin is `penstock.records.decode.decode_batch`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy import int32, int64, uint8
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.kernels import parse
from penstock.kernels.arrays import Int32s, Int64s, Uint8s
from penstock.kernels.blocks import BlockArena
from penstock.kernels.index import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_DELTA,
    RECORD_COUNT,
    BatchIndex,
    check_crcs,
    index_batches,
)
from penstock.kernels.record_blocks import blocks_of, corrupt
from penstock.records.batch import CODEC_MASK, CONTROL
from penstock.records.decode import DECOMPRESSED_BYTES_MAX

OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
TIMESTAMP_TYPE: Final = "timestamp_type"
KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
ALL: Final = (OFFSET, TIMESTAMP, TIMESTAMP_TYPE, KEY, VALUE)
"""All columns but headers, in the order in which they come."""

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
COLUMN_TYPES: Final = {
    OFFSET: pa.int64(),
    TIMESTAMP: pa.int64(),
    TIMESTAMP_TYPE: pa.int32(),
    KEY: pa.binary(),
    VALUE: pa.binary(),
    HEADERS: pa.list_(HEADER_TYPE),
}
CHUNK_BYTES: Final = 64 << 20
CHUNK_BYTES_MAX: Final = (1 << 31) - DECOMPRESSED_BYTES_MAX - 1
"""A chunk may be one batch larger than is asked for, and must stay below 2 GiB."""
OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DecodedBatches:
    """The batches and records that a region holds.

    Args:
        chunks: record batches with the wanted columns; mostly one, none without records.
        next_offset: one more than the last offset of the last batch; 0 without batches.
    """

    chunks: list[pa.RecordBatch]
    next_offset: int
    schema: pa.Schema

    @property
    def record_count(self) -> int:
        """Count the records of all chunks."""
        return sum(chunk.num_rows for chunk in self.chunks)

    def table(self) -> pa.Table:
        """All chunks as one table."""
        return pa.Table.from_batches(self.chunks, self.schema)

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of all chunks."""
        return self.table().column(name)


def decode(
    buffer: Buffer,
    *,
    start_offset: int = 0,
    end_offset: int = OFFSET_MAX,
    columns: Collection[str] = ALL,
    headers: bool = True,
    subject: str = "batches",
) -> DecodedBatches:
    """Decode a region of whole batches.

    Args:
        buffer: whole batches with final offsets, in offset order.
        start_offset, end_offset: records outside of [start, end) are left out.
        columns: names of ALL (and HEADERS); others aren't decoded.
        headers: whether HEADERS is wanted too.
        subject: what to name in an error.

    Returns:
        Columns: `offset` int64; `timestamp` int64, ms since the epoch; `timestamp_type` int32, 0
        create time, 1 log append time; `key`, `value` binary; `headers` list<struct<key: string,
        value: binary>>, without nulls.

    Raises:
        CorruptDataError: the bytes are not whole, undamaged batches.
    """
    index = index_batches(buffer, subject=subject)
    wanted = wanted_columns(columns, headers=headers)
    chunks = list(
        decode_chunks(
            index,
            start_offset=start_offset,
            end_offset=end_offset,
            columns=wanted,
            subject=subject,
        )
    )
    return DecodedBatches(chunks, index.end_offset, column_schema(wanted))


def decode_chunks(
    index: BatchIndex,
    *,
    start_offset: int = 0,
    end_offset: int = OFFSET_MAX,
    columns: Collection[str] = ALL,
    chunk_bytes: int = CHUNK_BYTES,
    subject: str = "batches",
) -> Iterator[pa.RecordBatch]:
    """Decode chunk by chunk, so that what compressed bytes grow to needs no memory at once.

    Args:
        columns: what is wanted; HEADERS only if named.
        chunk_bytes: uncompressed; a chunk holds whole batches and is at most one batch larger.

    Raises:
        CorruptDataError: as `decode`, when the chunk is asked for.
    """
    assert chunk_bytes <= CHUNK_BYTES_MAX
    rows = index.rows
    wanted = np.flatnonzero(
        (rows[:, ATTRIBUTES] & CONTROL == 0)
        & (rows[:, RECORD_COUNT] > 0)
        & (rows[:, BASE_OFFSET] < end_offset)
        & (rows[:, BASE_OFFSET] + rows[:, LAST_DELTA] >= start_offset)
    )
    if not len(wanted):
        return
    chosen = rows[wanted]
    blocks = blocks_of(chosen)
    if np.any(chosen[:, ATTRIBUTES] & CODEC_MASK):
        stretches = _decompressed(index, chosen, blocks, chunk_bytes, subject)
    else:
        stretches = _in_place(index, chosen, blocks, chunk_bytes, subject)
    schema = column_schema(columns)
    for data, stretch in stretches:
        chunk = _decode_blocks(data, stretch, start_offset, end_offset, schema, subject)
        if chunk.num_rows:
            yield chunk


def wanted_columns(columns: Collection[str], *, headers: bool) -> tuple[str, ...]:
    """The columns in their order."""
    unknown = set(columns) - set(COLUMN_TYPES)
    assert not unknown, unknown
    return tuple(name for name in COLUMN_TYPES if name in columns or (name == HEADERS and headers))


def column_schema(columns: Collection[str]) -> pa.Schema:
    """The schema of chunks."""
    return pa.schema([(name, kind) for name, kind in COLUMN_TYPES.items() if name in columns])


def _in_place(
    index: BatchIndex, rows: Int64s, blocks: Int64s, chunk_bytes: int, subject: str
) -> Iterator[tuple[Uint8s, Int64s]]:
    """Uncompressed batches are decoded where they lie.

    CRCs are checked chunk by chunk, so that the bytes are still in the core's cache when they are
    decoded.
    """
    ends = blocks[:, parse.BLOCK_END]
    first = 0
    while first < len(blocks):
        limit = blocks[first, parse.BLOCK_START] + chunk_bytes
        last = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
        check_crcs(index.view, rows[first:last], subject=subject)
        yield index.data, blocks[first:last]
        first = last


def _decompressed(
    index: BatchIndex,
    rows: Int64s,
    blocks: Int64s,
    chunk_bytes: int,
    subject: str,
) -> Iterator[tuple[Uint8s, Int64s]]:
    """Blocks gathered in an arena, which is used again for the next chunk."""
    arena = BlockArena()
    codecs = (rows[:, ATTRIBUTES] & CODEC_MASK).tolist()
    spans = blocks[:, : parse.BLOCK_END + 1].tolist()
    places: list[tuple[int, int]] = []
    first = 0
    for number, (codec, (start, end)) in enumerate(zip(codecs, spans, strict=True)):
        check_crcs(index.view, rows[number : number + 1], subject=subject)
        places.append(
            arena.append(codec, index.view[start:end], subject=f"{subject} at byte {start}")
        )
        if arena.used >= chunk_bytes or number + 1 == len(codecs):
            stretch = blocks[first : number + 1]
            stretch[:, : parse.BLOCK_END + 1] = places
            yield arena.data, stretch
            arena.clear()
            places.clear()
            first = number + 1


def _decode_blocks(
    data: Uint8s,
    blocks: Int64s,
    start_offset: int,
    end_offset: int,
    schema: pa.Schema,
    subject: str,
) -> pa.RecordBatch:
    counts = blocks[:, parse.BLOCK_COUNT]
    room = blocks[:, parse.BLOCK_END] - blocks[:, parse.BLOCK_START]
    crowded = np.flatnonzero(counts * parse.RECORD_BYTES_MIN > room)
    if len(crowded):  # before memory for so many records is taken
        raise corrupt(parse.BAD_COUNT, blocks[crowded[0]], subject)
    count = int(counts.sum())
    offsets = _array(int64, count)
    timestamps = _array(int64, count)
    stamped = _array(int32, count)
    places = np.empty((count, parse.FIELD_COLUMNS), dtype=int64)
    key_bytes = np.empty(count, dtype=int32)
    value_bytes = np.empty(count, dtype=int32)
    header_counts = np.empty(count, dtype=int32)
    kept, fault, block = parse.find_fields(
        data,
        blocks,
        start_offset,
        end_offset,
        offsets,
        timestamps,
        stamped,
        places,
        key_bytes,
        value_bytes,
        header_counts,
    )
    if fault != parse.FINE:
        raise corrupt(fault, blocks[block], subject)
    places = places[:kept]
    arrays = {
        OFFSET: lambda: pa.array(offsets[:kept]),
        TIMESTAMP: lambda: pa.array(timestamps[:kept]),
        TIMESTAMP_TYPE: lambda: pa.array(stamped[:kept]),
        KEY: lambda: _binary(data, places, parse.FIELD_KEY_AT, key_bytes[:kept]),
        VALUE: lambda: _binary(data, places, parse.FIELD_VALUE_AT, value_bytes[:kept]),
        HEADERS: lambda: _headers(data, places, header_counts[:kept]),
    }
    return pa.RecordBatch.from_arrays([arrays[name]() for name in schema.names], schema=schema)


def _binary(
    data: Uint8s,
    places: Int64s,
    field: int,
    lengths: Int32s,
    kind: pa.DataType | None = None,
) -> pa.Array:
    count = len(lengths)
    offsets = _array(int32, count + 1)
    valid = np.zeros((count + 7) // 8, dtype=uint8)
    size, nulls = parse.column_offsets(lengths, offsets, valid)
    out = _array(uint8, size)
    parse.copy_column(data, places, field, offsets, out)
    return pa.Array.from_buffers(
        kind or pa.binary(),
        count,
        [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(out)],
        nulls,
    )


def _headers(data: Uint8s, places: Int64s, counts: Int32s) -> pa.Array:
    count = int(counts.sum(dtype=int64))
    header_places = np.empty((count, 2), dtype=int64)
    name_bytes = np.empty(count, dtype=int32)
    value_bytes = np.empty(count, dtype=int32)
    parse.find_headers(data, places, counts, header_places, name_bytes, value_bytes)
    ends = np.zeros(len(counts) + 1, dtype=int32)
    np.cumsum(counts, out=ends[1:])
    names = _binary(data, header_places, 0, name_bytes)
    values = _binary(data, header_places, 1, value_bytes)
    headers = pa.StructArray.from_arrays([_names(names), values], fields=list(HEADER_TYPE))
    return pa.ListArray.from_arrays(pa.array(ends), headers, type=COLUMN_TYPES[HEADERS])


def _names(names: pa.Array) -> pa.Array:
    """Header names as strings. Clients are free to send others than UTF-8; as in the Java client,
    what isn't UTF-8 then becomes the replacement character."""
    text = names.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
    return text


def _array(kind: type, count: int) -> NDArray[Any]:
    """Memory of Arrow's pool, which is used again: fresh pages of the system cost more than what
    is written into them."""
    item = np.dtype(kind).itemsize
    return np.frombuffer(pa.allocate_buffer(count * item), dtype=kind)
