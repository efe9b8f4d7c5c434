"""Answers to peers, as frames. What carries them is `penstock.app.http.peer_routes`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, PenstockError, RetryableError
from penstock.peers.blocks import OwnBlocks
from penstock.peers.codec import BlockRange, FrameKind, WalRange, frame

BEAT_S: Final = 0.05
"""A fifth of the shortest sensible `peer_timeout_ms`."""
_TEXT_BYTES_MAX: Final = 1000

ReadWal = Callable[[WalRange], Awaitable[Buffer]]
"""Reads this agent's own WAL. Raises: RetryableError when the run has moved, CorruptDataError,
NotFoundError when the WAL is another's."""


Parts = Sequence[tuple[FrameKind, Buffer]]
"""Frames of one range, without their headers."""


async def serve_blocks(
    own: OwnBlocks, ranges: Sequence[BlockRange], *, versions: bool = True
) -> AsyncIterator[Buffer]:
    """Frames of an answer, each range when it is ready, with beats meanwhile.

    Args:
        versions: whether each range's version is said before its bytes; not to askers of releases
            that know no such frame.
    """
    loop = asyncio.get_running_loop()
    reads = {
        loop.create_task(_read_block(own, wanted, versions=versions)): index
        for index, wanted in enumerate(ranges)
    }
    async for part in _answer(reads):
        yield part


async def serve_wal(read: ReadWal, wanted: WalRange) -> AsyncIterator[Buffer]:
    """Frames of an answer with one range of this agent's WAL."""
    loop = asyncio.get_running_loop()
    async for part in _answer({loop.create_task(_read_wal(read, wanted)): 0}):
        yield part


async def _answer(
    reads: "dict[asyncio.Task[Parts], int]",
) -> AsyncIterator[Buffer]:
    pending = set(reads)
    try:
        # At once: it says that this agent lives, however slow what it reads.
        yield frame(FrameKind.BEAT)
        while pending:
            done, pending = await asyncio.wait(
                pending, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                yield frame(FrameKind.BEAT)
            for read in sorted(done, key=reads.__getitem__):
                for kind, payload in read.result():
                    yield frame(kind, reads[read], memoryview(payload).nbytes)
                    if memoryview(payload).nbytes:
                        yield payload
        yield frame(FrameKind.END)
    finally:
        # The asking agent is gone; what is being read is still read, for the next that asks.
        for read in pending:
            read.cancel()


async def _read_block(own: OwnBlocks, wanted: BlockRange, *, versions: bool) -> Parts:
    try:
        data, version = await own.read(wanted, may_refuse=True)
    except PenstockError as error:
        return [(FrameKind.REFUSED, _text(error))]
    said = [(FrameKind.VERSION, (version or "").encode()[:_TEXT_BYTES_MAX])] if versions else []
    return [*said, (FrameKind.DATA, data)]


async def _read_wal(read: ReadWal, wanted: WalRange) -> Parts:
    try:
        return [(FrameKind.DATA, await read(wanted))]
    except CorruptDataError as error:
        return [(FrameKind.DAMAGED, _text(error))]
    except RetryableError as error:
        return [(FrameKind.MOVED, _text(error))]
    except PenstockError as error:
        return [(FrameKind.REFUSED, _text(error))]


def _text(error: PenstockError) -> bytes:
    return str(error).encode()[:_TEXT_BYTES_MAX]
