"""A replica's state of one position, held while commits go on, and its digest.

A reader's transaction of SQLite holds the state: nothing waits for it, but what is committed
meanwhile stays in SQLite's WAL until the transaction ends. So a copy of the file is made first,
which no Python runs for, and the copy is hashed in a process of its own.
"""

import contextlib
import sqlite3
import sys
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.replica.database import (
    check_space,
    connect_reader,
    pragma_integer,
    state_position,
    translate,
)
from penstock.replica.dump import table_digests
from penstock.system.apart import answer_apart, run_apart

APART_BYTES: Final = 4 << 20
"""A copy as large as this is worth a process, whose start costs about 0.3 s of CPU."""
_PAGES_PER_STEP: Final = 4096
_SECONDS_MIN: Final = 300
_BYTES_PER_S_MIN: Final = 1 << 20


class PinnedState:
    """The state of `position`, until `close`. One thread at a time."""

    def __init__(self, path: Path) -> None:
        """Hold what is committed now.

        Raises:
            RetryableError: too many files are open.
            CorruptDataError: the file can't be read.
        """
        self._path = path
        self._connection = connect_reader(path)
        try:
            self._connection.execute("BEGIN")
            self.position, _ = state_position(self._connection)
        except sqlite3.Error as error:
            self._connection.close()
            raise translate(error, "read", str(path)) from error

    def copy(self, target: Path) -> int:
        """Copy the state to a new file; its size in bytes. Blocking, without the interpreter.

        Raises:
            StorageFullError: no space.
            CorruptDataError: the file can't be read.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        pages = pragma_integer(self._connection, "page_count")
        size = pages * pragma_integer(self._connection, "page_size")
        # It asks for eight times as much, as a transaction may need.
        check_space(str(target.parent), entry_bytes=size // 8)
        try:
            with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copied:
                self._connection.backup(copied, pages=_PAGES_PER_STEP)
                # A reader of a file in WAL mode would have to write files next to it.
                copied.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            target.unlink(missing_ok=True)
            raise translate(error, "copy", str(self._path)) from error
        return size

    def close(self) -> None:
        """Let go; idempotent."""
        self._connection.close()


def digest_pinned(
    pinned: PinnedState, scratch: Path, *, apart_bytes: int = APART_BYTES
) -> dict[str, bytes]:
    """The digests of a pinned state's tables, which is let go as soon as it is copied. Blocking.

    Args:
        scratch: a folder for the copy.
        apart_bytes: from this size on it is hashed in another process.

    Raises:
        StorageFullError: no space for the copy.
        CorruptDataError: SQLite can't read the state.
        RetryableError: the process was ended, or took far too long.
    """
    copy = scratch / "digest.sqlite"
    try:
        try:
            size = pinned.copy(copy)
        finally:
            pinned.close()
        return digest_file(copy) if size < apart_bytes else _digest_apart(copy, size)
    finally:
        for suffix in ("", "-wal", "-shm"):
            copy.with_name(copy.name + suffix).unlink(missing_ok=True)


def digest_file(path: Path) -> dict[str, bytes]:
    """The digests of a database's tables. Raises: CorruptDataError: SQLite can't read it."""
    connection = connect_reader(path)
    try:
        return table_digests(connection)
    except sqlite3.Error as error:
        raise CorruptDataError("hash state", str(path), str(error)) from error
    finally:
        connection.close()


def _digest_apart(path: Path, size_bytes: int) -> dict[str, bytes]:
    return run_apart(
        "penstock.replica.pinned",
        [str(path)],
        dict[str, bytes],
        operation="hash state",
        subject=str(path),
        timeout_s=_SECONDS_MIN + size_bytes / _BYTES_PER_S_MIN,
    )


def main(path: str) -> int:
    """Do `digest_file` in the other process. Returns: its exit status."""
    return answer_apart(lambda: digest_file(Path(path)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
