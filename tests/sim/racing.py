"""WAL files that are used again while somebody reads them.

A read looks at its file's header, reads, and looks again. Here that is one step, in which no writer
can do anything; so the first look at a file that was used again since the last one sees, at times,
what was there before, as if the writer had come right after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from penstock.wal.format import FILE_HEADER_BYTES

if TYPE_CHECKING:
    from penstock.ports.device import Device, File
    from sim.chance import Chance

LATE_SHARE = 0.5


class RacingDevice:
    """Implements `Device` by another one."""

    def __init__(self, device: Device, chance: Chance) -> None:
        self._device = device
        self._chance = chance

    def open(self, name: str, *, create: bool = False) -> File:
        """See the port."""
        return cast("File", RacingFile(self._device.open(name, create=create), self._chance))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class RacingFile:
    """Implements `File` by another one."""

    def __init__(self, file: File, chance: Chance) -> None:
        self._file = file
        self._chance = chance
        self._header = b""

    def read_at(self, position: int, length: int) -> bytes:
        """See the port."""
        data = self._file.read_at(position, length)
        if (position, length) == (0, FILE_HEADER_BYTES):
            before, self._header = self._header, data
            if before not in (b"", data) and self._chance.happens(LATE_SHARE):
                return before
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
