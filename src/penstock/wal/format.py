"""The bytes of WAL files: header page and frame header. Pure; docs/formats/wal.md has the tables.

Not here: files, recovery, recycling.
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError

VERSION: Final = 2
"""The version that is written and read. Version 1, which no release wrote, is refused."""
PAGE_BYTES: Final = 4096
"""The header page, and what a write is padded to, so that the kernel reads nothing before it."""

FRAME_ALIGNMENT: Final = 512
"""A sector: what a disk writes whole. No frame shares one with an acknowledged frame."""

FRAMES_START: Final = PAGE_BYTES

_FILE_MAGIC: Final = b"PWAL"
_FRAME_MAGIC: Final = b"PFRM"
_FILE_FIELDS: Final = struct.Struct(">4sB3xQQQ")
_FRAME_FIELDS: Final = struct.Struct(">4sB3xQQIIIQQ")
_CRC: Final = struct.Struct(">I")
_FILE_BYTES_1: Final = 24
_FRAME_BYTES_1: Final = 36
"""Bytes of headers of version 1 before their CRC-32C, which tells such a header, that is
refused, from a damaged one."""
_RESERVED_BYTES: Final = bytes(3)

FILE_HEADER_BYTES: Final = _FILE_FIELDS.size + _CRC.size
FRAME_HEADER_BYTES: Final = _FRAME_FIELDS.size + _CRC.size
FRAME_MAGIC: Final = _FRAME_MAGIC
_BLANK: Final = bytes(FILE_HEADER_BYTES)
_FRAME_LENGTH_MAX: Final = (1 << 32) - 1


class OtherWalVersionError(CorruptDataError):
    """A header is whole, and of a version that this release doesn't know: no damage, and nothing of
    it may be read, cut or used again."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Fields of a header page. Generation 0: the file was never used.

    `first_position`: the journal position that was next when the generation began: every entry
    in older generations that counts is below it; 0 where frames carry no entries.
    """

    generation: int
    file_bytes: int
    first_position: int = 0


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Fields of a frame's header, its own CRC being right.

    `length`: of the payload, the entry included; `entry_length`: of the entry, the payload's last
    bytes, 0 when there is none; `position`, `time_ms`: the entry's place in the journal and journal
    time there.
    """

    generation: int
    number: int
    length: int
    payload_crc: int
    entry_length: int = 0
    position: int = 0
    time_ms: int = 0


def frame_bytes_max(file_bytes: int) -> int:
    """The longest payload of one frame, in a file of `file_bytes`."""
    return min(file_bytes - FRAMES_START - FRAME_HEADER_BYTES, _FRAME_LENGTH_MAX)


def align_frame(position: int) -> int:
    """The first byte at or after `position` where a frame may begin."""
    return -(-position // FRAME_ALIGNMENT) * FRAME_ALIGNMENT


def encode_file_header(*, generation: int, file_bytes: int, first_position: int) -> bytes:
    """A whole header page."""
    fields = _FILE_FIELDS.pack(_FILE_MAGIC, VERSION, generation, file_bytes, first_position)
    return (fields + _CRC.pack(crc32c(fields))).ljust(PAGE_BYTES, b"\0")


def decode_file_header(data: bytes, *, subject: str) -> FileHeader:
    """Parse a header page, or its first FILE_HEADER_BYTES.

    Raises:
        OtherWalVersionError: it is of a version that this release doesn't know.
        CorruptDataError: naming `subject`.
    """
    if len(data) < FILE_HEADER_BYTES:
        raise _corrupt(subject, f"{len(data)} bytes, a header has {FILE_HEADER_BYTES}")
    if data[:FILE_HEADER_BYTES] == _BLANK:
        return FileHeader(0, 0)
    if data[:4] != _FILE_MAGIC:
        raise _corrupt(subject, "this isn't a WAL file: its magic differs")
    if not _file_crc_is_right(data):
        raise _corrupt(subject, "CRC-32C of the file header differs")
    if data[4] != VERSION or data[5:8] != _RESERVED_BYTES:
        raise _unknown_version(subject, data[4])
    _, _, generation, file_bytes, first_position = _FILE_FIELDS.unpack_from(data)
    return FileHeader(generation, file_bytes, first_position)


def generation_of(data: bytes) -> int | None:
    """The generation in a file header, or None if it is blank or damaged. The fast way to ask
    whether a file is still what it was."""
    if len(data) < FILE_HEADER_BYTES or data[:4] != _FILE_MAGIC or not _file_crc_is_right(data):
        return None
    return int.from_bytes(data[8:16], "big")


def _file_crc_is_right(data: bytes) -> bool:
    size = _FILE_BYTES_1 if data[4] == 1 else _FILE_FIELDS.size
    expected: int = _CRC.unpack_from(data, size)[0]
    return crc32c(data[:size]) == expected


def encode_frame_header(
    *,
    generation: int,
    number: int,
    length: int,
    payload_crc: int,
    entry_length: int = 0,
    position: int = 0,
    time_ms: int = 0,
) -> bytes:
    """The FRAME_HEADER_BYTES before a payload of `length` bytes."""
    fields = _FRAME_FIELDS.pack(
        _FRAME_MAGIC,
        VERSION,
        generation,
        number,
        length,
        payload_crc,
        entry_length,
        position,
        time_ms,
    )
    return fields + _CRC.pack(crc32c(fields))


def decode_frame_header(data: bytes, *, subject: str) -> FrameHeader:
    """Parse the first FRAME_HEADER_BYTES of a frame.

    Raises:
        OtherWalVersionError: it is of a version that this release doesn't know.
        CorruptDataError: naming `subject`.
    """
    if len(data) < FRAME_HEADER_BYTES:
        raise _corrupt(subject, f"{len(data)} bytes, a frame header has {FRAME_HEADER_BYTES}")
    if data[:4] != _FRAME_MAGIC:
        raise _corrupt(subject, "no frame begins here: its magic differs")
    size = _FRAME_BYTES_1 if data[4] == 1 else _FRAME_FIELDS.size
    if crc32c(data[:size]) != _CRC.unpack_from(data, size)[0]:
        raise _corrupt(subject, "CRC-32C of the frame header differs")
    if data[4] != VERSION:
        raise _unknown_version(subject, data[4])
    _, _, *values = _FRAME_FIELDS.unpack_from(data)
    header = FrameHeader(*values)
    if header.entry_length > header.length:
        raise _corrupt(subject, f"an entry of {header.entry_length} B in {header.length} B")
    return header


def _corrupt(subject: str, detail: str) -> CorruptDataError:
    return CorruptDataError("read WAL", subject, detail)


def _unknown_version(subject: str, version: int) -> OtherWalVersionError:
    return OtherWalVersionError(
        "read WAL",
        subject,
        f"WAL version {version}, this release knows version {VERSION}",
        "only builds from before the first release wrote it: consume the records with that build, "
        "and produce them to a new log"
        if version < VERSION
        else "open it with the release that wrote it, or a later one",
    )
