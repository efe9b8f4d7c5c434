"""A handler replies with a whole reply, with one made in pieces, or with one that comes later."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from typing_extensions import Buffer

from penstock.log.fetch.regions import FileRegion

Piece = tuple[Buffer, int]


class PiecedReply:
    """A long response's body, made in pieces as the peer takes them.

    Args:
        pieces: gives the next one, and how many items making it took; together `byte_count` bytes.
        held_bytes: what the pieces are made of, for as long as there are some.
    """

    __slots__ = ("byte_count", "held_bytes", "pieces")

    def __init__(self, pieces: Iterator[Piece], *, byte_count: int, held_bytes: int) -> None:
        self.pieces = pieces
        self.byte_count = byte_count
        self.held_bytes = held_bytes


PIECE_BYTES: Final = 64 << 10
PIECE_ITEMS: Final = 250
"""A piece has about so many, whichever is reached first."""

Reply = Sequence[Buffer | FileRegion] | None
"""A response's body as buffers of bytes, without size and header; None: the request gets no
answer (a Produce with acks=0). `len(buffer)` must be its size in bytes. Regions of files only in
a Fetch's, and only where `takes_files`."""

AnyReply = Reply | PiecedReply


def reply_bytes(reply: Sequence[Buffer | FileRegion] | PiecedReply) -> int:
    """The length of a response's body."""
    if type(reply) is PiecedReply:
        return reply.byte_count
    return sum(map(len, reply))  # type: ignore[arg-type]


JOIN_BYTES_MAX: Final = 4096
"""Up to this, joining the buffers of a reply costs less than a vector of them."""

SMALL_ANSWER_BYTES: Final = 64 << 10
"""A shorter answer waits for nothing."""

ReplyFuture = asyncio.Future[Reply]


class LateReply(asyncio.Future[Reply]):
    """A reply that comes later, and is given to its taker at once.

    One commit may answer hundreds of fetches. A plain future passes its result on a turn of the
    loop later, by a callback for each taker. Without a taker this is a plain future.
    """

    taker: Callable[[Reply], None] | None = None

    def give(self, reply: Reply) -> None:
        """Answer. Once."""
        taker, self.taker = self.taker, None
        if taker is None:
            self.set_result(reply)
        else:
            taker(reply)
