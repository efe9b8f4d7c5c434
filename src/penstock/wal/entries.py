"""The journal's entries that the WAL holds and the state does not: docs/formats/wal.md, Recovery.

A state may be older than the WAL, by a few milliseconds or by all that a power cut took back.
What is missing lies in the frames past the state's position, one entry after the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
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
    align_frame,
    decode_frame_header,
)
from penstock.wal.recovery import FoundFile, Window, corrupt, find_files

_SCAN_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WalEntry:
    """An entry as its frame holds it. `time_ms`: journal time."""

    position: int
    time_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class _Used:
    """A file with frames that carry entries."""

    name: str
    generation: int
    first_position: int
    is_damaged: bool = False


def entries_after(device: Device, position: int, *, sync: bool = True) -> Iterator[WalEntry]:
    """Entries past a position, in order, without a gap: all that was acknowledged.

    Args:
        position: that of the state.
        sync: make durable what is given before the end: after a crash of the process alone it
            may only have been written, and whoever applies it builds on it.

    Raises:
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
                if used.is_damaged:
                    raise corrupt(used.name, 0, f"the header of a file with entry {entry.position}")
                last = entry.position
                yield entry
            if sync and last > before:
                file.sync()
        finally:
            file.close()


def _used_files(found: list[FoundFile], device: Device) -> list[_Used]:
    """Those with entries, by generation. Where the header is damaged the first frame tells."""
    used: list[_Used] = []
    for file in found:
        if file.header is not None:
            if file.header.generation and file.header.first_position:
                header = file.header
                used.append(_Used(file.name, header.generation, header.first_position))
            continue
        first = _first_frame(device, file.name)
        if first is not None and first.position:
            used.append(_Used(file.name, first.generation, first.position, is_damaged=True))
    used.sort(key=lambda one: (one.generation, one.is_damaged))
    # A frame of an earlier use, behind a header that was damaged since, is not that generation's.
    return [
        one
        for index, one in enumerate(used)
        if not (one.is_damaged and index and used[index - 1].generation == one.generation)
    ]


def _first_frame(device: Device, name: str) -> FrameHeader | None:
    file = device.open(name)
    try:
        return decode_frame_header(file.read_at(FRAMES_START, FRAME_HEADER_BYTES), subject=name)
    except CorruptDataError:
        return None
    finally:
        file.close()


def _entries_of(file: File, used: _Used, after: int, following: _Used | None) -> Iterator[WalEntry]:
    """Entries of one file past `after` and, where another file follows, below its first one."""
    window = Window(file)
    at, number, last = FRAMES_START, 0, after
    next_at: int | None = None
    while True:
        try:
            header = decode_frame_header(
                bytes(window.read(at, FRAME_HEADER_BYTES)), subject=used.name
            )
        except CorruptDataError as error:
            fault = error.detail
            break
        if header.generation != used.generation or header.number != number:
            fault = f"frame {number} of generation {used.generation} is due"
            break
        payload = at + header.header_bytes
        end = payload + header.length
        if header.position > last:
            # Refused when it was written, and its place was given to another one.
            if following is not None and header.position >= following.first_position:
                break
            body = bytes(window.read(payload, header.length))
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
        at = align_frame(end)
        number += 1
    if following is not None:
        if last + 1 < following.first_position:
            raise corrupt(
                used.name, at, f"entries up to {following.first_position - 1} are due here: {fault}"
            )
    elif _has_later_frame(file, used.generation, number, at, next_at):
        # One frame is written at a time, so this one was whole before that one was begun.
        raise corrupt(used.name, at, f"a later frame is whole, but not this one: {fault}")


def _has_later_frame(
    file: File, generation: int, number: int, at: int, next_at: int | None
) -> bool:
    """Whether a frame of this generation past `number` lies behind the one at `at`.

    Args:
        next_at: where it would begin, if that is known; else it is looked for.
    """

    def is_later(data: bytes) -> bool:
        try:
            header = decode_frame_header(data, subject="frame")
        except CorruptDataError:
            return False
        return header.generation == generation and header.number > number

    if next_at is not None:
        return is_later(file.read_at(next_at, FRAME_HEADER_BYTES))
    for start in range(at, file.size(), _SCAN_BYTES):
        # One header more than a step: it may lie across the end.
        data = file.read_at(start, _SCAN_BYTES + FRAME_HEADER_BYTES)
        found = data.find(FRAME_MAGIC)
        while 0 <= found < _SCAN_BYTES:
            if found % FRAME_ALIGNMENT == 0 and is_later(data[found : found + FRAME_HEADER_BYTES]):
                return True
            found = data.find(FRAME_MAGIC, found + 1)
    return False
