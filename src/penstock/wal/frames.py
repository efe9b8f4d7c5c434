"""Reads frames of WAL files to look for bytes that may still lie there. Not for recovery."""

from collections.abc import Iterator

from penstock.ports.device import Device
from penstock.wal.format import (
    FRAME_ALIGNMENT,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    FrameHeader,
    align_frame,
)
from penstock.wal.recovery import find_files
from penstock.wal.walk import Window, next_frame, whole_header


def whole_frames(device: Device) -> Iterator[tuple[FrameHeader, memoryview]]:
    """Frames by file, with their payloads: those of the file's present use, also where its header
    is damaged, and past frames whose headers are. A payload's CRC is for the caller to compare, and
    it is valid until the next one.
    """
    for found in find_files(device):
        if not found.generation:
            continue
        file = device.open(found.name)
        try:
            window = Window(file)
            at, number = FRAMES_START, 0
            while True:
                header = whole_header(bytes(window.read(at, FRAME_HEADER_BYTES)))
                if header is None or (header.generation, header.number) != (
                    found.generation,
                    number,
                ):
                    following = next_frame(
                        file, at + FRAME_ALIGNMENT, generation=found.generation, number=number + 1
                    )
                    if following is None:
                        break
                    at, header = following
                payload = at + FRAME_HEADER_BYTES
                body = window.read(payload, header.length)
                if len(body) < header.length:
                    break
                yield header, body
                at, number = align_frame(payload + header.length), header.number + 1
        finally:
            file.close()
