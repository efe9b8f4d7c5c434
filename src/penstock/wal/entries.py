"""The journal's entries that the WAL holds and the state does not: docs/formats/wal.md, Recovery.

A state may be older than the WAL, by a few milliseconds or by all that a power cut took back.
What is missing lies in the frames past the state's position, one entry after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.ports.device import Device, File
from penstock.wal.format import (
    FRAME_ALIGNMENT,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    FrameHeader,
    align_frame,
    decode_frame_header,
)
from penstock.wal.recovery import FoundFile, find_files
from penstock.wal.walk import Window, corrupt, next_frame, whole_header


@dataclass(frozen=True, slots=True)
class WalEntry:
    """An entry as its frame holds it. `time_ms`: journal time."""

    position: int
    time_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class _Used:
    """A file with frames that carry entries.

    `is_certain`: the header says the first position, or the first frame, where that is damaged.
    """

    name: str
    generation: int
    first_position: int
    is_certain: bool = True


def entries_after(device: Device, position: int, *, sync: bool = True) -> Iterator[WalEntry]:
    """Entries past a position, in order, without a gap: all that was acknowledged.

    Args:
        position: that of the state.
        sync: make durable what is given before the end: after a crash of the process alone it
            may only have been written, and the caller that applies it builds on it.

    Raises:
        OtherWalVersionError: a file is of another version.
        CorruptDataError: an entry is damaged or missing; names file and position. A frame that
            was being written when the power went is none: it ends the entries.
    """
    last = position
    files = _used_files(find_files(device), device)
    for index, used in enumerate(files):
        following = files[index + 1] if index + 1 < len(files) else None
        if following is not None and following.first_position <= last + 1:
            continue  # whatever is in this one is below
        file = device.open(used.name)
        try:
            before = last
            for entry in _entries_of(file, used, last, following):
                if not used.is_certain:
                    raise corrupt(
                        used.name,
                        0,
                        f"header and first frame of a file with entry {entry.position}",
                    )
                last = entry.position
                yield entry
            if sync and last > before:
                file.sync()
        finally:
            file.close()


def _used_files(found: list[FoundFile], device: Device) -> list[_Used]:
    """List files with entries, by generation. Where the header is damaged the frames decide."""
    used: list[_Used] = []
    for file in found:
        if file.header is None:
            by_frames = _used_by_frames(device, file)
            if by_frames is not None:
                used.append(by_frames)
        elif file.generation and file.header.first_position:
            used.append(_Used(file.name, file.generation, file.header.first_position))
    return sorted(used, key=lambda one: one.generation)


def _used_by_frames(device: Device, found: FoundFile) -> _Used | None:
    """The first entry of a file with a damaged header; None: it has none."""
    file = device.open(found.name)
    try:
        at = FRAMES_START
        while found.generation:
            frame = next_frame(file, at, generation=found.generation, number=0)
            if frame is None:
                break
            if frame[1].position:
                is_certain = frame[1].number == 0
                return _Used(found.name, found.generation, frame[1].position, is_certain)
            at = frame[0] + FRAME_ALIGNMENT
    finally:
        file.close()
    return None


def _entries_of(file: File, used: _Used, after: int, following: _Used | None) -> Iterator[WalEntry]:
    """Entries of one file past `after` and, where another file follows, below its first one."""
    window = Window(file)
    at, number, last = FRAMES_START, 0, after
    next_at: int | None = None
    passed: tuple[int, str] | None = None
    """The damaged place behind which no entry was met yet, and what is there."""
    while True:
        header, fault = _header_at(window, at, used.generation, number)
        if header is None:
            found = next_frame(
                file, at + FRAME_ALIGNMENT, generation=used.generation, number=number + 1
            )
            if found is None:
                break
            # Nothing is lacking if what follows says that the entries in between are below.
            passed = passed or (at, fault)
            at, number = found[0], found[1].number
            continue
        end = at + FRAME_HEADER_BYTES + header.length
        if header.position > last:
            # Refused when it was written, and its place was given to another one.
            if following is not None and header.position >= following.first_position:
                break
            if passed is not None and header.position != last + 1:
                break
            body = bytes(window.read(at + FRAME_HEADER_BYTES, header.length))
            if len(body) < header.length or crc32c(body) != header.payload_crc:
                fault = f"CRC-32C of a payload of {header.length} bytes differs"
                next_at = align_frame(end)
                break
            if header.position != last + 1:
                raise corrupt(
                    used.name, at, f"entry {header.position} where entry {last + 1} is due"
                )
            last = header.position
            yield WalEntry(last, header.time_ms, body[header.length - header.entry_length :])
        if header.position:
            passed = None
        at = align_frame(end)
        number += 1
    if passed is not None:
        at, fault = passed
    if following is not None:
        if last + 1 < following.first_position:
            raise corrupt(
                used.name, at, f"entries up to {following.first_position - 1} are due here: {fault}"
            )
    elif passed is not None or (
        next_at is not None and _is_later(file.read_at(next_at, FRAME_HEADER_BYTES), used, number)
    ):
        # One frame is written at a time, so this one was whole before that one was begun.
        raise corrupt(used.name, at, f"a later frame is whole, but not this one: {fault}")


def _header_at(
    window: Window, at: int, generation: int, number: int
) -> tuple[FrameHeader | None, str]:
    """The header of a frame, or what is there instead."""
    try:
        header = decode_frame_header(bytes(window.read(at, FRAME_HEADER_BYTES)), subject="frame")
    except CorruptDataError as error:
        return None, error.detail
    if header.generation != generation or header.number != number:
        return None, f"frame {number} of generation {generation} is due"
    return header, ""


def _is_later(data: bytes, used: _Used, number: int) -> bool:
    header = whole_header(data)
    return header is not None and header.generation == used.generation and header.number > number
