"""Lost histories in the state: what is noted, what is held while one is open, what closes it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.replica.replica import Replica
from penstock.state.answers import (
    AnyAnswer,
    Condemned,
    Done,
    HistoryNoted,
    JobOpened,
    ProducerIds,
    Refusal,
    Refused,
    WalClaimed,
)
from penstock.state.apply.histories import CLOSED_KEPT
from penstock.state.apply.machine import EntryOutcome, LogMachine
from penstock.state.commands import (
    AllocateProducerIds,
    AnyCommand,
    ClaimWal,
    CloseHistory,
    CommitRuns,
    CondemnObjects,
    CreateTopic,
    NoteLostHistory,
    RegisterAgent,
    RunCommit,
    SetFeatureLevel,
    TrimLog,
)
from penstock.state.entries import Entry, encode_entry
from penstock.state.meta import COUNTERS, NEXT_WAL_KEY
from penstock.state.pipeline_commands import OpenJob
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.restored import begin_restored
from penstock.state.rows import HistoryOutcome, LostReason
from support.simulated.randomness import SeededRandom

KEY = 1 << 20


class Rig:
    """One agent's entries, applied."""

    def __init__(self, path: Path, level: int) -> None:
        self.machine = LogMachine()
        self.replica: Replica[EntryOutcome] = Replica.open(path, self.machine, fsync=False)
        self.view = StateView()
        self._n = -1
        self.send(
            RegisterAgent(agent=1, level_max=4),
            SetFeatureLevel(level=level),
            CreateTopic(name="t", topic_id=bytes(16), partitions=1),
        )
        self.queries = Queries(path)
        self.view.reload(self.queries)

    def send(self, *commands: AnyCommand) -> list[AnyAnswer]:
        self._n += 1
        entry = Entry(agent=1, epoch=1, n=self._n, stamp_ms=1_000 + self._n, commands=[*commands])
        outcome = self.replica.append(encode_entry(entry), stamp_ms=1_000 + self._n).outcome
        self.view.apply(outcome.changes)
        return outcome.answers

    def one(self, command: AnyCommand) -> AnyAnswer:
        (answer,) = self.send(command)
        return answer

    def close(self) -> None:
        self.queries.close()
        self.replica.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "metadata.sqlite", 4)
    yield made
    made.close()


def lost(start: int, end: int, *, crc: int = 7, stamp_ms: int = 5) -> NoteLostHistory:
    return NoteLostHistory(
        start=start, end=end, stamp_ms=stamp_ms, crc=crc, reason=LostReason.REPLICA
    )


def refusal(answer: AnyAnswer) -> Refusal:
    assert isinstance(answer, Refused), answer
    return answer.reason


def test_an_unknown_key_is_not_condemned_while_a_history_is_open(rig: Rig) -> None:
    """It may hold acknowledged records of that history: to this state they look like orphans."""
    batches = [70, 1, 0, -1, -1, -1]
    run = RunCommit(partition_key=KEY, position=0, batches=batches)
    rig.send(CommitRuns(runs=[run], object_key="known", object_bytes=99, raw=True))
    assert rig.one(CondemnObjects(keys=["before"])) == Condemned(["before"])
    assert rig.one(lost(3, 9)) == HistoryNoted(1)
    assert list(rig.view.open_histories) == [1]
    rig.send(TrimLog(items=[KEY, -1]))
    assert rig.one(CondemnObjects(keys=["orphan", "known", "before"])) == Condemned(
        ["known", "before"]
    )
    assert not rig.queries.object_known("orphan")
    rig.machine.drop_caches()
    assert rig.one(CondemnObjects(keys=["orphan"])) == Condemned([])
    position = rig.replica.position
    assert rig.one(CloseHistory(history=1, seen_position=position, records=3)) == Done()
    assert not rig.view.open_histories
    assert rig.one(CondemnObjects(keys=["orphan"])) == Condemned(["orphan"])
    (row,) = rig.queries.lost_histories()
    assert (row.start, row.end, row.outcome, row.records) == (3, 9, HistoryOutcome.APPENDED, 3)


def test_one_that_is_found_twice_is_one_and_what_overlaps_makes_it_larger(rig: Rig) -> None:
    assert rig.one(lost(3, 9)) == HistoryNoted(1)
    noted = rig.queries.lost_histories()
    assert rig.one(lost(5, 9)) == HistoryNoted(1), "found by another agent, too"
    assert rig.queries.lost_histories() == noted
    seen = rig.replica.position
    assert rig.one(lost(2, 12, crc=8)) == HistoryNoted(1)
    (row,) = rig.queries.lost_histories()
    assert (row.start, row.end, row.crc) == (2, 12, 8)
    assert rig.one(lost(20, 21)) == HistoryNoted(2)
    # The operator looked at less than there is now.
    assert refusal(rig.one(CloseHistory(history=1, seen_position=seen))) is Refusal.HISTORY_GREW
    assert refusal(rig.one(CloseHistory(history=3, seen_position=seen))) is (
        Refusal.UNKNOWN_HISTORY
    )
    position = rig.replica.position
    assert rig.one(CloseHistory(history=1, seen_position=position, give_up=True)) == Done()
    assert rig.one(CloseHistory(history=1, seen_position=0)) == Done(), "it is closed already"
    assert list(rig.view.open_histories) == [2]
    # An agent that comes back later with the replica of a closed history opens nothing.
    assert rig.one(lost(2, 12, crc=8)) == HistoryNoted(1)
    assert [row.outcome for row in rig.queries.lost_histories()] == [
        HistoryOutcome.GIVEN_UP,
        HistoryOutcome.OPEN,
    ]
    assert rig.one(lost(2, 12, crc=9)) == HistoryNoted(3)


def test_what_the_lost_rows_gave_out_is_not_given_out_again(rig: Rig) -> None:
    """Their producers, drivers and WAL directories go on."""

    def given_out(number: int) -> tuple[int, int, int]:
        pids, job, wal = rig.send(
            AllocateProducerIds(count=10),
            OpenJob(kind="k", name="n", lease_ms=1, age_max_ms=1),
            ClaimWal(wal_id=bytes([number]) * 16),
        )
        assert isinstance(pids, ProducerIds)
        assert isinstance(job, JobOpened)
        assert isinstance(wal, WalClaimed)
        return pids.first, job.job, wal.wal_key

    assert [given_out(number) for number in range(2)] == [(0, 1, 1), (10, 2, 2)]
    rig.send(lost(3, 9))
    after = (20 + (1 << 32), 3 + (1 << 20), 3 + (1 << 10))
    assert given_out(2) == after
    # Found by another agent, too: nothing was given out since that the lost rows could know.
    rig.send(lost(3, 9))
    assert given_out(3) == (after[0] + 10, after[1] + 1, after[2] + 1)
    # It was longer than was known.
    rig.send(lost(3, 12, crc=8))
    assert given_out(4)[0] == after[0] + 20 + (1 << 32)


def test_numbers_move_only_while_there_is_room(rig: Rig) -> None:
    near = COUNTERS[NEXT_WAL_KEY].limit - (1 << 10)
    rig.machine.tables.set_meta(NEXT_WAL_KEY, near)
    rig.send(lost(3, 9))
    assert rig.machine.tables.meta_int(NEXT_WAL_KEY) == near


def test_rows_of_closed_histories_are_bounded(rig: Rig) -> None:
    for number in range(1, CLOSED_KEPT + 6):
        assert rig.one(lost(3, 9, crc=number)) == HistoryNoted(number)
        rig.send(CloseHistory(history=number, seen_position=rig.replica.position))
    kept = [row.history for row in rig.queries.lost_histories()]
    assert kept == list(range(6, CLOSED_KEPT + 6))


@pytest.mark.parametrize(
    "command",
    [
        lost(0, 3),
        lost(3, 2),
        lost(1, 1 << 63),
        lost(1, 2, crc=1 << 32),
        lost(1, 2, crc=-1),
        lost(1, 2, stamp_ms=1 << 63),
        NoteLostHistory(start=1, end=2, stamp_ms=0, crc=0, reason=0),
        CloseHistory(history=1, seen_position=1 << 63),
        CloseHistory(history=1, seen_position=1, records=-1),
    ],
)
def test_numbers_that_are_none_are_refused(rig: Rig, command: AnyCommand) -> None:
    assert refusal(rig.one(command)) is Refusal.MALFORMED
    assert refusal(rig.one(CloseHistory(history=1 << 63, seen_position=1))) is (
        Refusal.UNKNOWN_HISTORY
    )


def test_below_level_4_nothing_of_it_is_applied(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "metadata.sqlite", 3)
    assert refusal(rig.one(lost(1, 2))) is Refusal.LEVEL_NOT_ON
    assert refusal(rig.one(CloseHistory(history=1, seen_position=1))) is Refusal.LEVEL_NOT_ON
    assert rig.one(CondemnObjects(keys=["orphan"])) == Condemned(["orphan"])
    rig.close()


def test_a_restored_log_has_no_history_of_its_parent(tmp_path: Path) -> None:
    """Its keeper would wait for ever for an operator to close what only the parent can repair."""
    rig = Rig(tmp_path / "metadata.sqlite", 4)
    rig.send(lost(3, 9))
    rig.close()
    path = tmp_path / "metadata.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        begin_restored(connection, now_ms=1, random=SeededRandom(1))
    with closing(Queries(path)) as queries:
        assert queries.lost_histories() == []
        view = StateView()
        view.reload(queries)
        assert not view.open_histories
    machine = LogMachine()
    with closing(Replica.open(path, machine, fsync=False)):
        machine.tables.ensure_loaded()
        assert machine.tables.meta_int("open_histories") == 0
