"""Skipping right records that are of one size, a column of bytes at a time. Pure.

A producer's records are mostly of one size: then the same field of each lies at the same distance
from the one before, and one slice with that step has it of hundreds of records. What frames them
(lengths, counts) must be the same in all, offset deltas must be those of a table, timestamp deltas
must be as wide. Comparing slices runs in C, so that a record costs some 20 ns where the walk in
Python takes 400 to 700.

Only records that are plainly right are skipped. Where a run of them ends (another size, a wider
timestamp delta, the end of what is there) or anything else isn't as expected, `RecordWalk`, the
slow twin, looks for itself; it alone says what is wrong.
"""

import re
from typing import Final, NamedTuple

from penstock.records.varints import INT32_BITS, INT64_BITS, MalformedError, read_raw, zigzag

RUN_MIN: Final = 8
"""A run of fewer is left to the walk: reading the first's frame costs what walking 5 does."""

_TIME_BYTES_MAX: Final = 9
"""Wider varints may have more than 64 bits."""
_HEADERS_MAX: Final = 64
"""Looking for a run in vain must cost little, and each header of a record is two columns."""

# Of an offset delta from 0 to 8,191, its bytes; of a greater one the first two, which have the same
# cycle. Each further byte stays the same within the cycle: where it doesn't, a run ends.
_CYCLE: Final = 1 << 13
_ONE_BYTE: Final = bytes(range(0, 128, 2))
_FIRST_OF_MORE: Final = bytes(0x80 | number << 1 & 0x7F for number in range(_CYCLE))
_SECOND: Final = bytes(number >> 6 for number in range(_CYCLE))
_SECOND_OF_MORE: Final = bytes(0x80 | number >> 6 for number in range(_CYCLE))

_continued = re.compile(rb"[\x80-\xff]*").match
_last = re.compile(rb"[\x00-\x7f]*").match
_EVEN: Final = bytes(range(0, 256, 2))
_UP_TO: Final = tuple(bytes(range(number + 1)) for number in range(256))


class Skipped(NamedTuple):
    """Says how far records were skipped.

    `at` and `seen` are where the first begins that isn't skipped, and its number; `max_delta` is
    the greatest timestamp delta of those that are (None: none is).
    """

    at: int
    seen: int
    max_delta: int | None
    headers_left: int


class _Frame(NamedTuple):
    """Layout of one record in bytes from its start; varints as (position, width)."""

    size: int
    time: tuple[int, int]
    offset: tuple[int, int]
    fixed: list[int]
    """Positions of the bytes that are the same in all records of a run."""
    headers: int


def skip_alike(
    data: bytes,
    at: int,
    *,
    seen: int,
    stop_at: int,
    low: int,
    high: int,
    needs_keys: bool,
    headers_left: int,
) -> Skipped:
    """Skip a run from the record of number `seen`, at `data[at]`, at most to number `stop_at`.

    Args:
        low, high: least and greatest timestamp delta.
        headers_left: headers that all records together may still have.
    """
    none = Skipped(at, seen, None, headers_left)
    frame = _frame_of(data, at, seen, needs_keys=needs_keys)
    if frame is None:
        return none
    count = min(stop_at - seen, (len(data) - at) // frame.size)
    if frame.headers:
        count = min(count, headers_left // frame.headers)
    count = _count_framed(data, at, frame, count)
    if count < RUN_MIN or not _has_offsets(data, at, frame, seen, count):
        return none
    least, greatest = _bounds(_columns(data, at, frame.size, count, frame.time), low)
    if least < low or greatest > high:
        return none
    return Skipped(
        at + count * frame.size, seen + count, greatest, headers_left - count * frame.headers
    )


def _frame_of(data: bytes, start: int, number: int, *, needs_keys: bool) -> _Frame | None:
    """The frame of one record; None: it isn't right, or those that follow are of other sizes."""
    try:
        length, at = read_raw(data, start, INT32_BITS)
        end = at + (length >> 1)
        size = end - start
        if data[start : start + RUN_MIN * size : size] != data[start : start + 1] * RUN_MIN:
            return None
        if length & 1:
            return None
        fixed = list(range(at - start))
        time_at = at + 1  # after the attributes
        _, offset_at = read_raw(data, time_at, INT64_BITS)
        if offset_at - time_at > _TIME_BYTES_MAX:
            return None
        offset, at = read_raw(data, offset_at, INT32_BITS)
        if offset != number << 1:
            return None
        time = time_at - start, offset_at - time_at
        width = at - offset_at
        # Of an offset delta, they are the same from the third on: see _CYCLE.
        fixed += range(offset_at - start + 2, at - start)
        at = _field(data, at, start, fixed, null=not needs_keys)
        at = _field(data, at, start, fixed)
        headers, after = read_raw(data, at, INT32_BITS)
        fixed += range(at - start, after - start)
        at = after
        if headers & 1 or headers >> 1 > _HEADERS_MAX:
            return None
        for _ in range(headers >> 1):
            at = _field(data, at, start, fixed, null=False)
            at = _field(data, at, start, fixed)
    except (IndexError, MalformedError):
        return None
    if at != end:
        return None
    return _Frame(size, time, (offset_at - start, width), fixed, headers >> 1)


def _field(data: bytes, at: int, start: int, fixed: list[int], *, null: bool = True) -> int:
    """The position after a field with its length, whose bytes are added to those that are fixed."""
    size, after = read_raw(data, at, INT32_BITS)
    if size & 1 and (size != 1 or not null):
        raise MalformedError("a length is negative")
    fixed += range(at - start, after - start)
    return after if size & 1 else after + (size >> 1)


def _column(data: bytes, at: int, size: int, count: int) -> bytes:
    return data[at : at + (count - 1) * size + 1 : size]


def _columns(data: bytes, at: int, size: int, count: int, varint: tuple[int, int]) -> list[bytes]:
    position, width = varint
    return [_column(data, at + position + index, size, count) for index in range(width)]


def _count_framed(data: bytes, at: int, frame: _Frame, count: int) -> int:
    """Count the records, of `count`, framed as the first, with timestamp deltas as wide."""
    for position in frame.fixed:
        if count < RUN_MIN:
            return 0
        column = _column(data, at + position, frame.size, count)
        first = column[:1]
        if column != first * count:
            count -= len(column.lstrip(first))
    position, width = frame.time
    for index in range(width):
        if count < RUN_MIN:
            return 0
        column = _column(data, at + position + index, frame.size, count)
        match = (_last if index == width - 1 else _continued)(column)
        assert match is not None
        count = match.end()
    return count


def _has_offsets(data: bytes, at: int, frame: _Frame, number: int, count: int) -> bool:
    columns = _columns(data, at, frame.size, count, frame.offset)
    if len(columns) == 1:
        return columns[0] == _ONE_BYTE[number : number + count]
    start = number % _CYCLE
    second = _SECOND if len(columns) == 2 else _SECOND_OF_MORE
    return (
        columns[0] == _FIRST_OF_MORE[start : start + count]
        and columns[1] == second[start : start + count]
    )


def _bounds(columns: list[bytes], low: int) -> tuple[int, int]:
    """The least and the greatest of varints of one width; 0 for the least where `low` is less."""
    if low <= 0 and not columns[0].translate(None, _EVEN):
        greatest = _greatest(columns)
        if greatest is not None:
            return 0, zigzag(greatest)
    deltas = [zigzag(read_raw(bytes(raw), 0, INT64_BITS)[0]) for raw in zip(*columns, strict=True)]
    return min(deltas), max(deltas)


def _greatest(columns: list[bytes]) -> int | None:
    """The greatest of varints of one width, from the last byte to the first.

    None: what has the greatest byte doesn't lie together, as it does where time goes forward.
    """
    raw = 0
    start, end = 0, len(columns[0])
    for column in reversed(columns):
        part = column[start:end]
        above = part.translate(None, _UP_TO[part[-1]])
        byte = max(above) if above else part[-1]
        first, last = part.find(byte), part.rfind(byte) + 1
        if part.count(byte) != last - first:
            return None
        start, end = start + first, start + last
        raw = raw << 7 | byte & 0x7F
    return raw
