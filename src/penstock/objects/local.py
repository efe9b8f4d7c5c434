"""A local directory as an object store: one file per key.

Written by ourselves and not through obstore, for two reasons. obstore's local store renames
without any sync (seen by strace), so that an object which "was put" could be empty after a power
cut; and writing 100 MB through it took 0.08 to 0.19 s of CPU, against 0.04 s by `pwritev`. Writing
with O_DIRECT saved little more, and made every first read come from the disk.

Order of effects of a put: bytes into `.staging/<n>` -> file synced -> folders made and synced ->
renamed to its key (put if absent: linked, which fails where the key is) -> folder synced -> the
call returns. A crash in between leaves a staged file, which the first put of the next process
removes, or the whole object.
"""

import asyncio
import contextlib
import errno
import itertools
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol, TypeVar

from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.objects.keys import check_key
from penstock.objects.translate import translate_os_error
from penstock.ports.device import Device, File
from penstock.ports.objects import ObjectInfo, RegionFile, Versioned
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

T = TypeVar("T")

STAGING: Final = ".staging"
_OPEN_FILES_MAX: Final = 128
_HELD_FILES_MAX: Final = 160
"""Most open files, including those that were dropped here while replies still hold them."""
_JOIN_PART_BYTES: Final = 2048
"""Below this average, joining parts costs less than a vector entry per part."""
_WRITE_BYTES: Final = 4 << 20
_LIST_PAGE: Final = 500
_NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)
"""Errors of a file system without hard links."""


class Status(Protocol):
    """The answer of `ObjectDevice.stat` about a file."""

    @property
    def size_bytes(self) -> int:
        """The file's length in bytes."""
        ...

    @property
    def modified_ms(self) -> int:
        """Time of the last change, ms since the epoch."""
        ...


class ObjectDevice(Device, Protocol):
    """A device that has folders in folders. `penstock.system.PosixDevice`, or a simulated one."""

    def link(self, old: str, new: str) -> None:
        """Give a file a second name. Raises: FileExistsError: `new` is there."""
        ...

    def make_folder(self, folder: str) -> None:
        """Make a folder and its parents, durably."""
        ...

    def stat(self, name: str) -> Status:
        """Size and modification time. Raises: FileNotFoundError."""
        ...

    def folders(self, folder: str) -> Sequence[str]:
        """Names of the folders directly in `folder`, sorted."""
        ...

    def has(self, name: str, file: File) -> bool:
        """Whether a name is that of an open file of this device, and not of another that was put
        in its place; nor of none."""
        ...


class LocalStore:
    """Implements `penstock.ports.objects.ObjectStore` on a device.

    Args:
        device: the directory.
        executor: where all that blocks runs; None is the event loop's default one.
        writer: tells apart those that put into one directory at one time; each process has a
            name of its own, and what it leaves in its staging folder is removed by the next that
            has that name.
    """

    def __init__(
        self, device: ObjectDevice, *, executor: Executor | None = None, writer: str = ""
    ) -> None:
        self._device = device
        self._staging = f"{STAGING}-{writer}" if writer else STAGING
        self._executor = executor
        self._lock = threading.Lock()
        self._open_files: OrderedDict[str, File] = OrderedDict()
        self._held_files: weakref.WeakSet[File] = weakref.WeakSet()
        self._region_files: weakref.WeakValueDictionary[str, RegionFile] = (
            weakref.WeakValueDictionary()
        )
        """Files from which regions can be sent, while anything holds them."""
        self._staged = itertools.count()
        self._staging_is_clean = False

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """See the port."""
        check_key(key)
        await self._run(lambda: self._put(key, parts, if_absent=if_absent))

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """See the port."""
        return (await self.get_versioned(key, start, end)).data

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        """See `penstock.ports.objects.VersionedStore`."""
        check_key(key)
        return await self._run(lambda: self._read(key, start, end))

    async def size(self, key: str) -> int:
        """See the port."""
        check_key(key)
        return (await self._run(lambda: self._stat(key))).size_bytes

    async def delete(self, keys: Sequence[str]) -> None:
        """See the port."""
        for key in keys:
            check_key(key)
        await self._run(lambda: self._delete(keys))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """See the port."""
        found = self._walk("", prefix, after)
        while page := await self._run(lambda: list(itertools.islice(found, _LIST_PAGE))):
            for info in page:
                yield info

    # -- `penstock.ports.objects.FileStore` --------------------------------------------------------

    def open_file(self, key: str) -> RegionFile | None:
        """See the port."""
        with self._lock:
            if key in self._open_files:
                self._open_files.move_to_end(key)
            return self._region_files.get(key)

    def may_open(self) -> bool:
        """See the port."""
        return len(self._held_files) < _HELD_FILES_MAX

    async def warm(self, key: str, start: int, end: int) -> bool:
        """See the port."""
        check_key(key)
        return await self._run(lambda: self._warm(key, start, end))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # -- on the executor -------------------------------------------------------------------------

    def _put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool) -> None:
        try:
            self._prepare_staging()
            staged = f"{self._staging}/{next(self._staged)}"
            try:
                self._write(staged, parts)
                folder = key.rpartition("/")[0]
                self._device.make_folder(folder)
                if if_absent:
                    self._link(staged, key)
                else:
                    self._device.rename(staged, key)
            except OSError:
                # The first error is the one to tell; what stays is removed by the next start.
                try:
                    self._device.remove(staged)
                except OSError as error:
                    heard(Cause.REMOVE_FILE, error, logger, f"{staged} stays until the next start")
                raise
            self._device.sync_directory(folder)
        except OSError as error:
            raise translate_os_error("put", key, error) from error
        with self._lock:
            # A replaced object's descriptor would go on giving the old bytes.
            self._forget(key)

    def _link(self, staged: str, key: str) -> None:
        try:
            self._device.link(staged, key)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without hard links (exFAT, many network and container mounts). Between
            # the look and the rename another process may put the key; keys are given out once,
            # and this look is for what was there before.
            with contextlib.suppress(FileNotFoundError):
                self._device.stat(key)
                raise FileExistsError(errno.EEXIST, "it exists", key) from error
            self._device.rename(staged, key)
        else:
            self._device.remove(staged)

    def _prepare_staging(self) -> None:
        if self._staging_is_clean:
            return
        with self._lock:
            # On the first put only: a process that merely reads must not remove what a server
            # writes.
            if self._staging_is_clean:
                return
            self._device.make_folder(self._staging)
            for name in self._device.list(self._staging):
                self._device.remove(f"{self._staging}/{name}")
            self._staging_is_clean = True

    def _write(self, name: str, parts: Sequence[Buffer]) -> None:
        file = self._device.open(name, create=True)
        try:
            position = 0
            for buffers, length in _gathered(parts):
                file.write_at(position, buffers)
                position += length
            file.sync()
        finally:
            file.close()

    def _read(self, key: str, start: int, end: int) -> Versioned:
        try:
            file = self._opened(key)
            # First: what is changed while it is read is then of another version.
            version = file.identity() if isinstance(file, RegionFile) else None
            data = file.view_at(start, end - start)
        except OSError as error:
            raise translate_os_error("read", key, error) from error
        if len(data) < end - start:
            raise CorruptDataError(
                "read", f"{key} at byte {start}", f"{len(data)} of {end - start} bytes are there"
            )
        return Versioned(data, version)

    def _warm(self, key: str, start: int, end: int) -> bool:
        try:
            file = self._opened(key)
            if not (isinstance(file, RegionFile) and file.can_send()):
                return False
            whole = file.warm(start, end)
        except OSError as error:
            raise translate_os_error("read", key, error) from error
        with self._lock:
            # Not one that was deleted meanwhile: held here, it would keep its space.
            if self._open_files.get(key) is file:
                self._region_files[key] = file
        if not whole:
            raise CorruptDataError("read", f"{key} before byte {end}", "the object is shorter")
        return True

    def _forget(self, key: str) -> None:
        self._open_files.pop(key, None)
        self._region_files.pop(key, None)

    def _opened(self, key: str) -> File:
        file = self._open_still(key)
        if file is not None:
            return file
        file = self._device.open(key)
        with self._lock:
            self._open_files[key] = file
            self._held_files.add(file)
            if len(self._open_files) > _OPEN_FILES_MAX:
                # Not closed here: another thread may be reading it, and a descriptor's number is
                # given out again at once. It closes when the last reference goes.
                self._open_files.popitem(last=False)
        return file

    def _open_still(self, key: str) -> File | None:
        """The object's file if it is open, and still the object's.

        Another process may have deleted the object, or an operator have put a whole copy in the
        place of a damaged one: the descriptor would go on giving the old bytes. Looking costs 6 us.
        """
        with self._lock:
            file = self._open_files.get(key)
        if file is None:
            return None
        is_there = self._device.has(key, file)
        with self._lock:
            if self._open_files.get(key) is file:
                if is_there:
                    self._open_files.move_to_end(key)
                else:
                    self._forget(key)
        return file if is_there else None

    def _stat(self, key: str) -> Status:
        try:
            return self._device.stat(key)
        except OSError as error:
            raise translate_os_error("look up", key, error) from error

    def _delete(self, keys: Sequence[str]) -> None:
        folders = set()
        for key in keys:
            with self._lock:
                # An open descriptor would keep the deleted file's space.
                self._forget(key)
            try:
                self._device.remove(key)
                folders.add(key.rpartition("/")[0])
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise translate_os_error("delete", key, error) from error
        for folder in sorted(folders):
            try:
                self._device.sync_directory(folder)
            except OSError as error:
                raise translate_os_error("delete", folder, error) from error

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        base = f"{folder}/" if folder else ""
        names = [(name, False) for name in self._device.list(folder)]
        # With the slash, folders sort among files as their keys do.
        names += [(f"{name}/", True) for name in self._device.folders(folder)]
        for name, is_folder in sorted(names):
            key = base + name
            if name.startswith(".") or not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            # A folder whose keys all sort at or before `after` isn't read.
            if key <= after and not (is_folder and after.startswith(key)):
                continue
            if is_folder:
                yield from self._walk(key[:-1], prefix, after)
            elif key.startswith(prefix):
                # One that is deleted meanwhile is simply not listed.
                with contextlib.suppress(NotFoundError):
                    status = self._stat(key)
                    yield ObjectInfo(
                        key=key, size_bytes=status.size_bytes, modified_ms=status.modified_ms
                    )


def _gathered(parts: Sequence[Buffer]) -> Iterator[tuple[Sequence[Buffer], int]]:
    """Parts in stretches to write at once; small ones joined, since a copy is cheaper then."""
    gathered: list[Buffer] = []
    length = 0
    for part in parts:
        gathered.append(part)
        length += memoryview(part).nbytes
        if length >= _WRITE_BYTES:
            yield _joined_if_small(gathered, length), length
            gathered, length = [], 0
    if gathered:
        yield _joined_if_small(gathered, length), length


def _joined_if_small(parts: list[Buffer], length: int) -> Sequence[Buffer]:
    return [b"".join(parts)] if length < len(parts) * _JOIN_PART_BYTES else parts
