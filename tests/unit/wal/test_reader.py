"""A run is read from the generation that the journal names, whatever is recycled meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.model.errors import RetryableError
from penstock.wal import WalPlace, WalReader, WalWriter
from penstock.wal.format import FRAMES_START
from support.simulated.device import SimulatedDevice
from support.wal_frames import append

FILE_BYTES = 16 * 1024


class WatchedFile:
    """Tells of each read before it is carried out."""

    def __init__(self, file: Any, device: "WatchedDevice") -> None:
        self._file = file
        self._device = device

    def read_at(self, position: int, length: int) -> bytes:
        self._device.on_read(position)
        found: bytes = self._file.read_at(position, length)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class WatchedDevice:
    """A device whose files are opened for a reader."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self.on_read: Callable[[int], None] = lambda _: None

    def open(self, name: str, *, create: bool = False) -> WatchedFile:
        file = self._device.open(name, create=create)
        return WatchedFile(file, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class Rig:
    """A WAL of two files, the first of which is recycled when the test says so."""

    def __init__(self) -> None:
        device = SimulatedDevice()
        self.writer = WalWriter.open(
            device, file_bytes=FILE_BYTES, bytes_max=2 * FILE_BYTES, named={}, last_generation=0
        )
        self.device = WatchedDevice(device)
        self.reader = WalReader(self.device)  # type: ignore[arg-type]
        self.first = self._append(b"a")
        self._append(b"b")

    def recycle(self) -> WalPlace:
        """The first file gets a frame of its next generation."""
        self.writer.release(self.first.generation)
        return self._append(b"c")

    def _append(self, letter: bytes) -> WalPlace:
        length = self.writer.frame_bytes_max
        return append(self.writer, [letter * length], length=length)


@pytest.mark.parametrize("was_read", [True, False], ids=["an open file", "a file to be opened"])
def test_a_file_that_is_recycled_while_it_is_read_gives_nothing(was_read: bool) -> None:
    rig = Rig()
    if was_read:
        rig.reader.read(rig.first.generation, rig.first.position, 3)
    recycled: list[WalPlace] = []

    def on_read(position: int) -> None:
        # After the header was looked at, before the frame is.
        if position >= rig.first.position and not recycled:
            recycled.append(rig.recycle())

    rig.device.on_read = on_read
    with pytest.raises(RetryableError, match="recycled"):
        rig.reader.read(rig.first.generation, rig.first.position, 3)
    assert recycled[0].position == rig.first.position
    assert rig.reader.read(recycled[0].generation, recycled[0].position, 3) == b"ccc"


def test_of_a_file_that_was_recycled_before_no_frame_is_read() -> None:
    rig = Rig()
    assert rig.reader.read(rig.first.generation, rig.first.position, 3) == b"aaa"
    rig.recycle()
    positions: list[int] = []
    rig.device.on_read = positions.append
    with pytest.raises(RetryableError, match="recycled"):
        rig.reader.read(rig.first.generation, rig.first.position, 3)
    assert max(positions) < FRAMES_START
