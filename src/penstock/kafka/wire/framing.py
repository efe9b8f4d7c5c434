"""Splits a stream of bytes into Kafka's frames: int32 size, then that many bytes. Sans-IO.
Pure.

Shaped for `asyncio.BufferedProtocol`: the caller asks `get_buffer` where to receive to, then calls
`buffer_updated` with the number of bytes. Every complete frame is a view over a bytearray of its
own, so the frame keeps no other frame alive, and its owner may write into it (base offsets are
patched).

* Bytes arrive in a staging buffer. Whole frames are copied out of it once.
* A frame that is not whole yet moves to its own buffer at once, and the rest of it is received
  into that one directly: a large frame is copied only as far as it lay in staging.
* So nothing is left in staging between two calls (a split size prefix is kept apart), and one
  staging buffer serves all connections of an event loop: 500 of them cost 64 KiB, not 32 MiB.
* An announced size is believed only as bytes arrive: the buffer starts at twice what came and
  doubles, so a peer costs at most twice what it has sent. A few frames at a time, of all
  connections together, start at ADVANCE_BYTES (`Advances`).
"""

import struct
from typing import Final

from penstock.model.errors import InvalidRequestError

STAGING_BYTES: Final = 64 << 10
START_BYTES: Final = 4 << 10
"""The first size of a frame's buffer, however little of the frame came. All of it is memory at
once, since `bytearray` writes its zeros."""
ADVANCE_BYTES: Final = 1 << 20
"""The first size in advance of the frame's bytes. A producer's request is seldom larger, so its
buffer never grows: with growing, a request of 1 MB takes three times as long to receive."""
ADVANCES_MAX: Final = 16

PREFIX_BYTES: Final = 4
KEY_BYTES: Final = 2
_unpack_size: Final = struct.Struct(">i").unpack_from


class FrameTooLargeError(InvalidRequestError):
    """The announced length of a frame is negative or above the limit."""

    def __init__(self, frame_bytes: int, frame_bytes_max: int) -> None:
        super().__init__(
            "receive", "frame", f"{frame_bytes} bytes announced, {frame_bytes_max} are allowed"
        )


class Advances:
    """Counts how many more frames may have memory in advance of their bytes."""

    __slots__ = ("left",)

    def __init__(self, left: int = ADVANCES_MAX) -> None:
        self.left = left


class Framer:
    """The frames of one connection.

    Args:
        staging: where bytes are received; may be shared by the framers of one thread, if no
            other framer's `get_buffer` comes between a `get_buffer` and its `buffer_updated`.
        frame_bytes_max: a longer frame is an error, found before any of it is kept.
        advances: shared by the framers of all connections.
    """

    __slots__ = (
        "_advances",
        "_filled",
        "_frame",
        "_is_advanced",
        "_prefix",
        "_size",
        "_staging",
        "begun_count",
        "failure",
        "frame_bytes_max",
    )

    def __init__(self, staging: memoryview, frame_bytes_max: int, advances: Advances) -> None:
        self._staging = staging
        self.frame_bytes_max = frame_bytes_max
        """May be changed; it holds for frames that begin from then on."""
        self._advances = advances
        self._is_advanced = False
        self._prefix = b""
        self._frame: bytearray | None = None
        self._size = 0
        self._filled = 0
        self.failure: FrameTooLargeError | None = None
        """Set once a hostile length was met. The frames before it are still given out; nothing
        behind it is."""
        self.begun_count = 0
        """Frames so far that did not come whole at once."""

    @property
    def missing_bytes(self) -> int:
        """Bytes that a frame, or the size before it, still lacks; 0: none has begun."""
        if self._frame is not None:
            return self._size - self._filled
        return PREFIX_BYTES - len(self._prefix) if self._prefix else 0

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a frame that is not whole yet."""
        return self._filled if self._frame is not None else len(self._prefix)

    @property
    def pending_key(self) -> int | None:
        """The API key with which the frame begins that is not whole yet; None: it isn't known."""
        if self._frame is None or self._filled < KEY_BYTES:
            return None
        return int.from_bytes(self._frame[:KEY_BYTES], "big", signed=True)

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes, which is never empty."""
        frame = self._frame
        if frame is None:
            return self._staging[len(self._prefix) :]
        if self._filled == len(frame):
            # A new buffer rather than `extend`, which is refused while the event loop still
            # holds the view it was given last.
            grown = bytearray(min(self._size, 2 * len(frame)))
            grown[: self._filled] = frame
            self._frame = frame = grown
            self._end_advance()
        return memoryview(frame)[self._filled :]

    def buffer_updated(self, received: int) -> list[memoryview]:
        """Take note of `received` bytes in the buffer given last; return the frames now whole."""
        if self._frame is not None:
            self._filled += received
            if self._filled < self._size:
                return []
            whole, self._frame = self._frame, None
            self._end_advance()
            return [memoryview(whole)]
        end = received
        staging = self._staging
        if self._prefix:
            held = len(self._prefix)
            staging[:held] = self._prefix
            self._prefix = b""
            end += held
        return self._split(staging, end)

    def close(self) -> None:
        """Give up a frame that came in part, since the connection is gone. The memory must be freed
        here: connections lie in reference cycles, and the garbage collector runs seldom."""
        self._frame = None
        self._end_advance()
        self._advances = Advances(0)

    def _split(self, staging: memoryview, end: int) -> list[memoryview]:
        frames: list[memoryview] = []
        position = 0
        while end - position >= PREFIX_BYTES:
            (size,) = _unpack_size(staging, position)
            # Checked before the payload arrives: a hostile length must fail at once, not
            # after it has been buffered.
            if not 0 <= size <= self.frame_bytes_max:
                self.failure = FrameTooLargeError(size, self.frame_bytes_max)
                return frames
            start = position + PREFIX_BYTES
            position = start + size
            if position > end:
                self._begin(size, staging[start:end])
                return frames
            frames.append(memoryview(bytearray(staging[start:position])))
        self._prefix = bytes(staging[position:end])
        return frames

    def _begin(self, size: int, head: memoryview) -> None:
        start = max(START_BYTES, 2 * len(head))
        if start < min(size, ADVANCE_BYTES) and self._advances.left:
            self._advances.left -= 1
            self._is_advanced = True
            start = ADVANCE_BYTES
        self._frame = bytearray(min(size, start))
        self._frame[: len(head)] = head
        self._size = size
        self._filled = len(head)
        self.begun_count += 1

    def _end_advance(self) -> None:
        if self._is_advanced:
            self._is_advanced = False
            self._advances.left += 1
