"""Replies with regions of files are sent from the page cache to the socket, past the transport.

`sendfile` and `send` write to the transport's own descriptor, and only while the transport's write
buffer is empty, so that bytes stay in order. When the socket takes no more, a page of the region is
given to the transport. The transport waits for the socket, as for any reply, and calls its protocol
when the page has left; then `sendfile` goes on. So only the transport waits for the socket, and
pausing, stalled peers and closing work as for other replies.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, cast

from typing_extensions import Buffer

from penstock.kafka.net.turns import TurnSender
from penstock.log.fetch.regions import FileRegion
from penstock.model.errors import CorruptDataError

_PAGE_BYTES: Final = 4096
_TURN_BYTES: Final = 4 << 20
"""Sent at most before other connections have their turn."""
_VECTOR_MAX: Final = 512
_CORK: Final[int] = getattr(socket, "TCP_CORK", 0)
"""Segments are filled while it is set: else each partition's few dozen bytes of header would be
one of its own. Source: tcp(7)."""


class FileSender(TurnSender[Buffer | FileRegion]):
    """The unsent part of one connection's replies, from the first region on.

    Args:
        emptied: called when all has been given away, if that was not within `send`.
        failed: called when nothing more can be sent; the connection must be aborted.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        emptied: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(transport, emptied=emptied)
        self._socket = transport.get_extra_info("socket")
        self._descriptor: int = self._socket.fileno()
        self._corked = False
        self._failed = failed
        self._sent = 0
        """Bytes of the queue's first part that have left."""

    @staticmethod
    def fits(transport: asyncio.Transport) -> bool:
        """Whether a transport is a plain socket's, so that bytes may go past it."""
        return (
            hasattr(os, "sendfile")
            and transport.get_extra_info("socket") is not None
            and transport.get_extra_info("sslcontext") is None
        )

    def send(self, parts: Sequence[Buffer | FileRegion]) -> None:
        """Send after what waits already."""
        self._add(parts, sum(map(len, parts)))  # type: ignore[arg-type]

    def _go(self) -> bool:
        transport, queue = self._transport, self._queue
        left = _TURN_BYTES
        try:
            self._cork(on=True)
            while queue:
                if transport.get_write_buffer_size():
                    return False
                if transport.is_closing():
                    # Its descriptor is another's as soon as `connection_lost` has returned.
                    self.clear()
                    return False
                if left <= 0:
                    self._end_turn()
                    return False
                part = queue[0]
                if type(part) is FileRegion:
                    left -= self._send_region(part)
                else:
                    left -= self._send_buffers()
            self._cork(on=False)
        except (OSError, CorruptDataError) as error:
            self.clear()
            self._failed(error)
            return False
        return True

    def _send_region(self, region: FileRegion) -> int:
        position, length = region.position + self._sent, region.length - self._sent
        try:
            count = region.file.send(self._descriptor, position, length)
        except BlockingIOError:
            page = region.file.read_at(position, min(length, _PAGE_BYTES))
            self._transport.write(page)
            count = len(page)
        if not count:
            raise CorruptDataError("send", f"object at byte {position}", "the file ends there")
        self.unsent_bytes -= count
        if count == length:
            self._queue.popleft()
            self._sent = 0
        else:
            self._sent += count
        return count

    def _send_buffers(self) -> int:
        buffers: list[Buffer] = []
        while self._queue and len(buffers) < _VECTOR_MAX:
            part = self._queue[0]
            if type(part) is FileRegion:
                break
            buffers.append(cast(Buffer, self._queue.popleft()))
        length = sum(map(len, buffers))  # type: ignore[arg-type]
        try:
            count = os.writev(self._descriptor, buffers)
        except BlockingIOError:
            count = 0
        self.unsent_bytes -= length
        if count < length:
            # Where they are counted and waited for as any other reply's.
            self._transport.write(memoryview(b"".join(buffers))[count:])
        return count

    def _cork(self, *, on: bool) -> None:
        if _CORK and self._corked != on:
            self._corked = on
            self._socket.setsockopt(socket.IPPROTO_TCP, _CORK, int(on))
