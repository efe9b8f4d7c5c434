"""Snapshots, the journal's end, and databases of earlier positions."""

import sqlite3

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.authz.service import keeping
from penstock.authz.service.keeping import keep, recover, snapshots
from penstock.authz.state.entries import Begin, Entry, encode
from penstock.authz.state.environment import EnvironmentMachine
from penstock.model.errors import ConflictError, NotFoundError
from penstock.replica.replica import Replica
from support.authz import POLICY, delete, insert, set_policy, write

START_MS = 1_800_000_000_000
LOG = b"recovery"


def commands(count):
    """Each entry stores a fact; every third deletes the one before."""
    yield Begin(b"firstlog")
    yield set_policy(POLICY, 0)
    for number in range(3, count + 1):
        name = f"User:{number - number % 3}"
        change = delete if number % 3 == 2 else insert
        yield write(change("has_role", name, "admin", "Organization:o"))


def roles(path):
    connection = sqlite3.connect(path)
    try:
        (table,) = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
            " AND name LIKE 'fact_has_role_user_string_organization%'"
        ).fetchone()
        return set(connection.execute(f"SELECT * FROM {table}"))
    finally:
        connection.close()


def log_of(path):
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT log FROM environment").fetchone()[0]
    finally:
        connection.close()


def append_all(path, count, folder=None, every=0):
    replica = Replica.open(path, EnvironmentMachine("default"), fsync=False)
    for number, command in enumerate(commands(count), 1):
        body = encode(Entry("default", (command,)))
        replica.append(body, stamp_ms=START_MS + number * 1_000)
        if every and number % every == 0:
            keep(replica, folder)
    return replica


def first_kept(path):
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT min(position) FROM journal").fetchone()[0]
    finally:
        connection.close()


def test_the_last_two_snapshots_and_the_journal_since_are_kept(tmp_path):
    replica = append_all(tmp_path / "a.sqlite", 45, tmp_path / "snapshots", 10)
    assert [at for at, _ in snapshots(tmp_path / "snapshots")] == [30, 40]
    assert first_kept(tmp_path / "a.sqlite") == 31
    replica.close()
    # It opens again, and goes on.
    again = Replica.open(tmp_path / "a.sqlite", EnvironmentMachine("default"))
    assert again.position == 45
    again.close()


@settings(deadline=None, max_examples=12)
@given(st.integers(3, 45), st.sampled_from([0, 10, 20]))
@example(30, 10)  # the oldest snapshot's own position, whose entry is dropped
def test_any_kept_position_is_recovered_as_it_was(tmp_path_factory, position, every):
    folder = tmp_path_factory.mktemp("recover")
    replica = append_all(folder / "a.sqlite", 45, folder / "snapshots", every)
    oldest = snapshots(folder / "snapshots")[0][0] if every else 1
    output = folder / "b.sqlite"

    def recovered(**until):
        return recover(
            folder / "a.sqlite",
            folder / "snapshots",
            output,
            name="default",
            log=LOG,
            stamp_ms=START_MS,
            **until,
        )

    if position < oldest:
        with pytest.raises(NotFoundError, match=f"{oldest} to 45 are"):
            recovered(position=position)
        assert not output.exists()
    else:
        append_all(folder / "expected.sqlite", position).close()
        assert recovered(time_ms=START_MS + position * 1_000 + 500) == position
        assert roles(output) == roles(folder / "expected.sqlite")
        assert log_of(output) == LOG
        # It is a whole database, that goes on in a history of its own.
        again = Replica.open(output, EnvironmentMachine("default"))
        assert again.position == position + 1
        again.close()
        with pytest.raises(ConflictError):
            recovered(position=position)
    replica.close()


def test_a_position_that_is_not_there_yet_is_refused(tmp_path):
    replica = append_all(tmp_path / "a.sqlite", 5)
    with pytest.raises(NotFoundError, match="position 6 isn't kept; 1 to 5 are"):
        recover(
            tmp_path / "a.sqlite",
            tmp_path / "snapshots",
            tmp_path / "b.sqlite",
            name="default",
            log=LOG,
            stamp_ms=START_MS,
            position=6,
        )
    replica.close()


def test_other_files_are_not_snapshots(tmp_path):
    (tmp_path / "x.snapshot").touch()
    (tmp_path / "new").touch()
    (tmp_path / f"{7:020d}{keeping.SUFFIX}").touch()
    assert [at for at, _ in snapshots(tmp_path)] == [7]
