"""Journal time: no single clock moves it, and a replay gives the same times and state."""

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.apply import EntryOutcome, LogMachine
from penstock.metadata.commands import (
    AnyCommand,
    InitCluster,
    Noop,
    RegisterAgent,
    SetFeatureLevel,
)
from penstock.metadata.entries import Entry, encode_entry
from penstock.metadata.schema import INTEGRITY_LEVEL
from penstock.replica import Replica

DAY = 86_400_000
NOW = 1_790_000_000_000
AGREEMENT = 5_000


class Journal:
    """Rows of one agent, by a journal and an agent that have a clock each."""

    def __init__(self, directory: Path, *, level: int = INTEGRITY_LEVEL, stamp_ms: int = 0) -> None:
        self.replica: Replica[EntryOutcome] = Replica.open(
            directory / "state.sqlite", LogMachine(), fsync=False
        )
        self._n = 0
        self.rows: list[tuple[int, bytes]] = []
        self.send(
            InitCluster(cluster_id="c"),
            RegisterAgent(agent=1, labels={}, software="", level_max=INTEGRITY_LEVEL),
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


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=30, deadline=None)
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
