"""Frames of WAL files for whoever looks for bytes that may still lie there. Not for recovery."""

from collections.abc import Iterator

from penstock.model.errors import CorruptDataError
from penstock.ports.device import Device
from penstock.wal.format import (
    FRAME_HEADER_BYTES,
    FRAMES_START,
    FrameHeader,
    align_frame,
    decode_frame_header,
)
from penstock.wal.recovery import find_files
from penstock.wal.walk import Window


def whole_frames(device: Device) -> Iterator[tuple[FrameHeader, memoryview]]:
    """Frames by file, with their payloads, up to the first in each file that isn't of the file's
    present use. A payload's CRC is for the caller to compare, and it is valid until the next one.
    """
    for found in find_files(device):
        if found.header is None:
            continue
        file = device.open(found.name)
        try:
            window = Window(file)
            at, number = FRAMES_START, 0
            while True:
                head = bytes(window.read(at, FRAME_HEADER_BYTES))
                try:
                    header = decode_frame_header(head, subject=found.name)
                except CorruptDataError:
                    break
                if header.generation != found.header.generation or header.number != number:
                    break
                payload = at + header.header_bytes
                body = window.read(payload, header.length)
                if len(body) < header.length:
                    break
                yield header, body
                at, number = align_frame(payload + header.length), number + 1
        finally:
            file.close()
