"""A folder of the local file system as a `penstock.ports.device.Device`."""

import errno
import functools
import mmap
import os
import stat
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import Buffer

_IOV_MAX: Final = max(1, os.sysconf("SC_IOV_MAX")) if "SC_IOV_MAX" in os.sysconf_names else 1024
"""Buffers per vectored write; POSIX promises 16, Linux and macOS take 1,024."""

_READ_CHUNK_BYTES: Final = 1 << 30
"""A single `pread` gives at most 2 GiB less a page on Linux."""


_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
"""Write and make durable in one call (Linux 4.7). 0: the system can't."""

_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
"""Write past the page cache (Linux). 0: the system can't, or asks for it in another way."""
DIRECT_ALIGNMENT: Final = 512
"""Positions and lengths are multiples of this; a disk that wants more refuses, once per file."""
_STAGING_BYTES: Final = 4 << 20
_JOINED_BYTES_MAX: Final = 64 << 10
"""Parts of up to this many bytes are joined first, which is quicker than part by part."""

_CAN_MAP: Final = sys.platform == "linux"
_MAP_BYTES_MIN: Final = 256 << 10
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
"""Read what the page cache has and never wait for the disk (Linux 4.14). 0: the system can't."""


@functools.cache
def _null() -> int:
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def sync_descriptor(descriptor: int) -> None:
    """Make a file's bytes (and the size needed to read them) durable.

    On macOS fsync leaves bytes in the drive's cache; only F_FULLFSYNC empties that one too.
    Source: fsync(2) of macOS.
    """
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def _open_direct(descriptor: int) -> int:
    """The same file, past the page cache and durable at each write; -1: it can't be had."""
    try:
        return os.open(
            f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC | _DIRECT | os.O_DSYNC
        )
    except OSError:
        return -1


def sync_folder(path: Path) -> None:
    """Make creations, renames and removals in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Not fdatasync: what a folder holds is metadata to some file systems.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Staging(threading.local):
    """Memory aligned as the disk wants it; a thread's own, made when it first needs it."""

    buffer: mmap.mmap | None = None


_staging = _Staging()


class PosixFile:
    """Implements `penstock.ports.device.File` over one descriptor."""

    __slots__ = ("__weakref__", "_descriptor", "_direct")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._direct: int | None = None
        """A second descriptor, past the page cache; -1: this file can't have one."""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers, one behind the other, from `position` bytes on."""
        for start in range(0, len(buffers), _IOV_MAX):
            chunk = buffers[start : start + _IOV_MAX]
            length = sum(memoryview(buffer).nbytes for buffer in chunk)
            written = os.pwritev(self._descriptor, chunk, position)
            if written < length:
                self._write_rest(position + written, chunk, written)
            position += length

    def _write_rest(self, position: int, buffers: Sequence[Buffer], skip: int) -> None:
        """Go on behind a partial write: a signal, a full disk or the kernel's own limit."""
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if skip >= len(view):
                skip -= len(view)
                continue
            view, skip = view[skip:], 0
            while view:
                # A disk that is full gives a partial write first and ENOSPC only now.
                written = os.pwrite(self._descriptor, view, position)
                position += written
                view = view[written:]

    def write_synced(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Do as `write_at`, durable when it returns: where the system can, in one call.

        Whole blocks go past the page cache: with their copy into aligned memory, writes of 4 KiB
        took 81 us and 36 of CPU instead of 105 and 54, of 1 MiB half the time. Who reads them
        soon has them in memory of its own.
        """
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        if self._write_direct(position, buffers, length):
            return
        if (
            _DSYNC
            and len(buffers) <= _IOV_MAX
            and os.pwritev(self._descriptor, buffers, position, _DSYNC) == length
        ):
            return
        # Partly written, or not at all: once more, since it is the same bytes at the same place.
        self.write_at(position, buffers)
        self.sync()

    def _write_direct(self, position: int, buffers: Sequence[Buffer], length: int) -> bool:
        """Write past the page cache, durably; false if nothing or not all could be written so."""
        if not _DIRECT or self._direct == -1 or (position | length) % DIRECT_ALIGNMENT:
            return False
        if self._direct is None:
            self._direct = _open_direct(self._descriptor)
            if self._direct == -1:
                return False
        if _staging.buffer is None:
            _staging.buffer = mmap.mmap(-1, _STAGING_BYTES)
        staging = memoryview(_staging.buffer)
        filled = 0
        try:
            if length <= _JOINED_BYTES_MAX:
                staging[:length] = b"".join(buffers)
                return os.pwrite(self._direct, staging[:length], position) == length
            for buffer in buffers:
                view = memoryview(buffer).cast("B")
                while view:
                    part = view[: _STAGING_BYTES - filled]
                    staging[filled : filled + len(part)] = part
                    filled += len(part)
                    view = view[len(part) :]
                    if filled == _STAGING_BYTES:
                        if os.pwrite(self._direct, staging, position) != filled:
                            return False
                        position += filled
                        filled = 0
            return not filled or os.pwrite(self._direct, staging[:filled], position) == filled
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The disk's blocks are larger, or the file system only seemed to know it.
            os.close(self._direct)
            self._direct = -1
            return False

    def read_at(self, position: int, length: int) -> bytes:
        """Read `length` bytes from `position`; fewer at the end of the file."""
        data = os.pread(self._descriptor, min(length, _READ_CHUNK_BYTES), position)
        if len(data) == length or not data:
            return data
        parts = [data]
        have = len(data)
        while have < length:
            more = os.pread(
                self._descriptor, min(length - have, _READ_CHUNK_BYTES), position + have
            )
            if not more:
                break
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def view_at(self, position: int, length: int) -> memoryview:
        """The bytes as the page cache holds them, mapped; read before they are mapped.

        Sending 100 MB to a socket from such views cost 0.033 s of CPU, from bytes that were read
        0.050 s: a copy and the making of the memory are saved. Short stretches are read, since
        mapping has a price of its own.
        """
        if not _CAN_MAP or length < _MAP_BYTES_MIN:
            return memoryview(self.read_at(position, length))
        start = position - position % mmap.ALLOCATIONGRANULARITY
        end = position + length
        # First, since a page that is missing when a view is touched would stop every thread.
        if not self.warm(start, end):  # the file is shorter
            return memoryview(self.read_at(position, length))
        mapped = mmap.mmap(
            self._descriptor,
            end - start,
            flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
            prot=mmap.PROT_READ,
            offset=start,
        )
        return memoryview(mapped)[position - start :]

    # -- sending without reading: `penstock.ports.objects.RegionFile` ------------------------------

    def can_send(self) -> bool:
        """Whether the rest of this part works on this file: the kernel and the file system tell
        what is cached. Neither macOS nor every network file system does."""
        if not _NOWAIT:
            return False
        try:
            os.preadv(self._descriptor, (bytearray(1),), 0, _NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def peek(self, position: int, buffer: memoryview) -> int:
        """Read into `buffer` what the page cache has from `position` on; the bytes read."""
        try:
            return os.preadv(self._descriptor, (buffer,), position, _NOWAIT)
        except BlockingIOError:
            return 0

    def warm(self, start: int, end: int) -> bool:
        """Bring bytes into the page cache; false when the file ends before `end`. Blocking, but
        without the interpreter's lock."""
        while start < end:
            moved = os.sendfile(_null(), self._descriptor, start, end - start)
            if not moved:
                return False
            start += moved
        return True

    def identity(self) -> str:
        """Inode, size, and the times of the last change of bytes and of metadata, in ns; all in
        hexadecimal."""
        found = os.fstat(self._descriptor)
        return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}-{found.st_ctime_ns:x}"

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to this file. Raises: FileNotFoundError."""
        return os.path.samestat(os.fstat(self._descriptor), path.stat())

    def send(self, descriptor: int, position: int, length: int) -> int:
        """Send bytes to a socket that doesn't block; how many it took.

        Raises:
            BlockingIOError: it takes none now.
        """
        return os.sendfile(descriptor, self._descriptor, position, length)

    def sync(self) -> None:
        """Make the bytes written so far durable."""
        sync_descriptor(self._descriptor)

    def size(self) -> int:
        """The file's length in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        direct, self._direct = self._direct, -1
        if direct is not None and direct >= 0:
            os.close(direct)

    def __del__(self) -> None:
        # A reader may drop its last reference while another thread still reads: only the garbage
        # collector knows when the last thread has let go.
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatus:
    """A file's size in bytes and modification time in ms since the epoch."""

    size_bytes: int
    modified_ms: int


class PosixDevice:
    """Implements `penstock.ports.device.Device`.

    Args:
        root: a folder; made when something is created in it.
    """

    __slots__ = ("_root",)

    def __init__(self, root: Path) -> None:
        self._root = root

    def __str__(self) -> str:
        return str(self._root)

    def open(self, name: str, *, create: bool = False) -> PosixFile:
        """Open for reading and writing. Raises: FileNotFoundError."""
        path = self._root / name
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            make_folder(path.parent)
            flags |= os.O_CREAT
        return PosixFile(os.open(path, flags, 0o644))

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new`."""
        (self._root / old).replace(self._root / new)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._root / name).unlink()

    def list(self, folder: str) -> list[str]:
        """Names of the files directly in `folder`, sorted."""
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sync_directory(self, folder: str) -> None:
        """Make creations, renames and removals in `folder` durable."""
        sync_folder(self._root / folder)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name. Raises: FileExistsError: `new` is there."""
        os.link(self._root / old, self._root / new)

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents, durably; those that are there already are fine."""
        make_folder(self._root / folder)

    def stat(self, name: str) -> FileStatus:
        """Size and modification time of a file. Raises: FileNotFoundError."""
        found = (self._root / name).stat()
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a file", name)
        return FileStatus(size_bytes=found.st_size, modified_ms=found.st_mtime_ns // 1_000_000)

    def has(self, name: str, file: object) -> bool:
        """Whether a name is that of an open file of this device."""
        assert isinstance(file, PosixFile), file
        try:
            return file.is_at(self._root / name)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def folders(self, folder: str) -> Sequence[str]:
        """Names of the folders directly in `folder`, sorted; empty when there is none such."""
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def make_folder(path: Path) -> None:
    """Make a folder and its parents; those that are new are durable when this returns."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def settle(path: Path) -> None:
    """Make a file that another process has written durable, and its entry in its folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)
