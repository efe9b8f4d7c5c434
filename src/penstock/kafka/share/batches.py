"""Batches of the log as a share group gives them out. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from penstock.groups.share.partition import Acquired, Stretch
from penstock.records.batch import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    StoredHeader,
    stored_header,
)
from penstock.state.transactions import AbortedRange


class ReadBatches:
    """Whole batches of one partition, in order. What is cut at the end is left out."""

    __slots__ = ("_headers", "_places", "data")

    def __init__(self, data: bytes, end: int) -> None:
        """
        Args:
            end: batches from this offset on are left out.
        """
        self.data = data
        self._headers: list[StoredHeader] = []
        self._places: list[int] = []
        at = 0
        while len(data) - at >= HEADER_BYTES:
            header = stored_header(data, at)
            if at + header.length > len(data) or header.base_offset >= end:
                break
            self._headers.append(header)
            self._places.append(at)
            at += header.length
        self._places.append(at)

    @property
    def last(self) -> int:
        """The last offset; -1: there is no batch."""
        return self._headers[-1].end_offset - 1 if self._headers else -1

    def stretches(self, aborted: Sequence[AbortedRange] = ()) -> Iterator[Stretch]:
        """The offsets of each batch; control records and what was aborted is not delivered."""
        for header in self._headers:
            is_delivered = not header.attributes & CONTROL and not (
                header.attributes & TRANSACTIONAL and _is_aborted(header, aborted)
            )
            yield Stretch(header.base_offset, header.end_offset - 1, is_delivered)

    def of(self, acquired: Sequence[Acquired]) -> bytes:
        """The bytes from the first batch to the last that hold what was acquired."""
        first, last = acquired[0].first, acquired[-1].last
        held = [
            at
            for at, header in enumerate(self._headers)
            if header.end_offset > first and header.base_offset <= last
        ]
        return self.data[self._places[held[0]] : self._places[held[-1] + 1]]


def _is_aborted(header: StoredHeader, aborted: Sequence[AbortedRange]) -> bool:
    return any(
        one.producer_id == header.producer_id
        and one.first_offset <= header.base_offset < one.marker_offset
        for one in aborted
    )


def in_pieces(acquired: Iterable[Acquired], size: int) -> Iterator[Acquired]:
    """Cut what was acquired into stretches of at most `size` records, as the client wants them
    acknowledged; 0: it does not say."""
    for one in acquired:
        step = size if size > 0 else one.last - one.first + 1
        for first in range(one.first, one.last + 1, step):
            yield Acquired(first, min(first + step - 1, one.last), one.deliveries)
