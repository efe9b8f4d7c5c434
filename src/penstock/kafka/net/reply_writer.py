"""The replies of one connection on their way to its socket.

Small replies leave together. What the socket does not take at once waits in the transport, or, if
it is regions of files, in `FileSender`, or, if it is long and the transport is one of TLS, in
`PacedSender`; a long reply is made by `PieceSender`. Until all of it has
left the writer is `is_held_up`.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from typing_extensions import Buffer

from penstock.kafka.net.file_sender import FileSender
from penstock.kafka.net.paced_sender import PIECE_BYTES, PacedSender
from penstock.kafka.net.piece_sender import PieceSender
from penstock.kafka.replies import JOIN_BYTES_MAX, AnyReply, PiecedReply
from penstock.log.fetch.regions import FileRegion
from penstock.system.turns import Turns

SEND_AT_BYTES: Final = 64 << 10


class ReplyWriter:
    """Gathers replies, then sends them.

    Args:
        left: called when everything has left that was held up.
        failed: called when nothing more can be sent; the connection must be aborted.
    """

    __slots__ = (
        "_failed",
        "_files",
        "_has_files",
        "_left",
        "_out",
        "_paced",
        "_pieced",
        "_pieces",
        "_transport",
        "_vectored",
        "given_bytes",
        "is_held_up",
        "out_bytes",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        turns: Turns,
        *,
        left: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._transport = transport
        self._left = left
        self._failed = failed
        # asyncio's own `writelines` does not call `pause_writing` in some releases of 3.12 and
        # 3.13 (gh-127655), so the buffer would grow without bound. Servers run on uvloop.
        loop = asyncio.get_running_loop()
        self._vectored = type(loop).__module__.startswith("uvloop")
        self._out: list[Buffer | FileRegion] = []
        self._has_files = False
        self._files: FileSender | None = None
        self._pieces = PieceSender(transport, turns, left=self._all_left, failed=failed)
        self._pieced: PiecedReply | None = None
        """The reply in pieces whose header is in `_out`."""
        self.out_bytes = 0
        """Bytes of the replies that `flush` sends."""
        self.given_bytes = 0
        """Bytes of all replies so far."""
        self.is_held_up = False
        """The socket took less than it was given."""
        self._paced: PacedSender | None = None
        if FileSender.fits(transport):
            self._files = FileSender(transport, emptied=self._all_given, failed=failed)
        elif transport.get_extra_info("sslcontext") is not None:
            self._paced = PacedSender(transport, emptied=self._all_given)

    @property
    def takes_files(self) -> bool:
        """Whether regions of files can be sent."""
        return self._files is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to flush."""
        return not self._out

    @property
    def is_busy(self) -> bool:
        """Whether replies wait outside the transport."""
        return (
            self._pieces.is_busy
            or (self._files is not None and self._files.busy)
            or (self._paced is not None and self._paced.busy)
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of what a reply that is sent in pieces is made of."""
        return self._pieces.held_bytes

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait in memory. Regions of files cost none."""
        buffered = self._transport.get_write_buffer_size()
        return buffered if self._paced is None else buffered + self._paced.unsent_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken, regions of files included."""
        buffered = self.buffered_bytes + self._pieces.unmade
        return buffered if self._files is None else buffered + self._files.unsent_bytes

    def add(self, head: bytes, body: AnyReply, body_bytes: int) -> None:
        """Add a reply: its header and what follows."""
        assert body is not None
        self._out.append(head)
        self.out_bytes += body_bytes
        if isinstance(body, PiecedReply):
            self._pieced = body
            return
        self._out.extend(body)
        if FileRegion in map(type, body):
            self._has_files = True

    def flush(self) -> int:
        """Send what was added; gives its bytes."""
        out, self._out = self._out, []
        out_bytes, self.out_bytes = self.out_bytes, 0
        self.given_bytes += out_bytes
        files, paced = self._files, self._paced
        if files is not None and (self._has_files or files.busy):
            self._has_files = False
            files.send(out)
            # `_all_given`, or else `resume`, says when it's over.
            if files.busy:
                self.is_held_up = True
        elif paced is not None and (paced.busy or out_bytes > PIECE_BYTES):
            paced.send(cast("list[Buffer]", out))
            if paced.busy:
                self.is_held_up = True
        elif self._vectored and out_bytes > JOIN_BYTES_MAX:
            self._transport.writelines(cast("list[bytes]", out))
        else:
            self._transport.write(b"".join(cast("list[bytes]", out)))
        if self._pieced is not None:
            pieced, self._pieced = self._pieced, None
            self.is_held_up = True
            self._pieces.send(pieced)
        return out_bytes

    def resume(self) -> None:
        """The transport's buffer is empty again."""
        if self._pieces.is_busy:
            self._pieces.resume()
        elif self._files is not None and self._files.busy:
            self._files.resume()
        elif self._paced is not None and self._paced.busy:
            self._paced.resume()
        else:
            self._all_left()

    def clear(self) -> None:
        """Forget everything: the connection is gone."""
        self._out.clear()
        self._pieced = None
        self._pieces.clear()
        if self._files is not None:
            self._files.clear()
        if self._paced is not None:
            self._paced.clear()

    def _all_given(self) -> None:
        """The last part has left the queue; it, or what follows it, may be in the transport."""
        if not self._transport.get_write_buffer_size():
            self._all_left()

    def _all_left(self) -> None:
        self.is_held_up = False
        self._left()
