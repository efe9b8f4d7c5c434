"""Journal time: no single clock moves it, and a replay gives the same times and state."""

import re
import sqlite3
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.ids import TopicKey, partition_key
from penstock.replica.replica import Replica
from penstock.state.answers import JournalTimeSet, Refused
from penstock.state.apply.journal_clock import TIMED
from penstock.state.apply.machine import EntryOutcome, LogMachine
from penstock.state.command import OffsetWrite
from penstock.state.commands import (
    AnyCommand,
    CommitOffsets,
    CommitRuns,
    CondemnObjects,
    CreateTopic,
    InitCluster,
    Noop,
    RegisterAgent,
    RunCommit,
    SaveGroup,
    SetFeatureLevel,
    SetJournalTime,
)
from penstock.state.entries import Entry, encode_entry
from penstock.state.pipeline_commands import OpenJob, SaveTable
from penstock.state.schema import INTEGRITY_LEVEL, SCHEMA
from support.examples import examples

DAY = 86_400_000
NOW = 1_790_000_000_000
AGREEMENT = 5_000


class Journal:
    """Rows of one agent, by a journal and an agent that have a clock each."""

    def __init__(
        self,
        directory: Path,
        *,
        level: int = INTEGRITY_LEVEL,
        level_max: int = INTEGRITY_LEVEL,
        stamp_ms: int = 0,
    ) -> None:
        self.replica: Replica[EntryOutcome] = Replica.open(
            directory / "state.sqlite", LogMachine(), fsync=False
        )
        self._n = 0
        self.rows: list[tuple[int, bytes]] = []
        self.send(
            InitCluster(cluster_id="c"),
            RegisterAgent(agent=1, labels={}, software="", level_max=level_max),
            SetFeatureLevel(level=level),
            stamp_ms=stamp_ms,
            agent_ms=stamp_ms,
        )

    def send(self, *commands: AnyCommand, stamp_ms: int, agent_ms: int) -> EntryOutcome:
        entry = Entry(agent=1, epoch=1, n=self._n, stamp_ms=agent_ms, commands=list(commands))
        self._n += 1
        return self.take(stamp_ms, encode_entry(entry))

    def seal(self, *, stamp_ms: int) -> None:
        self.take(stamp_ms, b"")

    def take(self, stamp_ms: int, body: bytes) -> EntryOutcome:
        self.rows.append((stamp_ms, body))
        return self.replica.apply(body, stamp_ms=stamp_ms).outcome

    @property
    def time_ms(self) -> int:
        return self.replica.time_ms

    def close(self) -> None:
        self.replica.close()


clocks = st.integers(0, 5) | st.integers(4_990, 5_010) | st.integers(-20_000, 20_000)
wrong = st.integers(-4_000 * DAY, 4_000 * DAY) | clocks


@pytest.mark.slow
@given(rows=st.lists(st.tuples(wrong, wrong, st.booleans()), max_size=8))
def test_time_is_raised_to_at_most_what_both_clocks_say(rows: list[tuple[int, int, bool]]) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(closing(Journal(directory)))
        for journal_off, agent_off, sealed in rows:
            before = journal.time_ms
            if sealed:
                journal.seal(stamp_ms=NOW + journal_off)
                assert journal.time_ms == before
                continue
            journal.send(Noop(), stamp_ms=NOW + journal_off, agent_ms=NOW + agent_off)
            assert journal.time_ms >= before
            assert journal.time_ms <= max(before, NOW + journal_off)
            assert journal.time_ms <= max(before, NOW + agent_off + AGREEMENT)
            if agent_off + AGREEMENT >= journal_off:
                assert journal.time_ms == max(before, NOW + journal_off)
        assert_replays_equal(journal, directory)


@pytest.mark.slow
@settings(max_examples=examples(0.5))
@given(rows=st.lists(st.tuples(wrong, wrong, st.booleans()), max_size=6))
def test_below_the_level_time_is_the_greatest_stamp(rows: list[tuple[int, int, bool]]) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(closing(Journal(directory, level=INTEGRITY_LEVEL - 1)))
        greatest = journal.time_ms
        for journal_off, agent_off, sealed in rows:
            if sealed:
                journal.seal(stamp_ms=NOW + journal_off)
            else:
                journal.send(Noop(), stamp_ms=NOW + journal_off, agent_ms=NOW + agent_off)
            greatest = max(greatest, NOW + journal_off)
            assert journal.time_ms == greatest
        assert_replays_equal(journal, directory)


def assert_replays_equal(journal: Journal, directory: Path) -> None:
    """By the rows as a shared journal keeps them, and by journal times as an embedded one does."""
    entries = list(journal.replica.journal_after(0))
    digest = journal.replica.digest()
    for name, rows in (
        ("rows", journal.rows),
        ("times", [(entry.time_ms, entry.body) for entry in entries]),
    ):
        with closing(Replica.open(directory / name, LogMachine(), fsync=False)) as again:
            for (stamp_ms, body), entry in zip(rows, entries, strict=True):
                applied = again.apply(body, stamp_ms=stamp_ms)
                assert (applied.position, applied.time_ms) == (entry.position, entry.time_ms)
            assert again.digest() == digest


moves = st.sampled_from([-30 * DAY, -20_000, -1_000, 0, 0, 1_000, 20_000, 30 * DAY])


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(moves, moves, st.booleans(), moves), min_size=1, max_size=10),
)
def test_only_clocks_that_agree_set_time_back(rows: list[tuple[int, int, bool, int]]) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = stack.enter_context(closing(Journal(directory)))
        for journal_off, agent_off, is_set, asked_off in rows:
            before = journal.time_ms
            stamp, own, asked = NOW + journal_off, NOW + agent_off, NOW + asked_off
            if not is_set:
                journal.send(Noop(), stamp_ms=stamp, agent_ms=own)
                assert journal.time_ms >= before
                continue
            (answer,) = journal.send(
                SetJournalTime(time_ms=asked, rows_max=10, begins=True),
                stamp_ms=stamp,
                agent_ms=own,
            ).answers
            agree = max(stamp, own, asked) - min(stamp, own, asked) <= AGREEMENT
            if agree and before > asked + AGREEMENT:
                assert journal.time_ms == asked
            else:
                assert journal.time_ms >= before
            assert isinstance(answer, Refused) == (journal.time_ms > asked + AGREEMENT)
        assert_replays_equal(journal, directory)


def test_times_come_down_in_bounded_entries(tmp_path: Path) -> None:
    """Two rows per entry, of every table that holds times; what was written in time stays."""
    with closing(Journal(tmp_path, stamp_ms=NOW)) as journal:
        send = journal.send
        for off in (0, 30 * DAY):
            writes: list[AnyCommand] = [
                *(
                    CreateTopic(name=f"t{off}{n}", topic_id=b"%016d" % (off + n), partitions=1)
                    for n in range(2)
                ),
                CondemnObjects(keys=[f"o{off}{n}" for n in range(3)]),
                *(
                    SaveGroup(
                        group_id=f"g{off}{n}",
                        generation=1,
                        protocol_type="",
                        empty=n > 0,
                        state=b"",
                    )
                    for n in range(3)
                ),
                CommitOffsets(
                    group_id=f"g{off}0",
                    offsets=[OffsetWrite(topic_id=b"%016d" % off, partition=0, offset=1)],
                ),
                CommitRuns(
                    runs=[
                        RunCommit(
                            partition_key=partition_key(TopicKey(1), 0),
                            position=0,
                            batches=[100, 1, NOW + 60 * DAY, off, 0, 0],
                        )
                    ],
                    wal=1,
                ),
                OpenJob(kind="k", name="n", lease_ms=DAY, age_max_ms=DAY),
                SaveTable(
                    topic_id=b"%016d" % off, table="t", offsets=[0, 1], snapshot_id=1, state=""
                ),
            ]
            outcome = send(*writes, stamp_ms=NOW + off, agent_ms=NOW + off)
            assert not [one for one in outcome.answers if isinstance(one, Refused)], outcome
        before = times(journal)
        assert {table for table, _ in before} == {
            "objects", "producers", "groups", "group_offsets", "pipeline_jobs", "table_progress"
        }  # fmt: skip
        answers: list[JournalTimeSet] = []
        while not answers or not answers[-1].is_done:
            command = SetJournalTime(time_ms=NOW + 1, rows_max=2, begins=not answers)
            (answer,) = send(command, stamp_ms=NOW + 1, agent_ms=NOW + 1).answers
            assert isinstance(answer, JournalTimeSet), answer
            assert answer.rows <= 2
            answers.append(answer)
        assert journal.time_ms == NOW + 1
        after = times(journal)
        assert after == [
            (table, tuple(found if found is None else min(found, NOW + 1) for found in row))
            for table, row in before
        ]
        assert sum(answer.rows for answer in answers) == sum(
            max(filter(None, row), default=0) > NOW + 1 for _, row in before
        )
        send(Noop(), stamp_ms=NOW + 5, agent_ms=NOW + 5)
        assert journal.time_ms == NOW + 5
        assert_replays_equal(journal, tmp_path)


def times(journal: Journal) -> list[tuple[str, tuple[int | None, ...]]]:
    """(table, times) of all rows that have any."""
    journal.replica.commit()
    with closing(sqlite3.connect(journal.replica.path)) as connection:
        return [
            (timed.table, row)
            for timed in TIMED
            for row in connection.execute(
                f"SELECT {', '.join(timed.times)} FROM {timed.table}"
                f" ORDER BY {', '.join(timed.key)}"
            )
        ]


def test_every_column_with_a_time_of_the_journal_is_walked_and_documented() -> None:
    """A new one is added to `TIMED` and to the page, or to those that hold no time of the
    journal."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in SCHEMA:
            connection.execute(statement)
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        found = {
            (table, column)
            for table in tables
            for _, column, *_ in connection.execute(f"PRAGMA table_info({table})")
            if re.search(r"_ms$|time|stamp|since|_at$", column)
        }
        for timed in TIMED:
            keys = [
                (place, column)
                for _, column, _, _, _, place in connection.execute(
                    f"PRAGMA table_info({timed.table})"
                )
                if place
            ]
            assert tuple(column for _, column in sorted(keys)) == timed.key
    walked = {(timed.table, column) for timed in TIMED for column in timed.times}
    no_times_of_the_journal = {
        ("object_runs", "max_timestamp"),
        ("wal_runs", "max_timestamp"),
        ("pipeline_jobs", "lease_ms"),
        ("pipeline_jobs", "age_max_ms"),
        ("lost_histories", "stamp_ms"),
        ("transactions", "timeout_ms"),
    }
    assert found - no_times_of_the_journal == walked
    page = (Path(__file__).parents[3] / "docs/formats/journal.md").read_text("utf-8")
    section = page.split("### Set back", 1)[1].split("\n## ", 1)[0]
    listed = {
        (table, column)
        for table, columns in re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
        for column in re.findall(r"`(\w+)`", columns)
    }
    assert listed == walked
