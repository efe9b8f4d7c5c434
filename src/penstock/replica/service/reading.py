"""Reads of an instance's database, each in one read transaction, in threads. Any thread."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.model.errors import RetryableError
from penstock.replica.database import connect_reader, state_position, translate

READERS: Final = 4

T = TypeVar("T")


class Readers:
    """Threads with a connection each.

    Args:
        path: of the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.threads = ThreadPoolExecutor(READERS, "read")
        self._own = threading.local()
        self._connections: list[sqlite3.Connection] = []

    async def ask(self, ask: Callable[[sqlite3.Connection], T], position: int) -> T:
        """Ask the database.

        Raises:
            RetryableError: it isn't at a position yet.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, self._ask, ask, position)

    async def close(self) -> None:
        """Wait for what is asked, and close the connections."""
        await asyncio.get_running_loop().run_in_executor(None, self.threads.shutdown)
        for connection in self._connections:
            connection.close()

    def _ask(self, ask: Callable[[sqlite3.Connection], T], position: int) -> T:
        connection: sqlite3.Connection | None = getattr(self._own, "reader", None)
        try:
            if connection is None:
                connection = self._own.reader = connect_reader(self._path)
                self._connections.append(connection)
            connection.execute("BEGIN")
        except sqlite3.Error as error:
            raise translate(error, "read", str(self._path)) from error
        try:
            found, _ = state_position(connection)
            if found < position:
                # The disk is full: what is applied is not committed.
                raise behind(position, found, " for readers")
            return ask(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def behind(position: int, found: int, why: str) -> RetryableError:
    """The error of a read whose token's entry isn't there."""
    detail = f"position {position} of the token isn't here yet; {found} is{why}"
    return RetryableError("read", "service", detail, "try again, or ask another instance")


def first_row(path: Path, sql: str) -> tuple[Any, ...]:
    """Read one row of a database that no instance has open yet."""
    connection = connect_reader(path)
    try:
        row: tuple[Any, ...] = connection.execute(sql).fetchone()
    except sqlite3.Error as error:
        raise translate(error, "read", str(path)) from error
    finally:
        connection.close()
    return row
