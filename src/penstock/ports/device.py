"""A local volume as a port: files that are written by position and made durable on demand.

Durability, as POSIX gives it: bytes written are lost by a power cut unless `sync` of that file
returned; a file's existence, name or removal is lost unless `sync_directory` of its folder
returned. A process crash loses nothing that was written. Errors are `OSError`; the caller
decides what they mean (a failed sync is fatal, ENOSPC is not).
Implementations: `penstock.system.files.PosixDevice`; our tests simulate one that
forgets whatever was not synced.
"""

from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Buffer


class File(Protocol):
    """An open file. Reads may overlap one another and writes; writes come from one thread."""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers, one behind the other, from `position` bytes on; all or an OSError."""
        ...

    def write_synced(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Do as `write_at`; the bytes written (others need not be) are durable on return."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Read `length` bytes from `position`; fewer at the end of the file."""
        ...

    def view_at(self, position: int, length: int) -> memoryview:
        """Do as `read_at`, without a copy where the system can: only for files that are never
        written again."""
        ...

    def sync(self) -> None:
        """Make the bytes written so far durable (fdatasync; F_FULLFSYNC on macOS)."""
        ...

    def size(self) -> int:
        """The file's length in bytes."""
        ...

    def close(self) -> None:
        """Close; idempotent."""
        ...


class Device(Protocol):
    """A folder on a local volume. Names are relative, with `/` between folders."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Open for reading and writing.

        Raises:
            FileNotFoundError: there is no such file and `create` is false.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new`."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file."""
        ...

    def list(self, folder: str) -> list[str]:
        """Names of the files directly in `folder`, sorted; empty when there is no such folder."""
        ...

    def sync_directory(self, folder: str) -> None:
        """Make creations, renames and removals in `folder` durable."""
        ...
