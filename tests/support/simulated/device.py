"""A local volume in memory that forgets what was not synced.

It is harsher than most disks, so that code which passes needs no luck: after a power loss each
unsynced sector is there or not, on its own; each unsynced creation, rename and removal too; and
a failed sync drops the bytes it was to write, so that a later one which succeeds says nothing
of them.
Source for the last: A. Rebello and others, "Can Applications Recover from fsync Failures?",
USENIX ATC 2020.
"""

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import Buffer

from penstock.ports.random import Random

SECTOR_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Operation:
    """One call that changes something: its kind, the file or folder, and what else there is to
    say: (position, length) of a write, the new name of a rename or link."""

    kind: str
    name: str
    detail: tuple[int, int] | str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStatus:
    """The answer of `SimulatedDevice.stat`."""

    size_bytes: int
    modified_ms: int


@dataclass(slots=True, eq=False)
class _Content:
    """A file's bytes, apart from its names."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    """Sectors in which `data` may differ from `durable`."""


@dataclass(slots=True)
class _Fault:
    kind: str
    suffix: str
    calls_left: int
    error: OSError


class SimulatedDevice:
    """Implements `penstock.ports.device.Device` and what a local object store needs besides.

    Args:
        capacity_bytes: writes that would make the files larger than this in all get ENOSPC,
            after half of their bytes are written.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.operations: list[Operation] = []
        """All that changed something, in order."""
        self._lock = threading.RLock()
        self._names: dict[str, _Content] = {}
        self._durable_names: dict[str, _Content] = {}
        self._folders: set[str] = {""}
        self._faults: list[_Fault] = []

    # -- the port --------------------------------------------------------------------------------

    def open(self, name: str, *, create: bool = False) -> "SimulatedFile":
        """Open for reading and writing. Raises: FileNotFoundError."""
        with self._lock:
            content = self._names.get(name)
            if content is None:
                if not create:
                    raise _error(errno.ENOENT, name, FileNotFoundError)
                self._begin("create", name)
                self.make_folder(_folder_of(name))
                content = self._names[name] = _Content()
            return SimulatedFile(self, name, content)

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new`."""
        with self._lock:
            self._begin("rename", old, new)
            self._require(old)
            self._names[new] = self._names.pop(old)

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._lock:
            self._begin("remove", name)
            self._require(name)
            del self._names[name]

    def list(self, folder: str) -> list[str]:
        """Names of the files directly in `folder`, sorted."""
        with self._lock:
            base = f"{folder}/" if folder else ""
            return sorted(
                name[len(base) :]
                for name in self._names
                if name.startswith(base) and "/" not in name[len(base) :]
            )

    def sync_directory(self, folder: str) -> None:
        """Make creations, renames and removals in `folder` durable."""
        with self._lock:
            self._begin("sync_directory", folder)
            self._require_folder(folder)
            for name in [name for name in self._durable_names if _folder_of(name) == folder]:
                del self._durable_names[name]
            for name, content in self._names.items():
                if _folder_of(name) == folder:
                    self._durable_names[name] = content

    def link(self, old: str, new: str) -> None:
        """Give a file a second name. Raises: FileExistsError."""
        with self._lock:
            self._begin("link", old, new)
            self._require(old)
            if new in self._names:
                raise _error(errno.EEXIST, new, FileExistsError)
            self._names[new] = self._names[old]

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents, durably."""
        with self._lock:
            while folder not in self._folders:
                self._begin("make_folder", folder)
                self._folders.add(folder)
                folder = _folder_of(folder)

    def stat(self, name: str) -> SimulatedStatus:
        """Size and modification time (always 0). Raises: FileNotFoundError."""
        with self._lock:
            self._require(name)
            return SimulatedStatus(size_bytes=len(self._names[name].data), modified_ms=0)

    def has(self, name: str, file: object) -> bool:
        """Whether a name is that of an open file of this device."""
        assert isinstance(file, SimulatedFile), file
        with self._lock:
            return file.is_of(self._names.get(name))

    def folders(self, folder: str) -> Sequence[str]:
        """Names of the folders directly in `folder`, sorted."""
        with self._lock:
            return sorted(
                name.rpartition("/")[2]
                for name in self._folders
                if name and _folder_of(name) == folder
            )

    # -- faults and crashes ------------------------------------------------------------------------

    def fail(
        self, kind: str, *, suffix: str = "", after: int = 0, error_number: int = errno.EIO
    ) -> None:
        """Let one call fail: the one that comes after `after` more of its kind.

        Args:
            suffix: how the name of what it is done to ends.
            kind: write, sync, sync_directory, create, rename, remove, link or make_folder.
            error_number: of the OSError. A write that fails writes half its bytes first; a sync
                that fails loses all that it was to make durable.
        """
        error = OSError(error_number, os.strerror(error_number))
        self._faults.append(_Fault(kind, suffix, after, error))

    def power_loss(self, random: Random) -> "SimulatedDevice":
        """The device as it may be found after the power went now; this one is left alone."""
        with self._lock:
            after = SimulatedDevice(capacity_bytes=self.capacity_bytes)
            after._folders = set(self._folders)
            contents: dict[int, _Content] = {}
            for name in sorted(self._names.keys() | self._durable_names.keys()):
                now, synced = self._names.get(name), self._durable_names.get(name)
                kept = now if now is synced or random.below(2) else synced
                if kept is not None:
                    if id(kept) not in contents:
                        contents[id(kept)] = _surviving(kept, random)
                    after._names[name] = after._durable_names[name] = contents[id(kept)]
            return after

    def flip_bit(self, name: str, position: int, bit: int) -> None:
        """Damage one bit of a file, as a failing disk would."""
        with self._lock:
            self._require(name)
            self._names[name].data[position] ^= 1 << bit

    def used_bytes(self, prefix: str = "") -> int:
        """Sum the sizes of all files whose names begin so."""
        with self._lock:
            return sum(
                len(content.data)
                for name, content in self._names.items()
                if name.startswith(prefix)
            )

    # -- used by SimulatedFile ---------------------------------------------------------------------

    def write(self, name: str, content: _Content, position: int, data: bytes) -> None:
        """Write to a file. Raises: OSError, after half the bytes were written."""
        with self._lock:
            try:
                self._begin("write", name, (position, len(data)))
                growth = max(0, position + len(data) - len(content.data))
                if growth and not self._has_room(growth):
                    raise _error(errno.ENOSPC, name, OSError)
            except OSError:
                _write(content, position, data[: len(data) // 2])
                raise
            _write(content, position, data)

    def read(self, content: _Content, position: int, length: int) -> bytes:
        """Read from a file."""
        with self._lock:
            return bytes(content.data[position : position + length])

    def sync(self, name: str, content: _Content) -> None:
        """Make a file's bytes durable."""
        with self._lock:
            try:
                self._begin("sync", name)
            except OSError:
                content.dirty.clear()
                raise
            for sector in content.dirty:
                _copy_sector(content.data, content.durable, sector)
            content.dirty.clear()

    # -- helpers -----------------------------------------------------------------------------------

    def _begin(self, kind: str, name: str, detail: tuple[int, int] | str = "") -> None:
        for fault in self._faults:
            if fault.kind != kind or not name.endswith(fault.suffix):
                continue
            if not fault.calls_left:
                self._faults.remove(fault)
                raise fault.error
            fault.calls_left -= 1
        self.operations.append(Operation(kind, name, detail))

    def _has_room(self, growth: int) -> bool:
        return self.capacity_bytes is None or self.used_bytes() + growth <= self.capacity_bytes

    def _require(self, name: str) -> None:
        if name not in self._names:
            raise _error(errno.ENOENT, name, FileNotFoundError)

    def _require_folder(self, folder: str) -> None:
        if folder not in self._folders:
            raise _error(errno.ENOENT, folder, FileNotFoundError)


class SimulatedFile:
    """Implements `penstock.ports.device.File`."""

    def __init__(self, device: SimulatedDevice, name: str, content: _Content) -> None:
        self._device = device
        self._name = name
        self._content: _Content | None = content

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers from `position` on."""
        self._device.write(self._name, self._open(), position, b"".join(buffers))

    def write_synced(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers from `position` on, and sync."""
        self.write_at(position, buffers)
        self.sync()

    def read_at(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes."""
        return self._device.read(self._open(), position, length)

    def view_at(self, position: int, length: int) -> memoryview:
        """Read up to `length` bytes."""
        return memoryview(self.read_at(position, length))

    def sync(self) -> None:
        """Make the bytes written so far durable."""
        self._device.sync(self._name, self._open())

    def size(self) -> int:
        """The file's length in bytes."""
        return len(self._open().data)

    def is_of(self, content: _Content | None) -> bool:
        """Whether these are its bytes."""
        return self._content is content

    def close(self) -> None:
        """Close; idempotent."""
        self._content = None

    def _open(self) -> _Content:
        if self._content is None:
            raise _error(errno.EBADF, self._name, OSError)
        return self._content


def _write(content: _Content, position: int, data: bytes) -> None:
    if not data:
        return
    end = position + len(data)
    # Bytes between the old end and the write are zeros, and unsynced like it.
    begin = min(position, len(content.data))
    if len(content.data) < end:
        content.data.extend(bytes(end - len(content.data)))
    content.data[position:end] = data
    content.dirty.update(range(begin // SECTOR_BYTES, -(-end // SECTOR_BYTES)))


def _copy_sector(source: bytearray, target: bytearray, sector: int) -> None:
    start = sector * SECTOR_BYTES
    piece = source[start : start + SECTOR_BYTES]
    if len(target) < start:
        target.extend(bytes(start - len(target)))
    target[start : start + len(piece)] = piece


def _surviving(content: _Content, random: Random) -> _Content:
    data = bytearray(content.durable)
    for sector in sorted(content.dirty):
        if random.below(2):
            _copy_sector(content.data, data, sector)
    return _Content(data=data, durable=bytearray(data))


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _error(number: int, name: str, kind: type[OSError]) -> OSError:
    return kind(number, os.strerror(number), name)
