"""The digest is the hash of the dump, however many rows are encoded at once."""

import hashlib
import sqlite3

import pytest

from penstock.replica import canonical_dump, state_digest
from penstock.replica.dump import PAGE_ROWS


@pytest.mark.parametrize(
    "count", [0, 1, 15, 16, 17, PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, PAGE_ROWS + 16]
)
def test_the_digest_is_the_dumps_hash(count: int) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE b (name TEXT, number INTEGER, PRIMARY KEY (number, name))")
    connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, body BLOB)")
    connection.executemany(
        "INSERT INTO b VALUES (?, ?)", ((f"n{number % 7}", -number) for number in range(count))
    )
    connection.execute("INSERT INTO a VALUES (5, x'00ff'), (3, NULL)")
    dump = list(canonical_dump(connection))
    assert len(dump) == 2 + 2 + count
    assert state_digest(connection) == hashlib.sha256(b"".join(dump)).digest()
    connection.close()
