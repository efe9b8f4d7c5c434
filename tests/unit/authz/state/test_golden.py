"""Databases that a release wrote open in each later one, and a replay gives the same state."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.authz.facts import schema
from penstock.authz.polar.program import Signature
from penstock.authz.state import shard_entries, snapshot_sets
from penstock.authz.state.directory import DirectoryMachine
from penstock.authz.state.entries import Clear, Done, Entry, encode
from penstock.authz.state.environment import EnvironmentMachine
from penstock.authz.state.shard import ShardMachine
from penstock.authz.state.shard_entries import Placed, item
from penstock.authz.state.snapshot_sets import SnapshotSet
from penstock.order.outcome import Standing
from penstock.order.protocol import EntryKey
from penstock.replica.dump import state_digest
from penstock.replica.replica import Replica
from support.authz import insert, one, write

GOLDEN = Path(__file__).parents[3] / "golden" / "authz"
KINDS = {
    "environment": lambda: EnvironmentMachine("default"),
    "directory": DirectoryMachine,
    "shard": ShardMachine,
}
SET = (
    "0195ae676f6c64656e2d636c7573746572059207b0303132333435363738396162636465669309084d"
    "9193a764656661756c7404b066666666666666666666666666666666a7a8e869"
)
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


def test_a_shard_holds_what_was_ordered_and_goes_on(tmp_path):
    path = shutil.copyfile(GOLDEN / "shard-1.sqlite", tmp_path / "golden.sqlite")
    replica = Replica.open(path, ShardMachine())
    body = shard_entries.encode(EntryKey(1, 11, 2), 7, [item("default", Clear(b""))])
    outcome = replica.append(body, stamp_ms=0).outcome
    assert (outcome.standing, outcome.answers) == (Standing.APPLIED, [Placed(4, 0)])
    repeated = shard_entries.encode(EntryKey(2, 7, 1), 7, [item("default", Clear(b""))])
    outcome = replica.append(repeated, stamp_ms=0).outcome
    assert (outcome.standing, outcome.answers) == (Standing.REPEATED, [Placed(2, 0)])
    replica.close()
    connection = sqlite3.connect(path)
    rows = {
        table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
        for table in ("shard", "sender", "stream", "claim", "key")
    }
    pending = connection.execute("SELECT environment, position FROM pending").fetchall()
    connection.close()
    start_ms = 1_800_000_000_000
    assert rows == {
        "shard": [(1, "golden-cluster", b"history1", start_ms + 10)],
        "sender": [(1, 11, 2, 13), (2, 7, 2, 8)],
        "stream": [("default", 4)],
        "claim": [(1, 2, start_ms + 600_007)],
        "key": [("n1", "default", b"1" * 32, "admin", "first key", start_ms + 1)],
    }
    assert pending == [("default", position) for position in (1, 2, 3, 4)]


def test_a_set_of_snapshots_is_read_as_it_was_written():
    found = SnapshotSet(
        "golden-cluster", 5, (7, "0123456789abcdef"), (9, 8, 77), [("default", 4, "f" * 16)]
    )
    written = bytes.fromhex(SET)
    assert snapshot_sets.encode(found) == written
    assert snapshot_sets.decode(written, key="sets/" + "7".zfill(20) + "-0123456789abcdef") == found
