"""The smallest state machine: named counters with a cache, for the tests of `Replica`."""

import sqlite3

import msgspec

APPLICATION_ID = 0x74657374


class Counters:
    """An entry is [name, amount]; its outcome the counter's new value. "boom" fails."""

    application_id = APPLICATION_ID
    format_version = 1
    oldest_version = 1

    def __init__(self) -> None:
        self.cache: dict[str, int] = {}
        self._dirty: dict[str, tuple[int, bytes]] = {}

    def create(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL,"
            " changed_ms INTEGER NOT NULL, filler BLOB) STRICT, WITHOUT ROWID"
        )

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        raise AssertionError(from_version)

    def bind(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:
        return max(previous_ms, stamp_ms)

    def apply(self, position: int, time_ms: int, body: bytes) -> int:
        name, amount = msgspec.msgpack.decode(body[: body.rindex(b"|")])
        if name not in self.cache:
            row = self._execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
            self.cache[name] = row[0] if row else 0
        self.cache[name] += amount
        self._dirty[name] = (time_ms, body)
        if name == "boom":
            raise ValueError(name)
        return self.cache[name]

    def flush(self) -> None:
        for name, row in self._dirty.items():
            self._execute(
                "INSERT OR REPLACE INTO counters VALUES (?, ?, ?, ?)",
                (name, self.cache[name], *row),
            )
        self._dirty.clear()

    def drop_caches(self) -> None:
        self.cache.clear()
        self._dirty.clear()


def entry(name: str, amount: int, *, padding: int = 0) -> bytes:
    """An entry's body."""
    return msgspec.msgpack.encode([name, amount]) + b"|" + b"x" * padding
