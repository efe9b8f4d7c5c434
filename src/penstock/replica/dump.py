"""The canonical dump: a state's rows in an order and encoding that depend on nothing else.

Two replicas at one position have equal dumps, whatever their pages look like. The digest is its
hash; see docs/formats/snapshot.md.
"""

import hashlib
import sqlite3
from collections.abc import Iterator

import msgspec

from penstock.replica.database import REPLICA_TABLES


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
        keys = sorted(
            (place, name)
            for _, name, _, _, _, place in connection.execute(f'PRAGMA table_info("{table}")')
            if place
        )
        order = ", ".join(f'"{name}"' for _, name in keys)
        for row in connection.execute(f'SELECT * FROM "{table}" ORDER BY {order}'):  # noqa: S608
            yield encode(row)


def state_digest(connection: sqlite3.Connection) -> bytes:
    """SHA-256 of the canonical dump."""
    digest = hashlib.sha256()
    for part in canonical_dump(connection):
        digest.update(part)
    return digest.digest()
