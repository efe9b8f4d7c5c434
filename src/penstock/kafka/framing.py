"""Splits a stream of bytes into Kafka's frames: int32 size, then that many bytes. Sans-IO, pure.

Shaped for `asyncio.BufferedProtocol`: ask `get_buffer` where to receive to, then tell
`buffer_updated` how much came. Every complete frame is a view over a bytearray of its own, so
whoever keeps it keeps no other frame alive, and may write into it (base offsets are patched).

* Bytes arrive in a staging buffer. Whole frames are copied out of it once.
* A frame that is not whole yet moves to its own buffer at once, and the rest of it is received
  into that one directly: a large frame is copied only as far as it lay in staging.
* So nothing is left in staging between two calls (a split size prefix is kept apart), and one
  staging buffer serves all connections of an event loop: 500 of them cost 64 KiB, not 32 MiB.
* An announced size is believed only as bytes arrive: the buffer starts at GROWTH_START and
  doubles, so a peer costs at most twice what it has sent.
"""

import struct
from typing import Final

from penstock.model.errors import InvalidRequestError

STAGING_BYTES: Final = 64 << 10
GROWTH_START: Final = 1 << 20
"""What a frame's buffer starts with at most. A producer's request is seldom larger, so it never
grows; untouched pages of a fresh buffer cost no memory."""

PREFIX_BYTES: Final = 4
_unpack_size: Final = struct.Struct(">i").unpack_from


class FrameTooLargeError(InvalidRequestError):
    """The announced length of a frame is negative or above the limit."""

    def __init__(self, frame_bytes: int, frame_bytes_max: int) -> None:
        super().__init__(
            "receive", "frame", f"{frame_bytes} bytes announced, {frame_bytes_max} are allowed"
        )


class Framer:
    """The frames of one connection.

    Args:
        staging: where bytes are received; may be shared by the framers of one thread, if no
            other framer's `get_buffer` comes between a `get_buffer` and its `buffer_updated`.
        frame_bytes_max: a longer frame is an error, found before any of it is kept.
    """

    __slots__ = ("_filled", "_frame", "_frame_bytes_max", "_prefix", "_size", "_staging", "failure")

    def __init__(self, staging: memoryview, frame_bytes_max: int) -> None:
        self._staging = staging
        self._frame_bytes_max = frame_bytes_max
        self._prefix = b""
        self._frame: bytearray | None = None
        self._size = 0
        self._filled = 0
        self.failure: FrameTooLargeError | None = None
        """Set once a hostile length was met. The frames before it are still given out; nothing
        behind it is."""

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a frame that is not whole yet."""
        return self._filled if self._frame is not None else len(self._prefix)

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        frame = self._frame
        if frame is None:
            return self._staging[len(self._prefix) :]
        if self._filled == len(frame):
            # A new buffer rather than `extend`, which is refused while the event loop still
            # holds the view it was given last.
            grown = bytearray(min(self._size, 2 * len(frame)))
            grown[: self._filled] = frame
            self._frame = frame = grown
        return memoryview(frame)[self._filled :]

    def buffer_updated(self, received: int) -> list[memoryview]:
        """Take note of `received` bytes in the buffer given last; return the frames now whole."""
        if self._frame is not None:
            self._filled += received
            if self._filled < self._size:
                return []
            whole, self._frame = self._frame, None
            return [memoryview(whole)]
        end = received
        staging = self._staging
        if self._prefix:
            held = len(self._prefix)
            staging[:held] = self._prefix
            self._prefix = b""
            end += held
        return self._split(staging, end)

    def _split(self, staging: memoryview, end: int) -> list[memoryview]:
        frames: list[memoryview] = []
        position = 0
        while end - position >= PREFIX_BYTES:
            (size,) = _unpack_size(staging, position)
            # Checked before the payload arrives: a hostile length must fail at once, not
            # after it has been buffered.
            if not 0 <= size <= self._frame_bytes_max:
                self.failure = FrameTooLargeError(size, self._frame_bytes_max)
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
        self._frame = bytearray(min(size, GROWTH_START))
        self._frame[: len(head)] = head
        self._size = size
        self._filled = len(head)
