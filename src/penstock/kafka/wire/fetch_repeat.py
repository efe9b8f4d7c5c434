"""Fetch requests that come again: the same but for offsets, and perhaps rotated. Pure.

A consumer without a session names all its partitions each time. Only offsets move, and librdkafka
begins with the next partition at each request. Comparing costs a tenth of parsing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

OFFSET_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes [start, end) of one partition in a request's body, with its fetch offset in
    between."""

    start: int
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Repetition:
    """The difference of a request from the known one: its partitions are those from `first` on,
    then those before; `offsets` are the partitions' fetch offsets, in the request's order."""

    first: int
    offsets: tuple[int, ...]


class KnownFetch:
    """The body of a request that was parsed.

    Args:
        spans: of its partitions, in order; at least one.
    """

    __slots__ = ("_body", "_heads", "_index", "_layout", "_rest", "_spans", "_tails")

    def __init__(self, body: bytes, spans: Sequence[Span]) -> None:
        assert spans
        self._body = body
        self._spans = spans
        # Made when something like it comes again; of many clients nothing ever does.
        self._layout: Struct | None = None
        self._rest: tuple[bytes, bytes] = (b"", b"")
        self._heads: tuple[bytes, ...] = ()
        self._tails: tuple[bytes, ...] = ()
        self._index: dict[bytes, int] = {}

    def repetition(self, body: memoryview) -> Repetition | None:
        """Return how another request of the same version differs; None: it differs in more than
        that."""
        if len(body) != len(self._body):
            return None
        layout = self._layout
        if layout is None:
            layout = self._lay_out()
        fields = layout.unpack(body)
        heads = fields[1:-1:3]
        first = self._index.get(heads[0])
        if first is None or (fields[0], fields[-1]) != self._rest:
            return None
        known_heads, known_tails = self._heads, self._tails
        if first:
            # Heads of different lengths, where a topic begins, can't fit the layout rotated.
            known_heads = known_heads[first:] + known_heads[:first]
            known_tails = known_tails[first:] + known_tails[:first]
        if heads != known_heads or fields[3:-1:3] != known_tails:
            return None
        return Repetition(first, fields[2:-1:3])

    def _lay_out(self) -> Struct:
        spans = self._spans
        parts = [f">{spans[0].start}s"]
        before = spans[0].start
        for span in spans:
            head, tail = span.offset - before, span.end - span.offset - OFFSET_BYTES
            parts.append(f"{head}sq{tail}s")
            before = span.end
        parts.append(f"{len(self._body) - before}s")
        self._layout = layout = Struct("".join(parts))
        fields = layout.unpack(self._body)
        self._rest = (fields[0], fields[-1])
        self._heads, self._tails = fields[1:-1:3], fields[3:-1:3]
        for number, known in enumerate(self._heads):
            self._index.setdefault(known, number)
        return layout
