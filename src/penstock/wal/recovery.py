"""Opening the WAL: check what the journal names, find what is free. docs/formats/wal.md, Recovery.

Recovery writes nothing but removals: frames past the last named one stay where they are, and are
cut by never being named and never being written behind. Damage does not end it: what is damaged or
missing is reported, and its file is kept for as long as the state names it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.ports.device import Device
from penstock.wal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    FileHeader,
    OtherWalVersionError,
    decode_file_header,
    decode_frame_header,
)
from penstock.wal.walk import DamagedStretch, next_frame, walk_named_frames, whole_header

FOLDER: Final = "wal"
FILE_SUFFIX: Final = ".wal"
MAKING_SUFFIX: Final = ".wal.new"

_NUMBERS_LEFT: Final = 1000
"""File numbers that are left out while a named file is missing: put back, it must not meet a newer
one of its name."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A WAL file. `header` is None when its header page is damaged. `generation`: the header's, of
    a damaged one that of its frames; 0: never used, or nothing tells."""

    name: str
    number: int
    size_bytes: int
    header: FileHeader | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """Findings of a recovery, for the log line at start."""

    named_frames: int = 0
    """Whole ones."""
    named_bytes: int = 0
    cut_frames: int = 0
    """Whole frames past the last named one: written, never acknowledged."""
    damaged: tuple[DamagedStretch, ...] = ()
    """Damaged stretches by generation and position."""
    lost: frozenset[int] = frozenset()
    """Named generations without a file; each is a damaged stretch as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The WAL as it is found: files per named generation, and those that may be recycled."""

    in_use: dict[int, str]
    other_sizes: set[str]
    """Files in use whose size differs from that of new files: never recycled."""
    free: list[str]
    kept: list[str]
    """Neither in use nor free: they may hold, or hold once more, what the state names."""
    generation_max: int
    number_max: int
    report: RecoveryReport


def file_name(number: int) -> str:
    """The name of a WAL file on the device."""
    return f"{FOLDER}/{number:08d}{FILE_SUFFIX}"


def find_files(device: Device) -> list[FoundFile]:
    """All WAL files with their headers, by number.

    Raises:
        OtherWalVersionError: a file is of another version.
    """
    found = []
    for entry in device.list(FOLDER):
        stem = entry.removesuffix(FILE_SUFFIX)
        if stem == entry or not stem.isascii() or not stem.isdigit():
            continue
        found.append(_look_at(device, f"{FOLDER}/{entry}", int(stem)))
    by_header = {file.generation for file in found if file.header is not None}
    return [
        file
        if file.header is not None or file.generation not in by_header
        # Frames of an earlier use, which go on in the file that names their generation.
        else FoundFile(file.name, file.number, file.size_bytes, None, 0)
        for file in found
    ]


def _look_at(device: Device, name: str, number: int) -> FoundFile:
    file = device.open(name)
    try:
        size_bytes = file.size()
        # Before the header: while a writer begins the file again, a frame that is newer than
        # the header then means damage.
        first = whole_header(file.read_at(FRAMES_START, FRAME_HEADER_BYTES))
        head = file.read_at(0, FILE_HEADER_BYTES)
        header: FileHeader | None = None
        try:
            header = decode_file_header(head, subject=name)
        except OtherWalVersionError:
            raise
        except CorruptDataError:
            found = next_frame(file, FRAMES_START, generation=None, number=0)
            first = None if found is None else found[1]
        generation = 0 if header is None else header.generation
        if first is not None and first.generation > generation:
            header, generation = None, first.generation
    finally:
        file.close()
    return FoundFile(name, number, size_bytes, header, generation)


def holds_frames(device: Device) -> bool:
    """Whether anything was ever written to a file in the use that it is in. Only the journal that
    names it can say whether it is still needed; what can't be read counts."""
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
        OtherWalVersionError: what is named is of another version.
    """
    is_changed = False
    for entry in device.list(FOLDER):
        if entry.endswith(MAKING_SUFFIX):
            device.remove(f"{FOLDER}/{entry}")
            is_changed = True
    files = find_files(device)
    if files:
        # A process that died may have renamed one and not synced that.
        is_changed = True
    in_use: dict[int, str] = {}
    for found in files:
        if found.generation in named:
            in_use.setdefault(found.generation, found.name)
    lost = frozenset(named) - in_use.keys()
    free: list[str] = []
    kept: list[str] = []
    for found in files:
        if in_use.get(found.generation) == found.name:
            continue
        if found.generation in named or (lost and _may_hold(device, found, lost)):
            kept.append(found.name)
        elif found.size_bytes == file_bytes:
            free.append(found.name)
        else:
            device.remove(found.name)
            is_changed = True
    if is_changed:
        device.sync_directory(FOLDER)
    numbers = [found.number for found in files]
    return Recovered(
        in_use=in_use,
        other_sizes={
            found.name
            for found in files
            if found.size_bytes != file_bytes and found.name in in_use.values()
        },
        free=free,
        kept=kept,
        generation_max=max([*named, *(found.generation for found in files)], default=0),
        number_max=max(numbers, default=0) + (_NUMBERS_LEFT if lost else 0),
        report=check_named(device, named, files),
    )


def check_named(
    device: Device, named: Mapping[int, int], files: Iterable[FoundFile]
) -> RecoveryReport:
    """Look at every frame that holds named bytes. Writes nothing.

    Args:
        named: as `recover`.
        files: of the device.
    """
    names: dict[int, str] = {}
    for found in files:
        names.setdefault(found.generation, found.name)
    named_frames = cut_frames = 0
    damaged: list[DamagedStretch] = []
    lost: set[int] = set()
    for generation, end in sorted(named.items()):
        if generation not in names:
            lost.add(generation)
            damaged.append(
                DamagedStretch(
                    name=FOLDER,
                    generation=generation,
                    start=FRAMES_START,
                    end=end,
                    detail="no file has this generation",
                )
            )
            continue
        walk = walk_named_frames(device, names[generation], generation=generation, named_end=end)
        named_frames += walk.named_frames
        cut_frames += walk.cut_frames
        damaged += walk.damaged
    return RecoveryReport(
        named_frames=named_frames,
        named_bytes=sum(end - FRAMES_START for end in named.values()),
        cut_frames=cut_frames,
        damaged=tuple(damaged),
        lost=frozenset(lost),
    )


def _may_hold(device: Device, found: FoundFile, lost: Iterable[int]) -> bool:
    """Whether a file that no named generation has may hold bytes of a lost one."""
    if found.header is None:
        return True
    # Greater ones are of a use after it: what lies in the file was free then.
    older = [generation for generation in lost if generation > found.generation]
    if not older:
        return False
    file = device.open(found.name)
    try:
        return any(
            next_frame(file, FRAMES_START, generation=generation, number=0) is not None
            for generation in older
        )
    finally:
        file.close()
