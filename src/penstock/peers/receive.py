"""Receives an answer of a peer: HTTP/1.1 head, chunks, frames. Sans-IO: no socket, no clock.

Payloads are received into the buffer in which they stay: `buffer` says where the next bytes go, and
`received` that they are there. A general HTTP client copies a body two or three times on its way:
measured, 0.6 to 0.8 GB per CPU second (httpx, aiohttp) against 6 for this.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import RetryableError
from penstock.peers.codec import FRAME_HEADER, FrameKind

SCRATCH_BYTES: Final = 32 << 10
"""Heads, chunk lengths and frame headers are read through this; and what follows them at once."""
_HEAD_BYTES_MAX: Final = 16 << 10
_LINE_BYTES_MAX: Final = 64
_ERROR_BYTES_MAX: Final = 4 << 10


class UnknownCallError(RetryableError):
    """The peer doesn't serve such a call: its release is older."""


@dataclass(slots=True)
class Frame:
    """One frame, whole. `payload` is its own buffer."""

    kind: int
    index: int
    payload: memoryview


class AnswerReader:
    """One answer. Feed it until `done`.

    Args:
        on_frame: called with each frame but beats, in order; the end frame included.
        payload_bytes_max: by index of the range, what its payload may have at most: what a peer
            says of lengths is not believed.

    Errors it raises are `RetryableError`: nothing is wrong with what was asked.
    """

    def __init__(self, on_frame: Callable[[Frame], None], payload_bytes_max: list[int]) -> None:
        self._on_frame = on_frame
        self._bytes_max = payload_bytes_max
        self._scratch = bytearray(SCRATCH_BYTES)
        self._pending = bytearray()
        """Bytes that are not yet a whole head, line or frame header."""
        self._in_head = True
        self._chunk_left = 0
        """Bytes of the chunk under way that are still to come."""
        self._header = bytearray()
        self._frame: Frame | None = None
        self._filled = 0
        self.status = 0
        self.keep_alive = True
        self.done = False
        """The answer is whole; nothing more belongs to it."""

    def buffer(self) -> memoryview:
        """Return the memory into which the next bytes are to be received."""
        if self._frame is not None and self._chunk_left and not self._pending:
            payload = self._frame.payload
            room = min(len(payload) - self._filled, self._chunk_left)
            if room:
                return payload[self._filled : self._filled + room]
        return memoryview(self._scratch)

    def received(self, view: memoryview, count: int) -> None:
        """`count` bytes lie at the start of `view`, which `buffer` gave.

        Raises:
            RetryableError: it isn't the answer of a peer, or has another status than 200.
        """
        if self._frame is not None and view.obj is self._frame.payload.obj:
            self._filled += count
            self._chunk_left -= count
            self._finish_frame()
            return
        self._pending += view[:count]
        while self._pending and not self.done:
            before = len(self._pending)
            if self._in_head:
                self._take_head()
            elif self._chunk_left:
                self._take_content()
            else:
                self._take_chunk_line()
            if len(self._pending) == before:
                return
        if self.done and self._pending:
            raise _malformed("bytes behind the end")

    def _take_head(self) -> None:
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            if len(self._pending) > _HEAD_BYTES_MAX:
                raise _malformed("a head without an end")
            return
        first, *lines = bytes(self._pending[:end]).decode("latin-1").split("\r\n")
        del self._pending[: end + 4]
        version, _, rest = first.partition(" ")
        if version != "HTTP/1.1" or not rest[:3].isdigit():
            raise _malformed("no HTTP/1.1 status line")
        self.status = int(rest[:3])
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        self.keep_alive = headers.get("connection") != "close"
        if self.status != 200:
            self.keep_alive = False
            text = bytes(self._pending[:_ERROR_BYTES_MAX]).decode("utf-8", "replace")
            kind = UnknownCallError if self.status == 404 else RetryableError
            raise kind("ask peer", "its answer", f"HTTP {self.status} {text[:200]}")
        if headers.get("transfer-encoding") != "chunked":
            raise _malformed("an answer without chunks")
        self._in_head = False

    def _take_chunk_line(self) -> None:
        # A chunk's data is followed by an empty line, which is skipped here before the next.
        start = 2 if self._pending.startswith(b"\r\n") else 0
        end = self._pending.find(b"\r\n", start)
        if end < 0:
            if len(self._pending) > _LINE_BYTES_MAX:
                raise _malformed("a chunk without a length")
            return
        text = bytes(self._pending[start:end]).partition(b";")[0].strip()
        try:
            size = int(text, 16)
        except ValueError as error:
            raise _malformed("a chunk without a length") from error
        if size:
            del self._pending[: end + 2]
            self._chunk_left = size
            return
        # The last chunk: an empty line follows (trailers are none of ours).
        if len(self._pending) < end + 4:
            if len(self._pending) > _LINE_BYTES_MAX:
                raise _malformed("no end of chunks")
            return
        if self._pending[end + 2 : end + 4] != b"\r\n" or self._frame is not None:
            raise _malformed("the answer ends within a frame")
        del self._pending[: end + 4]
        self.done = True

    def _take_content(self) -> None:
        content = self._pending[: self._chunk_left]
        used = 0
        view = memoryview(content)
        while used < len(view):
            if self._frame is None:
                wanted = FRAME_HEADER.size - len(self._header)
                self._header += view[used : used + wanted]
                used += min(wanted, len(view) - used)
                if len(self._header) == FRAME_HEADER.size:
                    self._begin_frame()
            else:
                payload = self._frame.payload
                taken = min(len(payload) - self._filled, len(view) - used)
                payload[self._filled : self._filled + taken] = view[used : used + taken]
                self._filled += taken
                used += taken
                self._finish_frame()
        view.release()
        del self._pending[:used]
        self._chunk_left -= used

    def _begin_frame(self) -> None:
        kind, index, length = FRAME_HEADER.unpack(self._header)
        self._header.clear()
        if kind == FrameKind.DATA:
            if index >= len(self._bytes_max) or length > self._bytes_max[index]:
                raise _malformed(f"{length} bytes of range {index}")
        elif length > _ERROR_BYTES_MAX:
            raise _malformed(f"{length} bytes of kind {kind}")
        self._frame = Frame(kind, index, memoryview(bytearray(length)))
        self._filled = 0
        self._finish_frame()

    def _finish_frame(self) -> None:
        frame = self._frame
        if frame is None or self._filled < len(frame.payload):
            return
        self._frame = None
        if frame.kind != FrameKind.BEAT:
            self._on_frame(frame)


def _malformed(what: str) -> RetryableError:
    return RetryableError("ask peer", "its answer", what, "is the address another program's?")
