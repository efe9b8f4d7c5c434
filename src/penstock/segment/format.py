"""Segment objects as bytes: build one, parse its header, footer and index. Pure.

docs/formats/segment.md has the tables. The data itself is not looked at here: batches carry
their own CRC.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError

VERSION: Final = 1
MAGIC: Final = b"PSEG"
OFFSETS_FINAL: Final = 1
"""Flag: the base offsets in the data are final."""

_HEADER_FIELDS: Final = struct.Struct(">4sB7x")
_COUNTS: Final = struct.Struct(">II")
_RUN: Final = struct.Struct(">16sIIqqQQQqI4x")
_MARK: Final = struct.Struct(">qQq")
_FOOTER_FIELDS: Final = struct.Struct(">QQIIB7x")
_CRC: Final = struct.Struct(">I")

HEADER_BYTES: Final = _HEADER_FIELDS.size + _CRC.size
FOOTER_BYTES: Final = _FOOTER_FIELDS.size + _CRC.size + len(MAGIC)

_HEADER: Final = _HEADER_FIELDS.pack(MAGIC, VERSION)
_HEADER_BLOCK: Final = _HEADER + _CRC.pack(crc32c(_HEADER))


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a run where reading may begin: the first byte of a batch.

    Args:
        base_offset: of the batch there.
        position: relative to the run's first byte.
        max_timestamp: of the run's batches before it, ms since the epoch; -1 for the first.
    """

    base_offset: int
    position: int
    max_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRun:
    """The batches of one partition that go into a segment. `parts` together are `length` bytes.
    `sum`: of the batches (`penstock.records.sums`), -1: not made."""

    topic_id: bytes
    partition: int
    base_offset: int
    end_offset: int
    record_count: int
    batch_count: int
    max_timestamp: int
    parts: Sequence[Buffer]
    length: int
    marks: Sequence[Mark]
    sum: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltSegment:
    """A segment as buffers to write one behind the other; `positions` of the runs, as given."""

    parts: list[Buffer]
    size_bytes: int
    positions: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """Position of the index block, and its CRC."""

    index_position: int
    index_length: int
    index_crc: int
    flags: int

    @property
    def offsets_final(self) -> bool:
        """Whether the base offsets in the data are final."""
        return bool(self.flags & OFFSETS_FINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedRun:
    """A run as the index describes it; `position` is that of its first byte in the object."""

    topic_id: bytes
    partition: int
    base_offset: int
    end_offset: int
    position: int
    length: int
    batch_count: int
    record_count: int
    max_timestamp: int
    marks: tuple[Mark, ...]

    def stretch_of_offset(self, offset: int) -> tuple[int, int]:
        """The bytes [start, end) of the object in which the batch with `offset` begins."""
        index = bisect_right(self.marks, offset, key=_mark_offset) - 1
        return self._stretch(max(0, index))

    def _stretch(self, index: int) -> tuple[int, int]:
        relative_end = (
            self.marks[index + 1].position if index + 1 < len(self.marks) else self.length
        )
        start = self.marks[index].position if self.marks else 0
        return self.position + start, self.position + relative_end


def build_segment(runs: Sequence[SegmentRun], *, offsets_final: bool = True) -> BuiltSegment:
    """Lay runs out in a segment. The data is not copied.

    Args:
        runs: sorted by (topic id, partition), each at most once, at least one.
        offsets_final: false: the offsets in data and index count from each run's first record.
    """
    assert runs
    parts: list[Buffer] = [_HEADER_BLOCK]
    positions: list[int] = []
    rows: list[bytes] = []
    mark_rows: list[bytes] = []
    position = HEADER_BYTES
    previous: tuple[bytes, int] | None = None
    for run in runs:
        assert len(run.topic_id) == 16
        assert run.length > 0
        assert previous is None or previous < (run.topic_id, run.partition), "runs are not sorted"
        previous = (run.topic_id, run.partition)
        part_bytes = sum(memoryview(part).nbytes for part in run.parts)
        assert part_bytes == run.length, (part_bytes, run.length)
        positions.append(position)
        parts += run.parts
        rows.append(
            _RUN.pack(
                run.topic_id,
                run.partition,
                run.batch_count,
                run.base_offset,
                run.end_offset,
                position,
                run.length,
                run.record_count,
                run.max_timestamp,
                len(run.marks),
            )
        )
        mark_rows += [
            _MARK.pack(mark.base_offset, mark.position, mark.max_timestamp) for mark in run.marks
        ]
        position += run.length
    index = b"".join([_COUNTS.pack(len(rows), len(mark_rows)), *rows, *mark_rows])
    flags = OFFSETS_FINAL if offsets_final else 0
    footer = _FOOTER_FIELDS.pack(position, len(index), crc32c(index), flags, VERSION)
    parts += [index, footer + _CRC.pack(crc32c(footer)) + MAGIC]
    return BuiltSegment(
        parts=parts, size_bytes=position + len(index) + FOOTER_BYTES, positions=positions
    )


def check_header(head: bytes, *, subject: str) -> None:
    """Check the first HEADER_BYTES of a segment.

    Raises:
        CorruptDataError: naming `subject`.
    """
    if len(head) < HEADER_BYTES:
        raise _corrupt(subject, 0, f"{len(head)} bytes, a header has {HEADER_BYTES}")
    if head[:4] != MAGIC:
        raise _corrupt(subject, 0, "this isn't a segment: its magic differs")
    if crc32c(head[: _HEADER_FIELDS.size]) != _CRC.unpack_from(head, _HEADER_FIELDS.size)[0]:
        raise _corrupt(subject, 0, "CRC-32C of the header differs")
    _check_version(subject, 0, head[4])


def parse_footer(tail: bytes, *, size_bytes: int, subject: str) -> Footer:
    """Parse a footer.

    Args:
        tail: the object's last FOOTER_BYTES, or more of its end.
        size_bytes: the object's size.
        subject: its key, for errors.

    Raises:
        CorruptDataError: damaged, or of an unknown version.
    """
    at = size_bytes - FOOTER_BYTES
    if len(tail) < FOOTER_BYTES or at < HEADER_BYTES:
        raise _corrupt(subject, max(0, at), f"{len(tail)} of {size_bytes} bytes hold no footer")
    tail = tail[-FOOTER_BYTES:]
    if tail[-len(MAGIC) :] != MAGIC:
        raise _corrupt(subject, at, "this isn't a segment: the magic at its end differs")
    if crc32c(tail[: _FOOTER_FIELDS.size]) != _CRC.unpack_from(tail, _FOOTER_FIELDS.size)[0]:
        raise _corrupt(subject, at, "CRC-32C of the footer differs")
    position, length, crc, flags, version = _FOOTER_FIELDS.unpack_from(tail)
    _check_version(subject, at, version)
    if position < HEADER_BYTES or length < _COUNTS.size or position + length != at:
        raise _corrupt(
            subject, at, f"an index of {length} bytes at {position} does not end at {at}"
        )
    return Footer(index_position=position, index_length=length, index_crc=crc, flags=flags)


def parse_index(block: bytes, footer: Footer, *, subject: str) -> tuple[IndexedRun, ...]:
    """Parse an index block.

    Args:
        block: the bytes that `footer` places.
        subject: the object's key, for errors.

    Returns:
        The runs, sorted by (topic id, partition).

    Raises:
        CorruptDataError: damaged, or its rows contradict one another.
    """
    at = footer.index_position
    if len(block) != footer.index_length:
        raise _corrupt(subject, at, f"{len(block)} of {footer.index_length} bytes of index")
    if crc32c(block) != footer.index_crc:
        raise _corrupt(subject, at, "CRC-32C of the index differs")
    # From here on the bytes are what some writer meant; what is checked still is checked so that
    # a writer's bug shows here, and not as wrong records.
    if len(block) < _COUNTS.size:
        raise _corrupt(subject, at, f"an index of {len(block)} bytes")
    run_count, mark_count = _COUNTS.unpack_from(block)
    marks_start = _COUNTS.size + run_count * _RUN.size
    if marks_start + mark_count * _MARK.size != len(block):
        raise _corrupt(
            subject, at, f"{run_count} runs and {mark_count} marks in {len(block)} bytes of index"
        )
    marks = [Mark(*fields) for fields in _MARK.iter_unpack(block[marks_start:])]
    runs: list[IndexedRun] = []
    mark_index, expected = 0, HEADER_BYTES
    previous: tuple[bytes, int] | None = None
    for number, row in enumerate(_RUN.iter_unpack(block[_COUNTS.size : marks_start])):
        topic_id, partition, batches, base, end, position, length, records, newest, count = row
        run = IndexedRun(
            topic_id=topic_id,
            partition=partition,
            base_offset=base,
            end_offset=end,
            position=position,
            length=length,
            batch_count=batches,
            record_count=records,
            max_timestamp=newest,
            marks=tuple(marks[mark_index : mark_index + count]),
        )
        mark_index += count
        row_at = at + _COUNTS.size + number * _RUN.size
        fault = _run_fault(run, mark_count=count, expected=expected, previous=previous)
        if fault:
            raise _corrupt(subject, row_at, fault)
        expected += length
        previous = (topic_id, partition)
        runs.append(run)
    if expected != at or mark_index != mark_count:
        raise _corrupt(
            subject,
            at,
            f"runs end at {expected} with {mark_index} marks, "
            f"the index begins at {at} and has {mark_count}",
        )
    return tuple(runs)


def _run_fault(
    run: IndexedRun, *, mark_count: int, expected: int, previous: tuple[bytes, int] | None
) -> str:
    if previous is not None and previous >= (run.topic_id, run.partition):
        return f"the run of partition {run.partition} is not behind its predecessor"
    if run.position != expected or not run.length:
        return f"a run of {run.length} bytes at {run.position}, where one at {expected} is due"
    if not 0 <= run.base_offset < run.end_offset:
        return f"a run of offsets {run.base_offset} to {run.end_offset - 1}"
    if len(run.marks) != mark_count:
        return f"{len(run.marks)} of {mark_count} marks"
    position, offset, timestamp = -1, run.base_offset - 1, -(1 << 63)
    for mark in run.marks:
        if not (
            position < mark.position < run.length
            and offset < mark.base_offset < run.end_offset
            and timestamp <= mark.max_timestamp <= run.max_timestamp
        ):
            return f"a mark at {mark.position} with offset {mark.base_offset} is out of order"
        position, offset, timestamp = mark.position, mark.base_offset, mark.max_timestamp
    return ""


def _check_version(subject: str, position: int, version: int) -> None:
    if version != VERSION:
        raise CorruptDataError(
            "read segment",
            f"{subject} at byte {position}",
            f"version {version}, this release knows {VERSION}",
            "open it with the release that wrote it, or a later one",
        )


def _corrupt(subject: str, position: int, detail: str) -> CorruptDataError:
    return CorruptDataError("read segment", f"{subject} at byte {position}", detail)


def _mark_offset(mark: Mark) -> int:
    return mark.base_offset
