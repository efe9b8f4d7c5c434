"""The bytes of WAL files: header page and frame header. Pure; docs/formats/wal.md has the tables.

Not here: files, recovery, recycling.
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError

VERSION: Final = 1
PAGE_BYTES: Final = 4096
"""The header page, and what a write is padded to, so that the kernel reads nothing before it."""

FRAME_ALIGNMENT: Final = 512
"""A sector: what a disk writes whole. No frame shares one with an acknowledged frame."""

FRAMES_START: Final = PAGE_BYTES

_FILE_MAGIC: Final = b"PWAL"
_FRAME_MAGIC: Final = b"PFRM"
_FILE_FIELDS: Final = struct.Struct(">4sB3xQQ")
_FRAME_FIELDS: Final = struct.Struct(">4sB3xQQII4x")
_CRC: Final = struct.Struct(">I")
_RESERVED_BYTES: Final = bytes(3)

FILE_HEADER_BYTES: Final = _FILE_FIELDS.size + _CRC.size
FRAME_HEADER_BYTES: Final = _FRAME_FIELDS.size + _CRC.size
_BLANK: Final = bytes(FILE_HEADER_BYTES)


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Fields of a header page. Generation 0: the file was never used."""

    generation: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Fields of a frame's header, its own CRC being right."""

    generation: int
    number: int
    length: int
    payload_crc: int


def align_frame(position: int) -> int:
    """The first byte at or after `position` where a frame may begin."""
    return -(-position // FRAME_ALIGNMENT) * FRAME_ALIGNMENT


def encode_file_header(*, generation: int, file_bytes: int) -> bytes:
    """A whole header page."""
    fields = _FILE_FIELDS.pack(_FILE_MAGIC, VERSION, generation, file_bytes)
    return (fields + _CRC.pack(crc32c(fields))).ljust(PAGE_BYTES, b"\0")


def decode_file_header(data: bytes, *, subject: str) -> FileHeader:
    """Parse a header page, or its first FILE_HEADER_BYTES.

    Raises:
        CorruptDataError: naming `subject`.
    """
    if len(data) < FILE_HEADER_BYTES:
        raise _corrupt(subject, f"{len(data)} bytes, a header has {FILE_HEADER_BYTES}")
    if data[:FILE_HEADER_BYTES] == _BLANK:
        return FileHeader(0, 0)
    magic, version, generation, file_bytes = _FILE_FIELDS.unpack_from(data)
    if magic != _FILE_MAGIC:
        raise _corrupt(subject, "this is no WAL file: its magic differs")
    if crc32c(data[: _FILE_FIELDS.size]) != _CRC.unpack_from(data, _FILE_FIELDS.size)[0]:
        raise _corrupt(subject, "CRC-32C of the file header differs")
    if version != VERSION or data[5:8] != _RESERVED_BYTES:
        raise _unknown_version(subject, version)
    return FileHeader(generation, file_bytes)


def generation_of(data: bytes) -> int | None:
    """The generation in a file header, or None if it is blank or damaged. The fast way to ask
    whether a file is still what it was."""
    if len(data) < FILE_HEADER_BYTES or data[:4] != _FILE_MAGIC:
        return None
    if crc32c(data[: _FILE_FIELDS.size]) != _CRC.unpack_from(data, _FILE_FIELDS.size)[0]:
        return None
    return int.from_bytes(data[8:16], "big")


def encode_frame_header(*, generation: int, number: int, length: int, payload_crc: int) -> bytes:
    """The FRAME_HEADER_BYTES before a payload of `length` bytes."""
    fields = _FRAME_FIELDS.pack(_FRAME_MAGIC, VERSION, generation, number, length, payload_crc)
    return fields + _CRC.pack(crc32c(fields))


def decode_frame_header(data: bytes, *, subject: str) -> FrameHeader:
    """Parse the first FRAME_HEADER_BYTES of a frame.

    Raises:
        CorruptDataError: naming `subject`.
    """
    if len(data) < FRAME_HEADER_BYTES:
        raise _corrupt(subject, f"{len(data)} bytes, a frame header has {FRAME_HEADER_BYTES}")
    magic, version, generation, number, length, payload_crc = _FRAME_FIELDS.unpack_from(data)
    if magic != _FRAME_MAGIC:
        raise _corrupt(subject, "no frame begins here: its magic differs")
    fields = data[: _FRAME_FIELDS.size]
    if crc32c(fields) != _CRC.unpack_from(data, _FRAME_FIELDS.size)[0]:
        raise _corrupt(subject, "CRC-32C of the frame header differs")
    if version != VERSION:
        raise _unknown_version(subject, version)
    return FrameHeader(generation, number, length, payload_crc)


def _corrupt(subject: str, detail: str) -> CorruptDataError:
    return CorruptDataError("read WAL", subject, detail)


def _unknown_version(subject: str, version: int) -> CorruptDataError:
    return CorruptDataError(
        "read WAL",
        subject,
        f"version {version}, this release knows {VERSION}",
        "open it with the release that wrote it, or a later one",
    )
