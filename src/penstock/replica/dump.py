"""The canonical dump: a state's rows in an order and encoding that depend on nothing else.

Two replicas at one position have equal dumps, whatever their pages look like. The digest is its
hash; see docs/formats/snapshot.md.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.replica.database import REPLICA_TABLES

PAGE_ROWS: Final = 500
"""Rows that are encoded at once; below 65,536."""
DIGEST_VERSION: Final = 1
"""Version of what `table_digests` hashes: digests of different versions can't be compared."""


def state_tables(connection: sqlite3.Connection, *, schema: str = "main") -> list[str]:
    """Names of the state's tables, sorted."""
    rows = connection.execute(
        f"SELECT name FROM {schema}.sqlite_master"  # noqa: S608 - a name of ours
        " WHERE type = 'table' ORDER BY name"
    ).fetchall()
    return [
        name for (name,) in rows if name not in REPLICA_TABLES and not name.startswith("sqlite")
    ]


def canonical_dump(connection: sqlite3.Connection) -> Iterator[bytes]:
    """The state as MessagePack values: each table's name, then its rows by primary key.

    For a dump of one moment the caller begins a transaction first.
    """
    encode = msgspec.msgpack.Encoder().encode
    for table in state_tables(connection):
        yield encode(table)
        for row in _rows(connection, table):
            yield encode(row)


def state_digest(connection: sqlite3.Connection) -> bytes:
    """SHA-256 of the canonical dump."""
    digest = hashlib.sha256()
    for table in state_tables(connection):
        _hash_table(connection, table, digest)
    return digest.digest()


def table_digests(connection: sqlite3.Connection) -> dict[str, bytes]:
    """SHA-256 of each table's part of the canonical dump: by table, in the order of their names.

    For digests of one moment the caller begins a transaction first. What a change of this would
    need is another `DIGEST_VERSION`.
    """
    found: dict[str, bytes] = {}
    for table in state_tables(connection):
        digest = hashlib.sha256()
        _hash_table(connection, table, digest)
        found[table] = digest.digest()
    return found


def _hash_table(connection: sqlite3.Connection, table: str, digest: "hashlib._Hash") -> None:
    encode = msgspec.msgpack.Encoder().encode
    digest.update(encode(table))
    rows = _rows(connection, table)
    # Rows of one array encode as they do by themselves, behind the array's header; and with
    # millions of them the calls are what costs.
    while page := rows.fetchmany(PAGE_ROWS):
        digest.update(memoryview(encode(page))[_array_header_bytes(len(page)) :])


def _rows(connection: sqlite3.Connection, table: str) -> sqlite3.Cursor:
    keys = sorted(
        (place, name)
        for _, name, _, _, _, place in connection.execute(f'PRAGMA table_info("{table}")')
        if place
    )
    order = ", ".join(f'"{name}"' for _, name in keys)
    return connection.execute(f'SELECT * FROM "{table}" ORDER BY {order}')  # noqa: S608


def _array_header_bytes(count: int) -> int:
    """Count the bytes of a MessagePack array's header: fixarray, or array 16 from 16 items on."""
    return 1 if count < 16 else 3
