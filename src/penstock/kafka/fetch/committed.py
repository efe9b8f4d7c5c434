"""Cut what was read at the last stable offset, for a reader of committed records. Pure."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from penstock.records.batch import LENGTH_END

_OFFSET_LENGTH: Final = Struct(">qi")


def below(views: Sequence[memoryview], end: int) -> list[memoryview]:
    """Whole batches that begin before an offset; views of whole batches in ascending order."""
    kept: list[memoryview] = []
    for view in views:
        position = 0
        while position < len(view):
            base_offset, length = _OFFSET_LENGTH.unpack_from(view, position)
            if base_offset >= end:
                if position:
                    kept.append(view[:position])
                return kept
            position += LENGTH_END + length
        kept.append(view)
    return kept
