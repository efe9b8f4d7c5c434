"""Check header, footer and index of a whole segment, however its bytes are read. Pure."""

from collections.abc import Callable, Generator
from typing import Final

from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError
from penstock.segment.format import (
    HEADER_BYTES,
    IndexedRun,
    check_header,
    parse_footer,
    parse_index,
)

_TAIL_BYTES: Final = 64 << 10
"""Read at once of an object's end: mostly all of its index lies there."""

AskedRanges = Generator[tuple[int, int], Buffer, tuple[IndexedRun, ...]]
"""Yields ranges [start, end) of an object, is sent their bytes, and returns the index."""


def ask_index(key: str, size_bytes: int, *, raw: bool | None = None) -> AskedRanges:
    """Check what frames an object's data: a reader sends the bytes of the ranges that this yields.

    Args:
        raw: whether the journal says that its base offsets aren't final; None: not known here.

    Raises:
        CorruptDataError: naming `key`.
    """
    head = yield 0, min(HEADER_BYTES, size_bytes)
    check_header(bytes(head), subject=key)
    tail_from = max(0, size_bytes - _TAIL_BYTES)
    tail = bytes((yield tail_from, size_bytes))
    footer = parse_footer(tail, size_bytes=size_bytes, subject=key)
    if footer.offsets_final == raw:
        raise CorruptDataError(
            "read segment", key, "footer and journal differ on whether its offsets are final"
        )
    start = footer.index_position
    end = start + footer.index_length
    if start >= tail_from:
        block = tail[start - tail_from : end - tail_from]
    else:
        block = bytes((yield start, end))
    return parse_index(block, footer, subject=key)


def read_index(asked: AskedRanges, read: Callable[[int, int], Buffer]) -> tuple[IndexedRun, ...]:
    """Give `ask_index` the bytes that it asks for.

    Args:
        read: gives the bytes [start, end) of the object.
    """
    try:
        start, end = next(asked)
        while True:
            start, end = asked.send(read(start, end))
    except StopIteration as done:
        found: tuple[IndexedRun, ...] = done.value
        return found
