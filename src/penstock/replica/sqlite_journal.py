"""The journal as a SQLite file, for the processes of one host. docs/formats/replica-service.md.

What waits while a transaction is being synced shares the next one. Positions are counted by SQLite,
which never gives one twice. Other processes' rows are noticed by SQLite's own count of changes.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from penstock.model.errors import InvalidRequestError, NotFoundError, PenstockError, RetryableError
from penstock.ports.clock import Clock
from penstock.ports.journal import JournalHead, JournalRow
from penstock.replica.beginning import is_beginning
from penstock.replica.database import (
    BUSY_TIMEOUT_S,
    check_space,
    check_versions,
    connect_reader,
    pragma_integer,
    sync_directory,
    translate,
)
from penstock.system.files import make_folder
from penstock.system.waiting import wait

T = TypeVar("T")

APPLICATION_ID: Final = 0x504A524E  # "PJRN"
FORMAT_VERSION: Final = 1
TRIM_ROWS_MAX: Final = 1_000
_LOOK_S: Final = (0.002, 0.004, 0.008, 0.016)
"""Between looks at what other processes have appended; the last is repeated."""
_SCHEMA: Final = (
    """CREATE TABLE journal (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        stamp_ms INTEGER NOT NULL,
        body BLOB NOT NULL
    ) STRICT""",
    """CREATE TABLE journal_info (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        name TEXT NOT NULL,
        cluster_id TEXT NOT NULL,
        trimmed INTEGER NOT NULL
    ) STRICT""",
)


class SqliteJournal:
    """Implements `penstock.ports.journal.Journal`. Event loop only; a thread has the file."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, clock: Clock, cluster_id: str
    ) -> None:
        """Use `open`."""
        self.cluster_id = cluster_id
        self._path = path
        self._connection = connection
        self._watcher = connect_reader(path)
        """A look at the count of changes waits for no other statement."""
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "journal")
        self._waiting: deque[tuple[bytes, asyncio.Future[int]]] = deque()
        self._is_writing = False
        self._is_closed = False
        self._seen_version = -1
        self._appended = asyncio.Event()

    @classmethod
    async def open(
        cls, path: Path, *, name: str, clock: Clock, new_cluster_id: Callable[[], str]
    ) -> "SqliteJournal":
        """Open the file, or create it.

        Args:
            name: of the service; another one's journal is refused.
        Raises:
            InvalidRequestError: it is another program's or service's, or a newer release's.
            RetryableError: another process holds it for long.
            PenstockError: as `translate` has it.
        """

        def opened() -> tuple[sqlite3.Connection, str]:
            make_folder(path.parent)
            is_new = not path.exists()
            try:
                connection = sqlite3.connect(
                    path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
                )
            except sqlite3.Error as error:
                raise _unopened(error, path) from error
            try:
                cluster_id = _prepare(connection, path, name, new_cluster_id)
            except sqlite3.Error as error:
                connection.close()
                raise _unopened(error, path) from error
            except BaseException:
                connection.close()
                raise
            if is_new:
                sync_directory(path.parent)
            return connection, cluster_id

        connection, cluster_id = await asyncio.get_running_loop().run_in_executor(None, opened)
        return cls(path, connection, clock, cluster_id)

    async def append(self, body: bytes) -> int:
        """See `Journal`."""
        assert body, "an empty body is a seal"
        self._check_open()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, future))
        if not self._is_writing:
            self._is_writing = True
            # Not at once: what the same turn of the event loop brings shares the sync.
            asyncio.get_running_loop().call_soon(self._write_next)
        return await future

    async def read(self, after: int, limit: int) -> list[JournalRow]:
        """See `Journal`."""

        def read(execute: Callable[..., sqlite3.Cursor]) -> list[JournalRow]:
            rows = [
                JournalRow(*row)
                for row in execute(
                    "SELECT position, stamp_ms, body FROM journal WHERE position > ?"
                    " ORDER BY position LIMIT ?",
                    (after, limit),
                )
            ]
            if rows and is_beginning(rows[0].body):
                raise NotFoundError(
                    "read journal",
                    f"position {rows[0].position}",
                    "this restored journal begins after it, with a snapshot",
                    "bootstrap from that snapshot",
                )
            (trimmed,) = execute("SELECT trimmed FROM journal_info").fetchone()
            if rows and rows[0].position != after + 1 and after < trimmed:
                raise NotFoundError(
                    "read journal",
                    f"position {after + 1}",
                    f"rows up to {trimmed} have been trimmed",
                    "bootstrap from a snapshot",
                )
            return rows

        return await self._call(read)

    async def row(self, position: int) -> JournalRow | None:
        """See `Journal`."""

        def read(execute: Callable[..., sqlite3.Cursor]) -> JournalRow | None:
            row = execute(
                "SELECT position, stamp_ms, body FROM journal WHERE position = ?", (position,)
            ).fetchone()
            return None if row is None else JournalRow(*row)

        return await self._call(read)

    async def head(self) -> JournalHead:
        """See `Journal`."""

        def read(execute: Callable[..., sqlite3.Cursor]) -> JournalHead:
            (last,) = execute("SELECT coalesce(max(position), 0) FROM journal").fetchone()
            (trimmed,) = execute("SELECT trimmed FROM journal_info").fetchone()
            return JournalHead(last, trimmed + 1, self._clock.now_ms())

        return await self._call(read)

    async def seal(self, positions: Sequence[int]) -> None:
        """See `Journal`."""

        def sealed(execute: Callable[..., sqlite3.Cursor]) -> None:
            stamp_ms = self._stamp(execute)
            for position in positions:
                execute("INSERT OR IGNORE INTO journal VALUES (?, ?, x'')", (position, stamp_ms))

        await self._call(sealed, writes=True)

    async def wait(self, after: int, timeout_s: float) -> None:  # noqa: ARG002
        """See `Journal`. A look costs some microseconds, and reads no row."""
        if self._is_closed:
            return
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        looks = iter(_LOOK_S)
        pause_s = _LOOK_S[-1]
        self._appended.clear()
        while not self._is_closed and not self._appended.is_set() and loop.time() < end_s:
            if self._is_changed():
                return
            pause_s = next(looks, pause_s)
            await wait(min(pause_s, max(0.0, end_s - loop.time())))

    def share_among(self, readers: int) -> None:
        """See `Journal`: a look is local, and costs the others nothing."""

    async def trim(self, up_to: int) -> int:
        """See `Journal`."""

        def trimmed(execute: Callable[..., sqlite3.Cursor]) -> int:
            (last,) = execute("SELECT coalesce(max(position), 0) FROM journal").fetchone()
            target = min(up_to, last - 1)
            execute("UPDATE journal_info SET trimmed = max(trimmed, ?)", (target,))
            return execute(
                "DELETE FROM journal WHERE position IN (SELECT position FROM journal"
                " WHERE position <= ? ORDER BY position LIMIT ?)",
                (target, TRIM_ROWS_MAX),
            ).rowcount

        return await self._call(trimmed, writes=True)

    async def close(self) -> None:
        """See `Journal`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._appended.set()
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(self._closed())
        self._waiting.clear()
        loop = asyncio.get_running_loop()
        # First: the last one to close empties SQLite's WAL, and a reader may not.
        self._watcher.close()
        await loop.run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    # -- inside ----------------------------------------------------------------------------------

    def _is_changed(self) -> bool:
        """Whether anything was committed since the last look."""
        try:
            version = pragma_integer(self._watcher, "data_version")
        except sqlite3.Error:
            return True  # the read that follows says what is wrong
        found = version != self._seen_version
        self._seen_version = version
        return found

    def _write_next(self) -> None:
        taken = list(self._waiting)
        self._waiting.clear()
        if not taken or self._is_closed:
            self._is_writing = False
            return

        def append(execute: Callable[..., sqlite3.Cursor]) -> list[int]:
            stamp_ms = self._stamp(execute)
            positions = []
            for body, _ in taken:
                sql = "INSERT INTO journal (stamp_ms, body) VALUES (?, ?)"
                position = execute(sql, (stamp_ms, body)).lastrowid
                assert position is not None
                positions.append(position)
            return positions

        size = sum(len(body) for body, _ in taken)
        running = asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._run(append, writes=True, size=size)
        )

        def done(ended: "asyncio.Future[list[int]]") -> None:
            error = ended.exception()
            for place, (_, future) in enumerate(taken):
                if future.done():
                    continue
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(ended.result()[place])
            self._appended.set()
            self._write_next()

        running.add_done_callback(done)

    def _stamp(self, execute: Callable[..., sqlite3.Cursor]) -> int:
        """Give the present, or the last row's stamp where that is later."""
        row = execute("SELECT stamp_ms FROM journal ORDER BY position DESC LIMIT 1").fetchone()
        return max(self._clock.now_ms(), 0 if row is None else row[0])

    async def _call(
        self, work: Callable[[Callable[..., sqlite3.Cursor]], T], *, writes: bool = False
    ) -> T:
        self._check_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: self._run(work, writes=writes))

    def _run(
        self, work: Callable[[Callable[..., sqlite3.Cursor]], T], *, writes: bool, size: int = 0
    ) -> T:
        """Do work in one transaction, in the thread. Raises: RetryableError."""
        execute = self._connection.execute
        try:
            if writes:
                check_space(str(self._path.parent), entry_bytes=size)
            execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            found = work(execute)
            execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            translated = translate(error, "write journal", str(self._path))
            if isinstance(translated, RetryableError):
                raise translated from error
            # Whether it is there is known once it is read again: entries carry their number.
            raise RetryableError("write journal", str(self._path), str(error)) from error
        except BaseException:
            self._roll_back()
            raise
        return found

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> RetryableError:
        return RetryableError("use journal", str(self._path), "it is closed")


def _unopened(error: sqlite3.Error, path: Path) -> PenstockError:
    translated = translate(error, "open journal", str(path))
    if isinstance(translated, NotFoundError):
        # Its volume may come back.
        return RetryableError("open journal", str(path), translated.detail)
    return translated


def _prepare(
    connection: sqlite3.Connection, path: Path, name: str, new_cluster_id: Callable[[], str]
) -> str:
    """Make the tables if there are none; return the id of the journal."""
    execute = connection.execute
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = FULL")
    execute("PRAGMA fullfsync = 1")
    execute("PRAGMA checkpoint_fullfsync = 1")
    execute("BEGIN IMMEDIATE")
    try:
        if not check_versions(
            connection, path, application_id=APPLICATION_ID, format_version=FORMAT_VERSION
        ):
            for sql in _SCHEMA:
                execute(sql)
            execute("INSERT INTO journal_info VALUES (1, ?, ?, 0)", (name, new_cluster_id()))
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        found, cluster_id = execute("SELECT name, cluster_id FROM journal_info").fetchone()
        execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            execute("ROLLBACK")
        raise
    if found != name:
        raise InvalidRequestError(
            "open journal", str(path), f"it is the journal of {found}, this is {name}"
        )
    assert isinstance(cluster_id, str)
    return cluster_id
