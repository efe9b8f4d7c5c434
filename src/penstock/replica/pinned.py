"""A replica's state of one position, held while commits go on, and its digest.

A reader's transaction of SQLite holds the state: nothing waits for it, but what is committed
meanwhile stays in SQLite's WAL until the transaction ends. So a copy of the file is made first,
which no Python runs for, and the copy is hashed in a process of its own.
"""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError, PenstockError, RetryableError
from penstock.replica.database import (
    check_space,
    connect_reader,
    pragma_integer,
    state_position,
    translate,
)
from penstock.replica.dump import table_digests

APART_BYTES: Final = 4 << 20
"""A copy as large as this is worth a process, whose start costs about 0.3 s of CPU."""
_PAGES_PER_STEP: Final = 4096
_NICENESS: Final = 10
_SECONDS_MIN: Final = 300
_BYTES_PER_S_MIN: Final = 1 << 20
_DAMAGED: Final = 3


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
                # A reader of a file in WAL mode would have to write beside it.
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
    try:
        ended = subprocess.run(  # noqa: S603 - this very program, with a path of ours
            [sys.executable, "-m", "penstock.replica.pinned", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS_MIN + size_bytes / _BYTES_PER_S_MIN,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RetryableError("hash state", str(path), str(error)) from error
    if ended.returncode == _DAMAGED:
        raise CorruptDataError("hash state", str(path), ended.stdout.decode("utf-8", "replace"))
    if ended.returncode:
        said = ended.stderr.decode("utf-8", "replace").strip()[-300:]
        raise RetryableError(
            "hash state", str(path), f"its process ended with {ended.returncode}: {said}"
        )
    return {name: bytes.fromhex(found) for name, found in json.loads(ended.stdout).items()}


def main(path: str) -> int:
    """The other process. Returns: its exit status; it prints the digests."""
    os.nice(_NICENESS)
    try:
        found = digest_file(Path(path))
    except PenstockError as error:
        sys.stdout.write(error.detail)
        return _DAMAGED if isinstance(error, CorruptDataError) else 1
    sys.stdout.write(json.dumps({name: value.hex() for name, value in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
