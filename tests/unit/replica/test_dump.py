"""The digest is the hash of the dump, however many rows are encoded at once."""

import hashlib
import sqlite3

import pytest

from penstock.replica.dump import PAGE_ROWS, canonical_dump, state_digest, table_digests


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


def test_each_table_has_a_digest_of_its_own() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE b (name TEXT PRIMARY KEY) WITHOUT ROWID")
    connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, body BLOB)")
    connection.execute("CREATE TABLE local (name TEXT PRIMARY KEY, value ANY)")
    connection.execute("INSERT INTO a VALUES (5, x'00ff')")
    before = table_digests(connection)
    assert list(before) == ["a", "b"]
    part = b"".join(list(canonical_dump(connection))[:2])
    assert before["a"] == hashlib.sha256(part).digest()
    connection.execute("UPDATE a SET body = x'00fe'")
    # What is of this copy alone is in no digest.
    connection.execute("INSERT INTO local VALUES ('agent', 7)")
    after = table_digests(connection)
    assert after["a"] != before["a"]
    assert after["b"] == before["b"]
    connection.close()
