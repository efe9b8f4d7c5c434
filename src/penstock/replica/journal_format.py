"""Headers and blocks of journal files. Pure. docs/formats/journal-files.md has the tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.replica.snapshot import JournalEntry

FOLDER: Final = "journal"
SUFFIX: Final = ".journal"
TORN_SUFFIX: Final = ".torn"
VERSION: Final = 1
ALIGNMENT: Final = 512
BLOCK_BYTES_MAX: Final = 1 << 20
"""Bytes of a block's payload; one entry may be longer."""

_FILE_MAGIC: Final = b"PJNL"
_BLOCK_MAGIC: Final = b"PJBK"
_FILE: Final = Struct(">4sB3xQIIQ40s")
_BLOCK: Final = Struct(">4sIQIII")
_CRC: Final = Struct(">I")
_ENTRY: Final = Struct(">qI")
FILE_HEADER_BYTES: Final = _FILE.size + _CRC.size
BLOCK_HEADER_BYTES: Final = _BLOCK.size + _CRC.size

Row = tuple[int, int, bytes]
"""(position, journal time, body)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """A file says this of itself. `chain` 0: the entries before are in no journal file."""

    first: int
    chain: int
    format_version: int
    agent_id: int
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """A block says this of itself."""

    first: int
    count: int
    length: int
    payload_crc: int
    chain: int
    link: int

    @property
    def end(self) -> int:
        """The position after its last entry."""
        return self.first + self.count


def file_name(first: int) -> str:
    """The name of a file on the device."""
    return f"{FOLDER}/{first:020d}{SUFFIX}"


def first_of_name(name: str) -> int | None:
    """The position that a file's name says; None: it is not a journal file's."""
    digits = name.removesuffix(SUFFIX)
    if digits == name or len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def align(position: int) -> int:
    """The next place where a block may begin."""
    return -(-position // ALIGNMENT) * ALIGNMENT


def encode_file_header(header: FileHeader) -> bytes:
    """The first 512 bytes of a file."""
    raw = _FILE.pack(
        _FILE_MAGIC,
        VERSION,
        header.first,
        header.chain,
        header.format_version,
        header.agent_id,
        header.cluster_id.encode("ascii"),
    )
    return (raw + _CRC.pack(crc32c(raw))).ljust(ALIGNMENT, b"\0")


def decode_file_header(data: Buffer, *, subject: str) -> FileHeader:
    """Parse and check a file's header.

    Raises:
        CorruptDataError: it is not what was written.
        InvalidRequestError: it is of a newer release.
    """
    raw = bytes(memoryview(data)[:FILE_HEADER_BYTES])
    if len(raw) < FILE_HEADER_BYTES:
        raise _damaged(subject, f"{len(raw)} bytes, a header has {FILE_HEADER_BYTES}")
    (crc,) = _CRC.unpack_from(raw, _FILE.size)
    magic, version, first, chain, format_version, agent_id, name = _FILE.unpack_from(raw)
    if magic != _FILE_MAGIC or crc32c(raw[: _FILE.size]) != crc:
        raise _damaged(subject, "magic or CRC-32C of the header differs")
    if version != VERSION:
        raise InvalidRequestError(
            "read journal",
            subject,
            f"version {version}, this release knows {VERSION}",
            "open it with the release that wrote it, or a later one",
        )
    return FileHeader(
        first=first,
        chain=chain,
        format_version=format_version,
        agent_id=agent_id,
        cluster_id=name.rstrip(b"\0").decode("ascii", "replace"),
    )


def encode_block(rows: Sequence[Row], chain: int) -> tuple[bytes, int]:
    """A block of rows that follow on, padded, and its link."""
    parts: list[bytes] = []
    for _, time_ms, body in rows:
        parts += (_ENTRY.pack(time_ms, len(body)), body)
    payload = b"".join(parts)
    raw = _BLOCK.pack(_BLOCK_MAGIC, len(rows), rows[0][0], len(payload), crc32c(payload), chain)
    link = crc32c(raw) or 1
    length = BLOCK_HEADER_BYTES + len(payload)
    return b"".join((raw, _CRC.pack(link), payload, bytes(align(length) - length))), link


def decode_block_header(data: Buffer, *, subject: str) -> BlockHeader:
    """Parse and check a block's header.

    Raises:
        CorruptDataError: there is no whole one.
    """
    raw = bytes(memoryview(data)[:BLOCK_HEADER_BYTES])
    if len(raw) < BLOCK_HEADER_BYTES:
        raise _damaged(subject, f"{len(raw)} bytes, the header of a block has {BLOCK_HEADER_BYTES}")
    magic, count, first, length, payload_crc, chain = _BLOCK.unpack_from(raw)
    (link,) = _CRC.unpack_from(raw, _BLOCK.size)
    if magic != _BLOCK_MAGIC or (crc32c(raw[: _BLOCK.size]) or 1) != link or not count:
        raise _damaged(subject, "magic or CRC-32C of a block's header differs")
    return BlockHeader(
        first=first,
        count=count,
        length=length,
        payload_crc=payload_crc,
        chain=chain,
        link=link,
    )


def decode_rows(payload: bytes, header: BlockHeader, *, subject: str) -> Iterator[JournalEntry]:
    """The entries of a block.

    Raises:
        CorruptDataError: they are not those that its header names.
    """
    if len(payload) != header.length or crc32c(payload) != header.payload_crc:
        raise _damaged(subject, f"CRC-32C of a block's {header.length} bytes differs")
    at = 0
    for position in range(header.first, header.end):
        if at + _ENTRY.size > len(payload):
            raise _damaged(subject, f"a block ends before entry {position}")
        time_ms, length = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        if at + length > len(payload):
            raise _damaged(subject, f"a block ends inside entry {position}")
        yield JournalEntry(position, time_ms, payload[at : at + length])
        at += length
    if at != len(payload):
        raise _damaged(subject, f"{len(payload) - at} bytes follow a block's last entry")


def _damaged(subject: str, detail: str) -> CorruptDataError:
    return CorruptDataError("read journal", subject, detail)
