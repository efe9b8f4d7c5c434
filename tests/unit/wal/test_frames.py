"""Frames are found wherever they lie whole, for those who look for copies."""

import pytest

from penstock.wal import WalWriter
from penstock.wal.format import FILE_HEADER_BYTES, FRAMES_START
from penstock.wal.frames import whole_frames
from support.simulated.device import SimulatedDevice
from support.wal_frames import append

FILE_BYTES = 64 * 1024
LENGTH = 8_000


def frames_of(device: SimulatedDevice) -> list[tuple[int, bytes]]:
    """Of the first file."""
    found = [(header.number, bytes(body)[:1]) for header, body in whole_frames(device)]
    assert found.pop() == (0, b"o")
    return found


def written() -> tuple[SimulatedDevice, list[int]]:
    """A file's second use, with three frames over those of its first, beside another file. And
    where the payloads of the three begin."""
    device = SimulatedDevice()
    writer = WalWriter.open(
        device, file_bytes=FILE_BYTES, bytes_max=2 * FILE_BYTES, named={}, last_generation=0
    )
    first, *_ = [append(writer, [b"z" * 11_000], length=11_000) for _ in range(5)]
    second = append(writer, [b"o" * writer.frame_bytes_max], length=writer.frame_bytes_max)
    writer.release(first.generation)
    places = [append(writer, [letter * LENGTH], length=LENGTH) for letter in (b"a", b"b", b"c")]
    assert {place.generation for place in places} == {second.generation + 1}
    return device, [place.position for place in places]


def damage(device: SimulatedDevice, position: int, length: int) -> None:
    file = device.open(f"wal/{min(device.list('wal'))}")
    file.write_at(position, [bytes(length)])
    file.close()


def test_frames_of_the_present_use_are_given() -> None:
    device, _ = written()
    assert frames_of(device) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_damaged_file_header_hides_no_frames() -> None:
    """The frames say of which use the file is, so a copy in it is found as ever."""
    device, _ = written()
    damage(device, 0, FILE_HEADER_BYTES)
    assert frames_of(device) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_frame_header_hides_no_other_frame(number: int) -> None:
    device, positions = written()
    start = FRAMES_START if number == 0 else positions[number - 1] + LENGTH
    damage(device, start, positions[number] - start)
    frames = [(0, b"a"), (1, b"b"), (2, b"c")]
    assert frames_of(device) == [*frames[:number], *frames[number + 1 :]]
