"""Rounds of digests in the state: who is asked, whose answer counts."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.order.outcome import Standing
from penstock.replica.replica import Replica
from penstock.state.answers import Done, Refusal, Refused
from penstock.state.apply.machine import EntryOutcome, LogMachine
from penstock.state.commands import (
    AskDigest,
    Fence,
    RegisterAgent,
    ReportDigest,
    SetFeatureLevel,
)
from penstock.state.entries import Entry, encode_entry
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.restored import begin_restored
from penstock.state.schema import INTEGRITY_LEVEL, PIPELINE_LEVEL
from support.simulated.randomness import SeededRandom
from unit.state.test_digest_plan import digest


class Journal:
    """Agents 1 to 3 on one replica, and a view that follows it."""

    def __init__(self, path: Path, *, level: int = INTEGRITY_LEVEL) -> None:
        self.path = path
        self.replica = Replica.open(path, LogMachine(), fsync=False, keeps_journal=False)
        self.view = StateView()
        self._n: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        """Of agents that have begun another than their first."""
        for agent in (1, 2, 3):
            self.send(agent, RegisterAgent(agent=agent, level_max=INTEGRITY_LEVEL))
        self.send(1, SetFeatureLevel(level=level))

    def send(self, agent: int, *commands: Any) -> EntryOutcome:
        n = self._n[agent] = self._n.get(agent, -1) + 1
        epoch = self.epochs.get(agent, 1)
        entry = Entry(agent=agent, epoch=epoch, n=n, stamp_ms=1, commands=list(commands))
        outcome = self.replica.apply(encode_entry(entry), stamp_ms=1).outcome
        assert outcome.standing is Standing.APPLIED
        self.view.apply(outcome.changes)
        return outcome

    def restart(self, agent: int) -> None:
        """Begin the agent's next epoch."""
        self.epochs[agent] = self.epochs.get(agent, 1) + 1
        self._n.pop(agent)
        self.send(agent, RegisterAgent(agent=agent, level_max=INTEGRITY_LEVEL))

    def ask(self, seen: int, agent: int = 1) -> int:
        """Its position."""
        outcome = self.send(agent, AskDigest(seen_position=seen))
        assert outcome.answers == [Done()]
        return self.replica.position if outcome.asks_digest else 0

    def check(self) -> None:
        """The view that followed is the one that is read."""
        self.replica.commit()
        queries = Queries(self.path)
        assert StateView.load(queries).digests == self.view.digests
        queries.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path / "metadata.sqlite")
    yield found
    found.check()
    found.replica.close()


def test_a_round_asks_the_live_agents_and_keeps_their_answers(journal: Journal) -> None:
    journal.send(1, Fence(agent=3, epoch=1, seen_position=journal.replica.position))
    position = journal.ask(0)
    assert position == journal.replica.position
    assert journal.view.digests.position == position
    assert journal.view.digests.epochs == {1: 1, 2: 1}
    for agent, found in ((1, digest()), (2, digest("b"))):
        outcome = journal.send(agent, ReportDigest(position=position, digest=found))
        assert outcome.answers == [Done()]
        assert not outcome.asks_digest
    assert journal.view.digests.answers == {1: digest(), 2: digest("b")}


def test_of_two_that_ask_at_once_one_is_heard(journal: Journal) -> None:
    first = journal.ask(0, agent=1)
    assert journal.ask(0, agent=2) == 0
    assert journal.view.digests.position == first
    second = journal.ask(first, agent=2)
    assert second > first
    # What is asked for now begins without answers.
    journal.send(1, ReportDigest(position=first, digest=digest()))
    assert journal.view.digests.answers == {}


def test_an_answer_that_nobody_waits_for_changes_nothing(journal: Journal) -> None:
    position = journal.ask(0)
    journal.check()
    before = journal.view.digests.answers.copy()
    for late in (position - 1, position + 1):
        outcome = journal.send(2, ReportDigest(position=late, digest=digest()))
        assert outcome.answers == [Done()]
    assert journal.view.digests.answers == before


@pytest.mark.parametrize(
    "tables",
    [
        [("t" * 65, b"d" * 32)],
        [("t", b"d" * 31)],
        [(f"t{number}", b"d" * 32) for number in range(101)],
    ],
)
def test_an_answer_is_bounded(journal: Journal, tables: list[tuple[str, bytes]]) -> None:
    position = journal.ask(0)
    found = digest()
    large = type(found)(digest_version=1, feature_level=4, format_version=5, tables=tables)
    outcome = journal.send(2, ReportDigest(position=position, digest=large))
    (answer,) = outcome.answers
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.MALFORMED
    (answer,) = journal.send(2, ReportDigest(position=1 << 63, digest=found)).answers
    assert isinstance(answer, Refused)


def test_an_agent_of_another_epoch_does_not_answer_for_the_one_that_was_asked(
    journal: Journal,
) -> None:
    """Its replica may be another since."""
    position = journal.ask(0)
    journal.restart(2)
    journal.send(2, ReportDigest(position=position, digest=digest("b")))
    assert journal.view.digests.answers == {}
    journal.send(1, ReportDigest(position=position, digest=digest()))
    assert list(journal.view.digests.answers) == [1]


def test_below_the_level_nothing_is_asked(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metadata.sqlite", level=PIPELINE_LEVEL)
    outcome = journal.send(1, AskDigest(seen_position=0))
    (answer,) = outcome.answers
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.LEVEL_NOT_ON
    assert not outcome.asks_digest
    journal.check()
    journal.replica.close()


def test_a_restored_log_has_no_round(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metadata.sqlite")
    position = journal.ask(0)
    for agent, found in ((1, digest()), (2, digest("b")), (3, digest("c"))):
        journal.send(agent, ReportDigest(position=position, digest=found))
    journal.replica.close()
    with closing(sqlite3.connect(journal.path)) as connection, connection:
        begin_restored(connection, now_ms=1, random=SeededRandom(1))
    with closing(Queries(journal.path)) as queries:
        assert queries.digests().position == 0
