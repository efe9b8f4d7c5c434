"""Walking the frames of one WAL file: those that the journal names, past any that are damaged.

Where a header can't be trusted nothing says where the next frame begins, so it is looked for. No
read needs this walk, since the state names runs by their byte positions: it finds damage early.
docs/formats/wal.md, Recovery.
"""

from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.ports.device import Device, File
from penstock.wal.format import (
    FRAME_ALIGNMENT,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FRAMES_START,
    FrameHeader,
    OtherWalVersionError,
    align_frame,
    decode_frame_header,
)

_WINDOW_BYTES: Final = 1 << 20
_SCAN_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedStretch:
    """Bytes [start, end) of a WAL generation that aren't the whole frames that the state needs.

    `name`: the file; of a generation without one, the folder. `detail`: what was found at `start`.
    """

    name: str
    generation: int
    start: int
    end: int
    detail: str

    def __str__(self) -> str:
        return (
            f"{self.name} bytes {self.start} to {self.end - 1} (generation {self.generation}):"
            f" {self.detail}"
        )


@dataclass(slots=True)
class FrameWalk:
    """Counts what a walk found. `named_frames`, `cut_frames`: whole ones up to the named end and
    past it; past a damaged end none are counted. `damaged`: by position, adjacent ones joined."""

    named_frames: int = 0
    cut_frames: int = 0
    damaged: list[DamagedStretch] = field(default_factory=list)


def walk_named_frames(device: Device, name: str, *, generation: int, named_end: int) -> FrameWalk:
    """Walk the frames of a file up to the named end, checking each.

    Args:
        generation: of the file.
        named_end: exclusive, the byte position after the last byte that the state names.

    Raises:
        OtherWalVersionError: the file is of another version.
    """
    file = device.open(name)
    try:
        return _Walk(file, name, generation, named_end).run()
    finally:
        file.close()


def next_frame(
    file: File, start: int, *, generation: int | None, number: int, end: int | None = None
) -> tuple[int, FrameHeader] | None:
    """The first whole frame header from byte `start` on, with its position.

    Args:
        generation: of the frame; None: any.
        number: a smaller one is passed over.
        end: exclusive; where to stop. None: at the end of the file.
    """
    last = file.size() if end is None else min(end, file.size())
    for step in range(start, last, _SCAN_BYTES):
        # One header more than a step: it may lie across the end.
        data = file.read_at(step, _SCAN_BYTES + FRAME_HEADER_BYTES)
        at = data.find(FRAME_MAGIC)
        while 0 <= at < _SCAN_BYTES and step + at < last:
            if (step + at) % FRAME_ALIGNMENT == 0:
                header = whole_header(data[at : at + FRAME_HEADER_BYTES])
                if (
                    header is not None
                    and generation in (None, header.generation)
                    and header.number >= number
                ):
                    return step + at, header
            at = data.find(FRAME_MAGIC, at + 1)
    return None


def whole_header(data: bytes) -> FrameHeader | None:
    """The frame header that the bytes begin with; None: none, or it is damaged."""
    try:
        return decode_frame_header(data, subject="frame")
    except CorruptDataError:
        return None


class _Walk:
    """See `walk_named_frames`."""

    def __init__(self, file: File, name: str, generation: int, named_end: int) -> None:
        self._file = file
        self._window = Window(file)
        self._name = name
        self._generation = generation
        self._named_end = named_end
        self._walk = FrameWalk()

    def run(self) -> FrameWalk:
        at, number, reached = FRAMES_START, 0, FRAMES_START
        while at < self._named_end:
            header, fault = self._due(at, number)
            if header is None:
                found = next_frame(
                    self._file,
                    at + FRAME_ALIGNMENT,
                    generation=self._generation,
                    number=number + 1,
                    end=self._named_end,
                )
                if found is None:
                    self._damaged(at, self._named_end, fault)
                    return self._walk
                self._damaged(at, found[0], fault)
                at, number = found[0], found[1].number
                continue
            reached = at + FRAME_HEADER_BYTES + header.length
            self._check_payload(at, header)
            at, number = align_frame(reached), number + 1
        if reached < self._named_end:
            self._damaged(
                reached, self._named_end, "the last frame ends here, and the journal names more"
            )
        self._count_cut(at, number)
        return self._walk

    def _due(self, at: int, number: int) -> tuple[FrameHeader | None, str]:
        """The header of frame `number`, or what is there instead."""
        try:
            header = decode_frame_header(
                bytes(self._window.read(at, FRAME_HEADER_BYTES)), subject=self._name
            )
        except OtherWalVersionError:
            raise
        except CorruptDataError as error:
            return None, error.detail
        if header.generation != self._generation or header.number != number or not header.length:
            return None, (
                f"frame {header.number} of generation {header.generation} with {header.length} "
                f"bytes, where frame {number} of generation {self._generation} is due"
            )
        return header, ""

    def _check_payload(self, at: int, header: FrameHeader) -> None:
        payload = at + FRAME_HEADER_BYTES
        reached = payload + header.length
        following = align_frame(reached)
        body = self._window.read(payload, following - payload)
        if len(body) < header.length:
            fault = f"the file ends inside a frame of {header.length} B"
            self._damaged(at, following, fault)
        elif crc32c(body[: header.length]) != header.payload_crc:
            fault = f"CRC-32C of a payload of {header.length} bytes differs"
            self._damaged(at, following, fault)
        else:
            if len(body) < following - payload or any(body[header.length :]):
                self._damaged(reached, following, "the bytes after a frame are not zero")
            self._walk.named_frames += 1

    def _damaged(self, start: int, end: int, detail: str) -> None:
        damaged = self._walk.damaged
        if damaged and damaged[-1].end == start:
            start, detail = damaged[-1].start, damaged[-1].detail
            damaged.pop()
        damaged.append(
            DamagedStretch(
                name=self._name, generation=self._generation, start=start, end=end, detail=detail
            )
        )

    def _count_cut(self, at: int, number: int) -> None:
        while True:
            header = whole_header(bytes(self._window.read(at, FRAME_HEADER_BYTES)))
            if header is None or (header.generation, header.number) != (self._generation, number):
                return
            self._walk.cut_frames += 1
            at = align_frame(at + FRAME_HEADER_BYTES + header.length)
            number += 1


class Window:
    """Sequential reads through one larger buffer: frames may be as small as a sector."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._data = memoryview(b"")

    def read(self, position: int, length: int) -> memoryview:
        """Return up to `length` bytes; fewer at the file's end. Valid until the next call."""
        at = position - self._start
        if at < 0 or at + length > len(self._data):
            self._start, at = position, 0
            self._data = memoryview(self._file.read_at(position, max(length, _WINDOW_BYTES)))
        return self._data[at : at + length]


def corrupt(name: str, position: int, detail: str) -> CorruptDataError:
    """The error of a file that is damaged at a byte position."""
    return CorruptDataError(
        "recover WAL",
        f"{name} at byte {position}",
        detail,
        "restore the folder wal/ that belongs to this journal, or a backup",
    )
