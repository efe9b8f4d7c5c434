"""Databases that a release wrote open in each later one, and a replay gives the same state."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.authz.facts import schema
from penstock.authz.polar.program import Signature
from penstock.authz.state.directory import DirectoryMachine
from penstock.authz.state.entries import Done, Entry, encode
from penstock.authz.state.environment import EnvironmentMachine
from penstock.replica import Replica, state_digest
from support.authz import insert, one, write

GOLDEN = Path(__file__).parents[3] / "golden" / "authz"
KINDS = {
    "environment": lambda: EnvironmentMachine("default"),
    "directory": DirectoryMachine,
}
FILES = sorted(GOLDEN.glob("*.sqlite"))


def digest(path):
    connection = sqlite3.connect(path)
    try:
        return state_digest(connection)
    finally:
        connection.close()


def test_there_is_one_of_each_kind():
    assert {path.name.partition("-")[0] for path in FILES} == set(KINDS)


@pytest.mark.parametrize("golden", FILES, ids=lambda path: path.stem)
def test_a_replay_of_its_journal_gives_its_state(golden, tmp_path):
    make = KINDS[golden.name.partition("-")[0]]
    path = shutil.copyfile(golden, tmp_path / "golden.sqlite")
    replica = Replica.open(path, make())
    journal = list(replica.journal_after(0))
    replica.close()
    again = Replica.open(tmp_path / "again.sqlite", make(), fsync=False)
    for entry in journal:
        again.apply(entry.body, stamp_ms=entry.time_ms)
    again.commit()
    again.close()
    assert digest(path) == digest(tmp_path / "again.sqlite")


def test_an_environment_holds_what_was_written_and_goes_on(tmp_path):
    path = shutil.copyfile(GOLDEN / "environment-1.sqlite", tmp_path / "golden.sqlite")
    replica = Replica.open(path, EnvironmentMachine("default"))
    role = Signature("has_role", ("User", "String", "Organization"))
    body = write(insert("has_role", "User:c", "member", "Organization:o"))
    outcome = replica.append(encode(Entry("default", (body,))), stamp_ms=0).outcome
    assert one(outcome) == Done(6, 1)
    replica.close()
    connection = sqlite3.connect(path)
    assert sorted(connection.execute(schema.select(role, ()))) == [
        ("c", "member", "o"),
        ("größe", "admin", "o"),
    ]
    assert connection.execute("SELECT max(version) FROM policy").fetchone() == (2,)
    connection.close()
