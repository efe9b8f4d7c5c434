"""Names, headers and rows of the archive. Pure. docs/formats/archive.md has the tables."""

import enum
import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.ports.journal import JournalRow
from penstock.replica.marks import RowMark

SNAPSHOTS_PREFIX: Final = "archive/snapshots/"
JOURNAL_PREFIX: Final = "archive/journal/"
LOST_PREFIX: Final = "archive/lost/"
"""Prefix of the objects of histories that the journal has lost, by their numbers."""
ARCHIVE_VERSION: Final = 2
"""Version of snapshots, whose header has a mark since then. Stretches are of version 1: their
rows are their marks."""
STRETCH_BYTES_MAX: Final = 16 << 20
"""Bytes of a stretch's rows before compression: it is made and read in memory whole."""
STRETCH_READ_BYTES_MAX: Final = 256 << 20
"""One row may be larger than a stretch should be; more than this none is."""

_MAGIC: Final = b"PENSARCH"
_HEADER: Final = Struct(">8sBBHQQqqQQI32s40s")
_MARK: Final = Struct(">QqI")
_CRC: Final = Struct(">I")
_ROW: Final = Struct(">QqI")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
MARKED_HEADER_BYTES: Final = HEADER_BYTES + _MARK.size
_SNAPSHOT_NAME: Final = re.compile(r"(\d{20})-([0-9a-f]{16})\.sqlite\.zst")
_STRETCH_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.entries\.zst")
_LOST_STRETCH_NAME: Final = re.compile(r"(\d{20})-(\d{20})-([0-9a-f]{8})\.entries\.zst")
_LOST_KEY: Final = re.compile(r"archive/lost/(\d{8})/(.+)")


class ArchiveKind(enum.IntEnum):
    """The kinds of objects in the archive."""

    SNAPSHOT = 1
    STRETCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveHeader:
    """The fields that an object begins with. Times in ms since the epoch."""

    kind: ArchiveKind
    cluster_id: str
    first: int
    last: int
    first_ms: int
    last_ms: int
    raw_bytes: int
    payload_bytes: int
    payload_crc: int
    digest: bytes = bytes(32)
    mark: RowMark | None = None
    """In a snapshot: the mark of the last journal row that it holds. None: the header has none."""

    @property
    def header_bytes(self) -> int:
        """The position in the object at which the payload begins."""
        return HEADER_BYTES if self.mark is None else MARKED_HEADER_BYTES


@dataclass(frozen=True, slots=True, order=True)
class SnapshotName:
    """A snapshot's key, parsed."""

    position: int
    digest_hex: str
    lost: int = 0
    """Number of the lost history that it is of; 0: of the present one."""

    @property
    def key(self) -> str:
        """Under the cluster's prefix."""
        prefix = lost_prefix(self.lost) if self.lost else SNAPSHOTS_PREFIX
        return f"{prefix}{self.position:020d}-{self.digest_hex}.sqlite.zst"


@dataclass(frozen=True, slots=True, order=True)
class StretchName:
    """A stretch's key, parsed: rows [first, last], both included."""

    first: int
    last: int
    lost: int = 0
    """Number of the lost history that it is of; 0: of the present one."""
    crc: int = 0
    """CRC-32C of the body of the last row, of a lost history alone: two that were lost one after
    the other may have the same positions."""

    @property
    def key(self) -> str:
        """Under the cluster's prefix."""
        positions = f"{self.first:020d}-{self.last:020d}"
        if self.lost:
            return f"{lost_prefix(self.lost)}{positions}-{self.crc:08x}.entries.zst"
        return f"{JOURNAL_PREFIX}{positions}.entries.zst"


def lost_prefix(history: int) -> str:
    """Return the prefix of what is archived of a lost history."""
    return f"{LOST_PREFIX}{history:08d}/"


def parse_snapshot_key(key: str) -> SnapshotName | None:
    """Parse a snapshot's key; None: it is another object's."""
    found = _SNAPSHOT_NAME.fullmatch(key.removeprefix(SNAPSHOTS_PREFIX))
    return None if found is None else SnapshotName(int(found[1]), found[2])


def parse_stretch_key(key: str) -> StretchName | None:
    """Parse a stretch's key; None: it is another object's."""
    found = _STRETCH_NAME.fullmatch(key.removeprefix(JOURNAL_PREFIX))
    if found is None or int(found[1]) > int(found[2]):
        return None
    return StretchName(int(found[1]), int(found[2]))


def parse_lost_key(key: str) -> SnapshotName | StretchName | None:
    """Parse the key of what is kept of a lost history; None: it is another object's."""
    found = _LOST_KEY.fullmatch(key)
    if found is None:
        return None
    history = int(found[1])
    if name := _SNAPSHOT_NAME.fullmatch(found[2]):
        return SnapshotName(int(name[1]), name[2], history)
    if name := _LOST_STRETCH_NAME.fullmatch(found[2]):
        return StretchName(int(name[1]), int(name[2]), history, int(name[3], 16))
    return None


def encode_header(header: ArchiveHeader) -> bytes:
    """140 bytes; with a mark 160."""
    mark = header.mark
    raw = _HEADER.pack(
        _MAGIC,
        1 if mark is None else ARCHIVE_VERSION,
        header.kind,
        0,
        header.first,
        header.last,
        header.first_ms,
        header.last_ms,
        header.raw_bytes,
        header.payload_bytes,
        header.payload_crc,
        header.digest,
        header.cluster_id.encode("ascii"),
    )
    if mark is not None:
        raw += _MARK.pack(mark.position, mark.stamp_ms, mark.crc)
    return raw + _CRC.pack(crc32c(raw))


def decode_header(data: Buffer, *, kind: ArchiveKind, subject: str) -> ArchiveHeader:
    """Parse and check a header.

    Raises:
        CorruptDataError: it is not what was written.
        InvalidRequestError: it is of a newer release.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise _damaged(subject, f"{len(view)} bytes, a header has at least {HEADER_BYTES}")
    # The version says how long the header is, and is itself covered by the CRC-32C.
    version = view[len(_MAGIC)]
    size = HEADER_BYTES if version != ARCHIVE_VERSION else MARKED_HEADER_BYTES
    if len(view) < size:
        raise _damaged(subject, f"{len(view)} bytes, a header of this version has {size}")
    raw = bytes(view[: size - _CRC.size])
    (crc,) = _CRC.unpack(view[size - _CRC.size : size])
    if raw[: len(_MAGIC)] != _MAGIC or crc32c(raw) != crc:
        raise _damaged(subject, "magic or CRC-32C of the header differs")
    fields = _HEADER.unpack_from(raw)
    if not 1 <= version <= ARCHIVE_VERSION:
        raise InvalidRequestError(
            "read archive",
            subject,
            f"archive version {version}, this release knows {ARCHIVE_VERSION}",
            "read it with the release that wrote it, or a later one",
        )
    if fields[2] != kind:
        raise _damaged(subject, f"kind {fields[2]}, {int(kind)} is due")
    return ArchiveHeader(
        kind=kind,
        first=fields[4],
        last=fields[5],
        first_ms=fields[6],
        last_ms=fields[7],
        raw_bytes=fields[8],
        payload_bytes=fields[9],
        payload_crc=fields[10],
        digest=fields[11],
        cluster_id=fields[12].rstrip(b"\0").decode("ascii"),
        mark=None if version == 1 else RowMark(*_MARK.unpack_from(raw, _HEADER.size)),
    )


def encode_rows(rows: Sequence[JournalRow]) -> bytes:
    """A stretch's payload before compression. Rows must follow on."""
    parts: list[bytes] = []
    expected = rows[0].position
    for row in rows:
        assert row.position == expected, f"row {row.position} where {expected} is due"
        expected += 1
        parts += (_ROW.pack(row.position, row.stamp_ms, len(row.body)), row.body)
    return b"".join(parts)


def decode_rows(data: Buffer, header: ArchiveHeader, *, subject: str) -> Iterator[JournalRow]:
    """The rows of a decompressed payload.

    Raises:
        CorruptDataError: they are not those that the header names.
    """
    expected = header.first
    for row in rows_of(data, first=header.first, subject=subject):
        yield row
        expected += 1
    if expected != header.last + 1:
        raise _damaged(subject, f"it ends before position {expected}, not behind {header.last}")


def rows_of(data: Buffer, *, first: int, subject: str) -> Iterator[JournalRow]:
    """The rows that `encode_rows` gave, one after the other, of any number of calls that follow on.

    Raises:
        CorruptDataError: a row is cut, or isn't the next one.
    """
    view = memoryview(data)
    at, expected = 0, first
    while at < len(view):
        if at + _ROW.size > len(view):
            raise _damaged(subject, "a row is cut")
        position, stamp_ms, length = _ROW.unpack_from(view, at)
        at += _ROW.size
        if position != expected or at + length > len(view):
            raise _damaged(subject, f"position {position} where {expected} is due, or a cut row")
        yield JournalRow(position, stamp_ms, bytes(view[at : at + length]))
        at += length
        expected += 1


class Coverage:
    """Picks stretches that hold one position after the other, the longest first."""

    def __init__(self, stretches: Sequence[StretchName]) -> None:
        self._ahead = sorted(stretches, reverse=True)
        self._fitting: list[tuple[int, StretchName]] = []

    def holding(self, position: int) -> StretchName:
        """A stretch that holds a position; positions asked for only grow. One that was given and
        is asked past is not given again; nor is one that turned out to be damaged.

        Raises:
            CorruptDataError: none does.
        """
        while self._ahead and self._ahead[-1].first <= position:
            name = self._ahead.pop()
            heapq.heappush(self._fitting, (-name.last, name))
        if not self._fitting or -self._fitting[0][0] < position:
            raise CorruptDataError(
                "read archive",
                JOURNAL_PREFIX,
                f"no whole stretch holds the journal's position {position}",
                "the archive is not whole",
            )
        return heapq.heappop(self._fitting)[1]


def _damaged(subject: str, detail: str) -> CorruptDataError:
    return CorruptDataError("read archive", subject, detail)
