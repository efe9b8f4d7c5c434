"""Cut what was read at the last stable offset, for a reader of committed records. Pure."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from penstock.records.batch import LENGTH_END

_OFFSET_LENGTH: Final = Struct(">qi")


def below(views: Sequence[memoryview], end: int) -> list[memoryview]:
    """The batches that begin before an offset.

    Args:
        views: batches in ascending order. One may lie in several views, its first bytes too, and
            the last may be cut: what is read from an object comes as its blocks have it.
    """
    kept: list[memoryview] = []
    begins = 0
    """The next batch begins here, counted from the beginning of the view."""
    for number, view in enumerate(views):
        while begins < len(view):
            head = view[begins : begins + LENGTH_END]
            if len(head) < LENGTH_END:
                rest = (bytes(later[:LENGTH_END]) for later in views[number + 1 :])
                head = memoryview(b"".join((head, *rest)))
            # Of one whose first bytes are cut nothing is left that a client could read.
            is_below = len(head) >= LENGTH_END
            if is_below:
                base_offset, length = _OFFSET_LENGTH.unpack_from(head)
                is_below = base_offset < end
            if not is_below:
                if begins:
                    kept.append(view[:begins])
                return kept
            begins += LENGTH_END + length
        kept.append(view)
        begins -= len(view)
    return kept
