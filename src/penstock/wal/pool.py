"""The WAL's files between uses: which are free, which are still named, how many there may be.

All methods may be called from any thread. Two locks: `_state` for the lists, held for no I/O but
removals; `_making` while a file is filled, so that a commit which needs one waits for the file
that is being made anyway.
"""

import errno
import logging
import threading
from typing import Final

from penstock.model.errors import FatalStorageError, StorageFullError
from penstock.ports.device import Device
from penstock.system.heard import Cause, heard
from penstock.wal.recovery import FILE_SUFFIX, FOLDER, MAKING_SUFFIX, Recovered, file_name

logger = logging.getLogger(__name__)

_FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DESCRIPTOR_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

_ZEROS: Final = bytes(1 << 20)
_SKIPS_MAX: Final = 64


def out_of_room(operation: str, subject: str, error: OSError) -> StorageFullError | None:
    """Return an error that passes by itself as one that can be tried again; None for others.

    Too many open files pass too: opening the next file failed before anything was lost, and the
    descriptors are there again as soon as some clients leave.
    """
    if error.errno in _FULL_ERRORS:
        return StorageFullError(operation, subject, f"the disk is full: {error}")
    if error.errno in _DESCRIPTOR_ERRORS:
        return StorageFullError(
            operation,
            subject,
            f"the process has too many open files: {error}",
            "raise the limit of open files (ulimit -n), or lower connections_max",
        )
    return None


class FilePool:
    """Files of one size, never more than `bytes_max` together."""

    def __init__(
        self,
        device: Device,
        *,
        file_bytes: int,
        bytes_max: int,
        recovered: Recovered,
        fsync: bool,
    ) -> None:
        self._device = device
        self._file_bytes = file_bytes
        self._count_max = bytes_max // file_bytes
        self._in_use = dict(recovered.in_use)
        self._free = list(recovered.free)
        self._other_sizes = set(recovered.other_sizes)
        self._number = recovered.number_max
        self._count = len(self._in_use) + len(self._free) + len(recovered.kept)
        self._fsync = fsync
        self._state = threading.Lock()
        self._making = threading.Lock()
        self._full_skips = self._full_skips_left = 0
        self._full_detail = ""
        with self._state:
            self._shrink()

    @property
    def obtainable_count(self) -> int:
        """Files that are free or may still be made."""
        return len(self._free) + max(0, self._count_max - self._count)

    def needs_spare(self) -> bool:
        """Whether the next file would have to be made while a commit waits."""
        return not self._free and self._count < self._count_max

    def prepare_spare(self) -> None:
        """Make a file, if none is free and there may be one more.

        Raises:
            StorageFullError: the disk is full, or too many files are open; nothing is left
                behind.
        """
        with self._making:
            if self.needs_spare():
                self._make()

    def take(self) -> str:
        """A file that nothing names; its bytes are allocated.

        Raises:
            StorageFullError: all files are in use and there may be no more, the disk is full,
                or too many files are open.
        """
        with self._making:
            if self.needs_spare():
                self._make()
        with self._state:
            if self._free:
                # The last one released: its pages are the likeliest to be in memory still.
                return self._free.pop()
        raise StorageFullError(
            "append",
            FOLDER,
            f"{self._count} files of {self._file_bytes} bytes are all in use",
            "raise wal.bytes_max, or see why uploads to the object store do not keep up",
        )

    def put_back(self, name: str) -> None:
        """Return a taken file that got no frame."""
        with self._state:
            self._free.append(name)

    def closed(self, generation: int, name: str) -> None:
        """The writer is done with a file; it stays until its generation is released."""
        with self._state:
            self._in_use[generation] = name

    def release(self, generation: int) -> None:
        """Nothing names this generation any more. Ignored unless its file is closed."""
        with self._state:
            name = self._in_use.pop(generation, None)
            if name is None:
                return
            if name in self._other_sizes:
                self._other_sizes.discard(name)
                self._discard(name)
                self._count -= 1
            else:
                self._free.append(name)
                self._shrink()
            self._full_skips = self._full_skips_left = 0

    def _shrink(self) -> None:
        """Remove free files while there are more than allowed: the setting was lowered, or files
        of another size were in use at the start."""
        while self._free and self._count > self._count_max:
            self._discard(self._free.pop())
            self._count -= 1

    def _make(self) -> None:
        if self._full_skips_left:
            # Filling a file to find the disk full takes space from everything else on it, and
            # held appends come back many times a second: so ever fewer of them try.
            self._full_skips_left -= 1
            raise StorageFullError(
                "make WAL file", FOLDER, f"it failed just now: {self._full_detail}"
            )
        self._number += 1
        name = file_name(self._number)
        making = name.removesuffix(FILE_SUFFIX) + MAKING_SUFFIX
        try:
            self._fill(making)
            self._device.rename(making, name)
            self._device.sync_directory(FOLDER)
        except OSError as error:
            self._discard(making)
            # The rename may be done already: to sync a folder takes a descriptor too.
            self._discard(name)
            full = out_of_room("make WAL file", name, error)
            if full is None:
                raise FatalStorageError("make WAL file", name, str(error)) from error
            self._full_detail = full.detail
            self._full_skips = min(2 * self._full_skips + 1, _SKIPS_MAX)
            self._full_skips_left = self._full_skips
            raise full from error
        self._full_skips = self._full_skips_left = 0
        with self._state:
            self._free.append(name)
            self._count += 1

    def _fill(self, name: str) -> None:
        file = self._device.open(name, create=True)
        try:
            for position in range(0, self._file_bytes, len(_ZEROS)):
                length = min(len(_ZEROS), self._file_bytes - position)
                zeros = [_ZEROS if length == len(_ZEROS) else bytes(length)]
                if self._fsync:
                    # Past the page cache: these zeros are never read.
                    file.write_synced(position, zeros)
                else:
                    file.write_at(position, zeros)
            if self._fsync:
                file.sync()  # its size, too
        finally:
            file.close()

    def _discard(self, name: str) -> None:
        # What can't be removed now is by the next start, which also finds a removal that a power
        # cut took back: so neither is worth a sync, or an error of its own.
        try:
            self._device.remove(name)
        except OSError as error:
            heard(Cause.REMOVE_FILE, error, logger, f"{name} stays until the next start")
