"""What a machine may do, and what becomes of entries that are refused, fail or come twice."""

import sqlite3

import pytest

from penstock.model.errors import FatalStorageError, InvalidRequestError
from penstock.replica import Machine, RefusedError
from penstock.replica.database import connect_reader
from penstock.replica.replica import Replica
from penstock.replica.service import entries, hosting
from penstock.replica.service.entries import Kind
from penstock.replica.service.hosting import HostedMachine


class Counters(Machine):
    schema = """
        CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL) STRICT;
        CREATE INDEX counter_n ON counter (n);
    """

    def apply(self, connection, entry):
        value = entry.value
        if isinstance(value, str):
            connection.execute("INSERT OR REPLACE INTO counter VALUES ('before', 1)")
            return connection.execute(value).fetchall()
        if value == 13:
            connection.execute("INSERT OR REPLACE INTO counter VALUES ('before', 1)")
            raise RefusedError("not thirteen")
        if value == 14:
            connection.execute("INSERT OR REPLACE INTO counter VALUES ('before', 1)")
            raise KeyError("a text that may differ among releases of Python")
        if value == 15:
            raise OSError("a file")
        connection.execute(
            "INSERT INTO counter VALUES ('n', ?1) ON CONFLICT DO UPDATE SET n = n + ?1", (value,)
        )
        return [value, entry.position, entry.time_ms, entry.random_bytes(4)]


@pytest.fixture
def replica(tmp_path):
    made = Replica.open(
        tmp_path / "s.sqlite", HostedMachine(Counters()), fsync=False, keeps_journal=False
    )
    yield made
    made.close()


def applied(replica, *items, stamp_ms=1000):
    body = entries.encode(
        [
            entries.item(client, number, b"seed", entries.pack(value))
            for client, number, value in items
        ]
    )
    found = replica.apply(body, stamp_ms=stamp_ms).outcome
    replica.commit()
    return found


def one(replica, value, number, client="me"):
    (outcome,) = applied(replica, (client, number, value))
    return outcome


def rows(replica, sql="SELECT * FROM counter ORDER BY name"):
    connection = connect_reader(replica.path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_the_answer_is_what_apply_returned_and_time_and_randomness_are_the_entrys(replica):
    outcome = one(replica, 3, 1)
    value = entries.unpack(outcome.value)
    assert value[:3] == [3, 1, 1000]
    assert len(value[3]) == 4
    assert rows(replica) == [("n", 3)]


def test_time_never_goes_back(replica):
    applied(replica, ("me", 1, 1), stamp_ms=5000)
    (outcome,) = applied(replica, ("me", 2, 1), stamp_ms=4000)
    assert entries.unpack(outcome.value)[2] == 5000


def test_a_number_that_comes_again_is_answered_and_not_applied(replica):
    first = one(replica, 3, 1)
    again = one(replica, 3, 1)
    assert (again.kind, again.value, again.position) == (Kind.DONE, first.value, first.position)
    assert again.is_repeat
    assert not first.is_repeat
    assert rows(replica) == [("n", 3)]


def test_a_number_twice_in_one_entry_is_applied_once(replica):
    found = applied(replica, ("me", 1, 3), ("me", 1, 3))
    assert [outcome.is_repeat for outcome in found] == [False, True]
    assert rows(replica) == [("n", 3)]


def test_clients_count_for_themselves_and_numbers_may_overtake(replica):
    assert one(replica, 1, 5).kind is Kind.DONE
    assert one(replica, 1, 4).kind is Kind.DONE
    assert one(replica, 1, 5, client="other").kind is Kind.DONE
    assert rows(replica) == [("n", 3)]


def test_another_value_under_a_used_number_is_refused(replica):
    one(replica, 3, 1)
    assert one(replica, 4, 1).kind is Kind.OTHER_VALUE
    assert rows(replica) == [("n", 3)]


def test_a_number_whose_answer_is_forgotten_is_refused(replica):
    one(replica, 1, 1)
    one(replica, 1, 1 + hosting.ANSWERS_KEPT)
    assert one(replica, 1, 1).kind is Kind.FORGOTTEN
    assert one(replica, 1, 2).kind is Kind.DONE
    assert rows(replica) == [("n", 3)]


def test_a_number_that_was_overtaken_moves_no_bound(replica):
    one(replica, 1, 100)
    one(replica, 1, 90)
    assert one(replica, 1, 100 - hosting.ANSWERS_KEPT).kind is Kind.FORGOTTEN


def test_clients_that_wrote_longest_ago_are_forgotten(replica, monkeypatch):
    monkeypatch.setattr(hosting, "CLIENTS_MAX", 3)
    for client in "abacd":
        one(replica, 1, rows(replica, "SELECT count(*) FROM penstock_answer")[0][0], client)
    clients = rows(replica, "SELECT client FROM penstock_client ORDER BY client")
    assert clients == [("a",), ("c",), ("d",)]
    assert rows(replica, "SELECT DISTINCT client FROM penstock_answer ORDER BY 1") == clients


def test_a_refused_entry_changes_nothing_and_its_answer_is_kept(replica):
    for _ in range(2):
        outcome = one(replica, 13, 1)
        assert (outcome.kind, entries.unpack(outcome.value)) == (Kind.REFUSED, "not thirteen")
    assert rows(replica) == []


def test_an_error_of_the_machine_changes_nothing_and_is_kept_by_its_type(replica, caplog):
    outcome = one(replica, 14, 1)
    assert (outcome.kind, entries.unpack(outcome.value)) == (Kind.FAILED, "KeyError")
    assert rows(replica) == []
    assert "a text that may differ" in caplog.text


def test_an_error_of_this_machine_alone_stops_it(replica):
    with pytest.raises(FatalStorageError, match="OSError"):
        one(replica, 15, 1)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT random()",
        "SELECT hex(randomblob(8))",
        "SELECT datetime('now')",
        "SELECT unixepoch()",
        "SELECT CURRENT_TIMESTAMP",
        "INSERT INTO counter SELECT 'x', changes()",
        "BEGIN",
        "PRAGMA synchronous = OFF",
        "ATTACH ':memory:' AS other",
        "CREATE TABLE other (a INTEGER PRIMARY KEY)",
        "DROP TABLE counter",
        "DELETE FROM penstock_answer",
        "UPDATE replica SET position = 7",
        "INSERT INTO local VALUES ('a', 1)",
    ],
)
def test_what_could_differ_or_end_the_transaction_is_refused(replica, sql):
    one(replica, 1, 1)
    outcome = one(replica, sql, 2)
    assert outcome.kind is Kind.FAILED
    assert entries.unpack(outcome.value) in ("DatabaseError", "OperationalError")
    assert rows(replica) == [("n", 1)]


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
def test_a_machine_that_ends_its_transaction_is_refused_or_stops(replica, sql):
    """SQLite asks who may prepare a statement, and the replica has prepared this one before."""
    one(replica, 1, 1)
    try:
        assert one(replica, sql, 2).kind is Kind.FAILED
    except FatalStorageError as error:
        assert "ended the transaction" in str(error)
    assert rows(replica) in ([("n", 1)], [("before", 1), ("n", 1)])


def test_plain_statements_are_allowed(replica):
    one(replica, 4, 1)
    sql = "WITH RECURSIVE t(a) AS (SELECT n FROM counter UNION SELECT a - 1 FROM t WHERE a > 2)"
    outcome = one(replica, f"{sql} SELECT abs(a) FROM t ORDER BY a", 2)
    assert entries.unpack(outcome.value) == [[1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("CREATE TABLE a (b TEXT);", "no primary key"),
        ("CREATE TABLE a (b INTEGER PRIMARY KEY AUTOINCREMENT);", "AUTOINCREMENT"),
        ("CREATE VIRTUAL TABLE a USING fts5(b);", "plain tables"),
        ("CREATE TABLE a (b INTEGER PRIMARY KEY); CREATE VIEW c AS SELECT * FROM a;", "a view"),
    ],
)
def test_a_schema_that_cannot_be_compared_is_refused(tmp_path, schema, found):
    class Unfit(Machine):
        pass

    Unfit.schema = schema
    with pytest.raises(InvalidRequestError, match=found):
        Replica.open(tmp_path / "s.sqlite", HostedMachine(Unfit()), keeps_journal=False)


def test_a_migration_brings_tables_along(tmp_path, replica):
    one(replica, 4, 1)
    replica.close()

    class Newer(Counters):
        name = "counters"
        version = 2

        def migrate(self, connection, from_version):
            assert from_version == 1
            connection.execute("ALTER TABLE counter ADD COLUMN since INTEGER NOT NULL DEFAULT 7")

    newer = Replica.open(replica.path, HostedMachine(Newer()), keeps_journal=False)
    try:
        assert rows(newer) == [("n", 4, 7)]
    finally:
        newer.close()


def test_the_tables_of_another_service_are_refused(replica):
    replica.close()

    class Other(Counters):
        pass

    with pytest.raises(InvalidRequestError, match="is of counters, this is other"):
        Replica.open(replica.path, HostedMachine(Other()), keeps_journal=False)


def test_replicas_of_the_same_entries_are_equal(tmp_path, replica):
    other = Replica.open(
        tmp_path / "t.sqlite", HostedMachine(Counters()), fsync=False, keeps_journal=False
    )
    try:
        for made in (replica, other):
            for number, value in enumerate((1, 13, 14, "SELECT random()", 2)):
                one(made, value, number)
        assert replica.digest() == other.digest()
    finally:
        other.close()


def test_a_statement_of_the_own_tables_is_no_users(replica):
    one(replica, 1, 1)
    assert isinstance(replica._connection, sqlite3.Connection)
    assert rows(replica, "SELECT count(*) FROM penstock_answer") == [(1,)]
