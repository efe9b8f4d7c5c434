"""Read-only connections to one database file, one for each thread."""

import threading
from collections.abc import Callable
from pathlib import Path

from penstock.model.errors import CorruptDataError
from penstock.state.read.queries import Queries


class ThreadQueries:
    """Gives the calling thread its own read-only connection, as SQLite wants it."""

    def __init__(
        self, path: Path, *, on_damaged: Callable[[CorruptDataError], None] | None = None
    ) -> None:
        """
        Args:
            on_damaged: see `Queries`.
        """
        self.path = path
        self._on_damaged = on_damaged
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[Queries] = []
        self._file_id = 0

    @property
    def is_replaced(self) -> bool:
        """Whether the database was made again since the first connection: connections go on
        reading what was set aside."""
        return bool(self._file_id) and self._file_id != _file_id(self.path)

    def __call__(self) -> Queries:
        """The calling thread's connection, opened at its first call."""
        found: Queries | None = getattr(self._local, "queries", None)
        if found is None:
            self._file_id = self._file_id or _file_id(self.path)
            found = self._local.queries = Queries(self.path)
            found.on_damaged = self._on_damaged
            with self._lock:
                self._opened.append(found)
        return found

    def close(self) -> None:
        """Close all connections, once no thread uses one any more."""
        with self._lock:
            for queries in self._opened:
                queries.close()
            self._opened.clear()


def _file_id(path: Path) -> int:
    """The inode; 0: there is no such file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
