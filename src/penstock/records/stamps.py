"""Offsets and timestamps of a stored batch's records, and nothing else of them. Pure."""

from collections.abc import Iterator
from typing import Final

from penstock.records.batch import (
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchError,
    BatchFault,
)
from penstock.records.streams import PIECE_BYTES, open_stream
from penstock.records.varints import INT32_BITS, INT64_BITS, MalformedError, read_raw, zigzag

_HEAD_BYTES_MAX: Final = 21
"""Length, attributes, timestamp delta, offset delta: 5 + 1 + 10 + 5."""


def record_stamps(batch: memoryview, *, records_max: int) -> Iterator[tuple[int, int]]:
    """(offset delta, timestamp in ms) of each record of a stored batch, in order.

    The cheap look for look-ups by time: nothing but these two is checked, and deltas may have gaps.

    Args:
        records_max: a batch whose header says more is not looked into.

    Raises:
        BatchError: TOO_LARGE: more records; INVALID: the records are not what the header says.
    """
    fields = HEADER.unpack_from(batch)
    attributes, base_timestamp, max_timestamp, count = fields[5], fields[7], fields[8], fields[12]
    if count > records_max:
        raise BatchError(BatchFault.TOO_LARGE, f"{count} records; {records_max} are looked at")
    stream = open_stream(attributes & CODEC_MASK, batch[HEADER_BYTES:])
    data, position = b"", 0
    for number in range(count):
        try:
            while len(data) - position < _HEAD_BYTES_MAX and (piece := stream.read(PIECE_BYTES)):
                data, position = data[position:] + piece, 0
            length, start = read_raw(data, position, INT32_BITS)
            delta, position = read_raw(data, start + 1, INT64_BITS)
            offset, _ = read_raw(data, position, INT32_BITS)
        except (IndexError, MalformedError) as error:
            raise BatchError(BatchFault.INVALID, f"record {number}: {error}") from error
        yield (
            zigzag(offset),
            max_timestamp if attributes & LOG_APPEND_TIME else base_timestamp + zigzag(delta),
        )
        position = start + (length >> 1)
        while position > len(data):
            position -= len(data)
            data = stream.read(PIECE_BYTES)
            if not data:
                raise BatchError(BatchFault.INVALID, f"record {number} is cut")
