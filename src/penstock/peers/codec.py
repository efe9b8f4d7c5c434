"""Requests and frames of peer calls. Pure. docs/formats/peers.md has the tables."""

import enum
from struct import Struct
from typing import Final, NamedTuple

import msgspec
from typing_extensions import Buffer

from penstock.model.errors import InvalidRequestError
from penstock.model.malformed import MALFORMED

FRAME_HEADER: Final = Struct(">BII")
RANGES_MAX: Final = 64
RANGES_BYTES_MAX: Final = 64 << 20
WAL_BYTES_MAX: Final = 128 << 20
REQUEST_BYTES_MAX: Final = 256 << 10
"""No request is longer: 64 keys of 1 KiB and their numbers are 70 KB."""


class FrameKind(enum.IntEnum):
    """The kinds of frames in an answer."""

    BEAT = 0
    DATA = 1
    REFUSED = 2
    MOVED = 3
    DAMAGED = 4
    VERSION = 5
    END = 255


class BlockRange(NamedTuple):
    """Bytes [start, end) of an object, within one aligned block."""

    key: str
    start: int
    end: int

    @property
    def length(self) -> int:
        """Bytes of the range."""
        return self.end - self.start


class WalRange(NamedTuple):
    """Bytes of a WAL's file: `generation` is the file's, without the WAL's key."""

    wal_key: int
    generation: int
    position: int
    length: int


_encoder = msgspec.msgpack.Encoder()
_blocks_decoder = msgspec.msgpack.Decoder(list[BlockRange])
_wal_decoder = msgspec.msgpack.Decoder(WalRange)


def encode_blocks(ranges: list[BlockRange]) -> bytes:
    """The body of a call for blocks."""
    return _encoder.encode(ranges)


def encode_wal(wanted: WalRange) -> bytes:
    """The body of a call for a WAL's bytes."""
    return _encoder.encode(wanted)


def decode_blocks(body: Buffer, *, block_bytes: int) -> list[BlockRange]:
    """Parse and check a call for blocks.

    Raises:
        InvalidRequestError: it is malformed, or asks for too much.
    """
    try:
        ranges = _blocks_decoder.decode(body)
    except MALFORMED as error:
        raise InvalidRequestError("read peer call", "blocks", str(error)) from error
    total = 0
    for wanted in ranges:
        if wanted.start < 0 or wanted.start % block_bytes or not 0 < wanted.length <= block_bytes:
            raise InvalidRequestError(
                "read peer call",
                f"blocks of {wanted.key}",
                f"[{wanted.start}, {wanted.end}) is not in one block of {block_bytes} bytes",
                "do all agents have the same block_bytes?",
            )
        total += wanted.length
    if len(ranges) > RANGES_MAX or total > max(RANGES_BYTES_MAX, block_bytes):
        raise InvalidRequestError(
            "read peer call", "blocks", f"{len(ranges)} ranges of {total} bytes in all"
        )
    return ranges


def decode_wal(body: Buffer) -> WalRange:
    """Parse and check a call for a WAL's bytes.

    Raises:
        InvalidRequestError: it is malformed, or asks for too much.
    """
    try:
        wanted = _wal_decoder.decode(body)
    except MALFORMED as error:
        raise InvalidRequestError("read peer call", "wal", str(error)) from error
    if min(wanted) < 0 or not 0 < wanted.length <= WAL_BYTES_MAX:
        raise InvalidRequestError("read peer call", "wal", f"{tuple(wanted)} is out of bounds")
    return wanted


def frame(kind: FrameKind, index: int = 0, length: int = 0) -> bytes:
    """A frame's header; its payload follows."""
    return FRAME_HEADER.pack(kind, index, length)
