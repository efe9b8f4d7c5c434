"""Opening the WAL: check what the journal names, find what is free. docs/formats/wal.md, Recovery.

Recovery writes nothing but removals: frames past the last named one stay where they are, and are
cut by never being named and never being written behind.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.ports.device import Device, File
from penstock.wal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    FileHeader,
    FrameHeader,
    align_frame,
    decode_file_header,
    decode_frame_header,
)

FOLDER: Final = "wal"
FILE_SUFFIX: Final = ".wal"
MAKING_SUFFIX: Final = ".wal.new"

_WINDOW_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A WAL file. `header` is None when its header page is damaged, which only matters if the
    state names a generation that no other file has."""

    name: str
    number: int
    size_bytes: int
    header: FileHeader | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found, for the log line at start."""

    named_frames: int = 0
    named_bytes: int = 0
    cut_frames: int = 0
    """Whole frames past the last named one: written, never acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The WAL as it is found: files per named generation, and those that may be recycled."""

    in_use: dict[int, str]
    other_sizes: set[str]
    """Those in use that have another size than files have now: never recycled."""
    free: list[str]
    generation_max: int
    number_max: int
    report: RecoveryReport


def file_name(number: int) -> str:
    """The name of a WAL file on the device."""
    return f"{FOLDER}/{number:08d}{FILE_SUFFIX}"


def find_files(device: Device) -> list[FoundFile]:
    """All WAL files with their headers, by number."""
    found = []
    for entry in device.list(FOLDER):
        stem = entry.removesuffix(FILE_SUFFIX)
        if stem == entry or not stem.isascii() or not stem.isdigit():
            continue
        name = f"{FOLDER}/{entry}"
        file = device.open(name)
        try:
            size_bytes = file.size()
            head = file.read_at(0, FILE_HEADER_BYTES)
        finally:
            file.close()
        try:
            header = decode_file_header(head, subject=name)
        except CorruptDataError:
            header = None
        found.append(FoundFile(name, int(stem), size_bytes, header))
    return found


def holds_frames(device: Device) -> bool:
    """Whether anything was ever written to a file in the use that it is in. Nobody can say whether
    it is still needed but the journal that names it; what can't be read counts."""
    for found in find_files(device):
        if found.header is None:
            return True
        if not found.header.generation:
            continue
        file = device.open(found.name)
        try:
            first = file.read_at(FRAMES_START, FRAME_HEADER_BYTES)
        finally:
            file.close()
        if not any(first):
            continue
        try:
            generation = decode_frame_header(first, subject=found.name).generation
        except CorruptDataError:
            return True
        # That of an earlier use was moved before the file was used again.
        if generation == found.header.generation:
            return True
    return False


def recover(device: Device, *, named: Mapping[int, int], file_bytes: int) -> Recovered:
    """Check every named frame and tell free files from used ones.

    Args:
        named: generation -> end (exclusive) of its last named byte in its file.
        file_bytes: the size that files have now; free ones of another size are removed.

    Raises:
        CorruptDataError: something named is missing or damaged; names file and position.
    """
    is_changed = False
    for entry in device.list(FOLDER):
        if entry.endswith(MAKING_SUFFIX):
            device.remove(f"{FOLDER}/{entry}")
            is_changed = True
    in_use: dict[int, str] = {}
    free: list[str] = []
    other_sizes: set[str] = set()
    named_frames = cut_frames = generation_max = number_max = 0
    files = find_files(device)
    if files:
        # A process that died may have renamed one and not synced that.
        is_changed = True
    for found in files:
        number_max = max(number_max, found.number)
        generation = found.header.generation if found.header is not None else 0
        generation_max = max(generation_max, generation)
        if generation in named:
            if generation in in_use:
                raise corrupt(
                    found.name, 0, f"generation {generation} is in {in_use[generation]} too"
                )
            in_use[generation] = found.name
            if found.size_bytes != file_bytes:
                other_sizes.add(found.name)
        elif found.size_bytes == file_bytes:
            free.append(found.name)
        else:
            device.remove(found.name)
            is_changed = True
    for generation, end in sorted(named.items()):
        if generation not in in_use:
            damaged = [found.name for found in files if found.header is None]
            raise CorruptDataError(
                "recover WAL",
                FOLDER,
                f"no file has generation {generation}, which the journal names up to byte {end}"
                + (f"; the headers of {', '.join(damaged)} are damaged" if damaged else ""),
                "restore the folder wal/ that belongs to this journal",
            )
        frames, cut = check_named_frames(
            device, in_use[generation], generation=generation, named_end=end
        )
        named_frames += frames
        cut_frames += cut
    if is_changed:
        device.sync_directory(FOLDER)
    return Recovered(
        in_use=in_use,
        other_sizes=other_sizes,
        free=free,
        generation_max=generation_max,
        number_max=number_max,
        report=RecoveryReport(
            named_frames=named_frames,
            named_bytes=sum(end - FRAMES_START for end in named.values()),
            cut_frames=cut_frames,
        ),
    )


def check_named_frames(
    device: Device, name: str, *, generation: int, named_end: int
) -> tuple[int, int]:
    """Walk the frames of a file up to the named end, checking each.

    Returns:
        How many frames are named, and how many whole-looking ones of this generation follow.

    Raises:
        CorruptDataError: one of them is not whole; names file and position.
    """
    file = device.open(name)
    try:
        window = Window(file)
        position, number, reached = FRAMES_START, 0, FRAMES_START
        for position, header in _frames(window, name, generation, named_end):
            payload = position + header.header_bytes
            reached = payload + header.length
            body = window.read(payload, align_frame(reached) - payload)
            if len(body) < align_frame(reached) - payload:
                raise corrupt(name, position, f"the file ends inside a frame of {header.length} B")
            if crc32c(body[: header.length]) != header.payload_crc:
                raise corrupt(
                    name, position, f"CRC-32C of a payload of {header.length} bytes differs"
                )
            if any(body[header.length :]):
                raise corrupt(name, reached, "the bytes behind a frame are not zero")
            number += 1
        if reached < named_end:
            raise corrupt(
                name, reached, f"the last frame ends here, the journal names byte {named_end - 1}"
            )
        return number, _count_cut(window, name, generation, align_frame(reached), number)
    finally:
        file.close()


def _frames(
    window: "Window", name: str, generation: int, named_end: int
) -> Iterator[tuple[int, FrameHeader]]:
    position, number = FRAMES_START, 0
    while position < named_end:
        header = decode_frame_header(
            bytes(window.read(position, FRAME_HEADER_BYTES)), subject=_subject(name, position)
        )
        if header.generation != generation or header.number != number or not header.length:
            raise corrupt(
                name,
                position,
                f"frame {header.number} of generation {header.generation} with {header.length} "
                f"bytes, where frame {number} of generation {generation} is due",
            )
        yield position, header
        position = align_frame(position + header.header_bytes + header.length)
        number += 1


def _count_cut(window: "Window", name: str, generation: int, position: int, number: int) -> int:
    first = number
    while True:
        try:
            header = decode_frame_header(
                bytes(window.read(position, FRAME_HEADER_BYTES)), subject=name
            )
        except CorruptDataError:
            return number - first
        if header.generation != generation or header.number != number:
            return number - first
        position = align_frame(position + header.header_bytes + header.length)
        number += 1


class Window:
    """Sequential reads through one larger buffer: frames may be as small as a sector."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start = 0
        self._data = memoryview(b"")

    def read(self, position: int, length: int) -> memoryview:
        """Up to `length` bytes; fewer at the file's end. Valid until the next call."""
        at = position - self._start
        if at < 0 or at + length > len(self._data):
            self._start, at = position, 0
            self._data = memoryview(self._file.read_at(position, max(length, _WINDOW_BYTES)))
        return self._data[at : at + length]


def _subject(name: str, position: int) -> str:
    return f"{name} at byte {position}"


def corrupt(name: str, position: int, detail: str) -> CorruptDataError:
    """The error of a file that is damaged at a byte position."""
    return CorruptDataError(
        "recover WAL",
        _subject(name, position),
        detail,
        "penstock verify names the records; restore the folder wal/ or a backup",
    )
