"""Gathering decides which requests wait for the next flush, and how many make one. Pure."""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Final

from penstock.log.append.flight import Waiting

FLUSH_BATCHES_MAX: Final = 10_000
"""Batches of one flush, unless one request has more: bounds the entry that names them, and the time
that applying it takes everywhere."""


class Gathering:
    """Requests in order of arrival.

    Args:
        flush_bytes: so many are a flush's worth; a flush takes no more once it has as many.
        bytes_max: no flush is longer, unless by one request.
    """

    def __init__(self, *, flush_bytes: int, bytes_max: int) -> None:
        self._flush_bytes = flush_bytes
        self._bytes_max = bytes_max
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._batches = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether what waits is a flush's worth."""
        return self._bytes >= self._flush_bytes or self._batches >= FLUSH_BATCHES_MAX

    def add(self, waiting: Waiting) -> None:
        """Add a request after all others."""
        self._waiting.append(waiting)
        self._count(waiting, 1)

    def next_group(self) -> list[Waiting]:
        """Take the first requests that make up a flush, at least one; none is torn apart."""
        group: list[Waiting] = []
        length = batches = 0
        while self._waiting and length < self._flush_bytes and batches < FLUSH_BATCHES_MAX:
            request = self._waiting[0].request
            if group and length + request.length > self._bytes_max:
                break
            group.append(self._waiting.popleft())
            self._count(group[-1], -1)
            length += request.length
            batches += len(request.appends)
        return group

    def remove(self, gone: Collection[Waiting]) -> None:
        """Take some out."""
        left = set(gone)
        self._waiting = deque(waiting for waiting in self._waiting if waiting not in left)
        for waiting in gone:
            self._count(waiting, -1)

    def _count(self, waiting: Waiting, sign: int) -> None:
        self._bytes += sign * waiting.request.length
        self._batches += sign * len(waiting.request.appends)
