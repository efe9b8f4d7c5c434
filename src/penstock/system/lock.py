"""One process per data directory."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.model.errors import ConflictError
from penstock.system.files import make_folder

LOCK_FILE: Final = "lock"
_PID_BYTES_MAX: Final = 32


class DirectoryLock:
    """An exclusive lock on a directory, held until `release` or the process's end.

    The lock is flock's, which the kernel drops with the process however it dies; the file `lock`
    stays and holds the last holder's pid as text, which the refusal of another process names.
    """

    __slots__ = ("_descriptor", "directory")

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, directory: Path) -> Self:
        """Take the lock; the directory is made if it is not there.

        Raises:
            ConflictError: another process (or another call in this one) holds it.
        """
        make_folder(directory)
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            holder = os.pread(descriptor, _PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise ConflictError(
                "lock",
                str(directory),
                f"process {holder or '(unknown)'} is using this data directory",
                "stop it, or choose another directory",
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(directory, descriptor)

    def release(self) -> None:
        """Give the lock up; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
