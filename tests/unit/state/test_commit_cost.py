"""What a commit costs grows with what is in it, not with what is in the state.

Counted in instructions of SQLite's virtual machine, which no clock and no other process moves.
A scan of a table, or a look-up without an index, shows at once.
"""

import sqlite3
from pathlib import Path

import pytest

from penstock.model.ids import PARTITION_BITS
from penstock.replica.replica import Replica
from penstock.state import tables
from penstock.state.answers import Refused, SegmentStored
from penstock.state.apply.machine import LogMachine
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    AnyCommand,
    CommitOffsets,
    CommitRuns,
    CondemnObjects,
    CreateTopic,
    Heartbeat,
    MovedRun,
    RegisterAgent,
    RunCommit,
    SetFeatureLevel,
    StoreSegment,
    TrimLog,
)
from penstock.state.entries import Entry, encode_entry

TOPIC_ID = b"sixteen bytes id"
FIRST = 1 << PARTITION_BITS
TOUCHED = 16
"""Partitions that a commit touches."""


class Counted:
    """A replica with a state of some size, and how many instructions an entry takes there."""

    def __init__(self, path: Path, *, partitions: int, commits: int) -> None:
        self.machine = LogMachine()
        self.replica = Replica.open(path, self.machine, fsync=False)
        self.next_n = 0
        self.offsets: dict[int, int] = {}
        register = RegisterAgent(agent=1, level_max=2)
        topic = CreateTopic(name="t", topic_id=TOPIC_ID, partitions=partitions)
        self.append(register, SetFeatureLevel(level=2), topic)
        for number in range(commits):
            keys = range(FIRST, FIRST + partitions)
            self.append(self.runs(list(keys), object_key=f"old-{number}"))
            self.append(self.runs(list(keys), generation=1 + number))

    def runs(self, keys: list[int], *, object_key: str = "", generation: int = 0) -> CommitRuns:
        commits = []
        for number, key in enumerate(keys):
            self.offsets[key] = self.offsets.get(key, 0) + 1
            batches = [100, 1, 5, -1, -1, -1]
            position = 101 * number
            commits.append(RunCommit(partition_key=key, position=position, batches=batches))
        return CommitRuns(runs=commits, wal=generation, object_key=object_key, object_bytes=9)

    def append(self, *commands: AnyCommand) -> None:
        entry = Entry(agent=1, epoch=1, n=self.next_n, stamp_ms=1, commands=list(commands))
        outcome = self.replica.append(encode_entry(entry), stamp_ms=1).outcome
        self.replica.commit()
        self.next_n += 1
        for answer in outcome.answers:
            assert not isinstance(answer, Refused)
            if isinstance(answer, SegmentStored):
                assert answer.moved == len(commands[0].runs)  # type: ignore[union-attr]

    def instructions(self, *commands: AnyCommand) -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        connection: sqlite3.Connection = self.replica._connection
        connection.set_progress_handler(step, 1)
        try:
            self.append(*commands)
        finally:
            connection.set_progress_handler(None, 1)
        return count

    def kinds(self, touched: int) -> dict[str, int]:
        """Instructions by kind of entry, each about the same few partitions."""
        keys = list(range(FIRST, FIRST + touched))
        found = {"beat": self.instructions(Heartbeat())}
        before = dict(self.offsets)
        found["to wal"] = self.instructions(self.runs(keys, generation=900))
        moved = [
            MovedRun(
                partition_key=key, position=200 * at, runs=[before.get(key, 0), 900, 101 * at, 100]
            )
            for at, key in enumerate(keys)
        ]
        found["store"] = self.instructions(
            StoreSegment(object_key="new-segment", object_bytes=9, runs=moved)
        )
        found["to object"] = self.instructions(self.runs(keys, object_key="new-object"))
        found["trim"] = self.instructions(TrimLog(items=[v for key in keys for v in (key, 1)]))
        found["condemn"] = self.instructions(CondemnObjects(keys=["old-0", "orphan"]))
        writes = [OffsetWrite(topic_id=TOPIC_ID, partition=key - FIRST, offset=1) for key in keys]
        found["offsets"] = self.instructions(CommitOffsets(group_id="g", offsets=writes))
        return found

    def close(self) -> None:
        self.replica.close()


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    found = {}
    for name, partitions, commits, touched in (
        ("small", 40, 2, TOUCHED),
        ("large", 2_000, 6, TOUCHED),
        ("twice", 40, 2, 2 * TOUCHED),
    ):
        directory = tmp_path_factory.mktemp(name)
        counted = Counted(directory / "db", partitions=partitions, commits=commits)
        found[name] = counted.kinds(touched)
        counted.close()
    return found


KINDS = ("beat", "to wal", "store", "to object", "trim", "condemn", "offsets")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_the_state_costs_nothing(counts: dict[str, dict[str, int]], kind: str) -> None:
    # 150 times the runs.
    assert 0 < counts["large"][kind] <= 1.05 * counts["small"][kind]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("beat", "condemn")])
def test_twice_the_runs_cost_at_most_twice(counts: dict[str, dict[str, int]], kind: str) -> None:
    assert counts["twice"][kind] <= 2.1 * counts["small"][kind]


def test_past_its_bound_the_memory_of_heads_keeps_the_newer_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them given up at once, the next commits would read every head again."""
    monkeypatch.setattr(tables, "PARTITIONS_CACHED_MAX", 2 * TOUCHED)
    counted = Counted(tmp_path / "db", partitions=3 * TOUCHED, commits=0)
    older, between, newer = (
        list(range(FIRST + at * TOUCHED, FIRST + (at + 1) * TOUCHED)) for at in range(3)
    )
    for keys, kept in (
        (older, older),
        (between, older + between),
        (newer[:1], between + newer[:1]),
        (newer[1:], between + newer),
    ):
        counted.append(counted.runs(keys, object_key=f"o{keys[0]}"))
        assert list(counted.machine.tables.partitions) == kept
    # What was dropped is read again as it was written.
    counted.append(counted.runs(older, object_key="again"))
    assert [counted.offsets[key] for key in older] == [
        counted.machine.tables.partitions[key].next_offset for key in older
    ]
    counted.close()
