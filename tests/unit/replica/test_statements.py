"""Rows inserted by few statements are the rows that were given, in order."""

import sqlite3
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from penstock.replica.statements import insert_rows


@given(st.integers(0, 300))
def test_any_number_of_rows_is_inserted_in_order(count: int) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        rows = [(n, f"row {n}") for n in range(count)]
        insert_rows(connection.execute, "INSERT INTO t", rows)
        assert connection.execute("SELECT a, b FROM t ORDER BY rowid").fetchall() == rows


def test_few_statements_do_it_and_their_texts_repeat() -> None:
    texts: list[str] = []

    def execute(text: str, _values: object) -> None:
        texts.append(text)

    for count in (80, 100):
        insert_rows(execute, "INSERT INTO t", [(n,) for n in range(count)], tail="ON CONFLICT")
    assert len(texts) == (1 + 2) + (1 + 4 + 4)
    assert len(set(texts)) == 3
    assert all(text.endswith("ON CONFLICT") for text in texts)


def test_what_is_there_is_replaced_as_the_tail_says() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER, c INTEGER)")
        connection.execute("INSERT INTO t VALUES (1, 2, 3)")
        tail = "ON CONFLICT (a) DO UPDATE SET b = excluded.b"
        insert_rows(connection.execute, "INSERT INTO t", [(1, 7, 8), (2, 9, 10)], tail=tail)
        assert connection.execute("SELECT * FROM t").fetchall() == [(1, 7, 3), (2, 9, 10)]
