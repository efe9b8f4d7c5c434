"""What a restored state gives out: everything apart from its parent's, and all of it listed."""

import itertools
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.epochs import EPOCH_ORIGIN_MS, epoch_floor
from penstock.replica.replica import Replica
from penstock.state.apply.machine import LogMachine
from penstock.state.meta import COUNTERS, EPOCH_FLOOR, HISTORIES, LEADER_EPOCH, META_NAMES
from penstock.state.restored import begin_restored
from penstock.state.schema import FORMAT_VERSION, SCHEMA
from penstock.state.tables import Tables
from support.simulated.randomness import SeededRandom

NOW_MS = EPOCH_ORIGIN_MS + 200_000_000_000
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "journal.md"


def empty_state() -> sqlite3.Connection:
    state = sqlite3.connect(":memory:")
    for statement in SCHEMA:
        state.execute(statement)
    state.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    return state


def meta_of(state: sqlite3.Connection) -> dict[str, int]:
    return dict(state.execute("SELECT name, value FROM meta"))


def test_a_generator_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    """Whoever adds one to the state decides what a restore does with it."""
    machine = LogMachine()
    with closing(Replica.open(tmp_path / "state.sqlite", machine, fsync=False)):
        machine.tables.ensure_loaded()
        with pytest.raises(AssertionError, match="list it in"):
            machine.tables.set_meta("next_something", 1)


@pytest.mark.slow
def test_nothing_is_written_to_meta_past_that_list() -> None:
    """Only `Tables`, which looks, and what restores do write there by SQL."""
    sources = Path(Tables.__module__.replace(".", "/")).parents[1]
    root = Path(__file__).parents[3] / "src" / sources
    writers = {
        path.name
        for path in root.rglob("*.py")
        if re.search(r"(INSERT|REPLACE)[^\"]*INTO meta|UPDATE meta", path.read_text("utf-8"))
    }
    assert writers == {"tables.py", "restored.py", "leader_epochs.py", "point_in_time.py"}


def test_the_page_lists_every_name_of_meta() -> None:
    """And says what each is after a restore."""
    text = PAGE.read_text("utf-8")
    section = text.split("### What is given out", 1)[1].split("\n### ", 1)[0]
    listed = re.findall(r"^\|[^|]*\|[^|]*`meta`: `(\w+)`", section, re.MULTILINE)
    assert set(listed) == META_NAMES


@given(
    st.lists(st.integers(0, 1 << 40), min_size=2, max_size=2),
    st.integers(min_value=0, max_value=1_000),
)
def test_counters_of_two_restores_and_of_the_parent_stay_apart(
    times: list[int], given_out: int
) -> None:
    """However many of each the parent gives out after the moment, and whatever the clocks say."""
    parent = empty_state()
    try:
        for name, counter in COUNTERS.items():
            parent.execute("INSERT INTO meta VALUES (?, ?)", (name, counter.first + given_out))
        parent.commit()
        before = meta_of(parent)
        restored = []
        for seed, time_ms in enumerate(times):
            state = sqlite3.connect(":memory:")
            state.deserialize(parent.serialize())
            begin_restored(state, now_ms=time_ms, random=SeededRandom(seed))
            restored.append(meta_of(state))
            # A restore of the restored one.
            begin_restored(state, now_ms=time_ms, random=SeededRandom(seed + 10))
            restored.append(meta_of(state))
            state.close()
        for name, counter in COUNTERS.items():
            values = sorted([before[name], *(meta[name] for meta in restored)])
            apart = [after - value for value, after in itertools.pairwise(values)]
            assert min(apart) > counter.limit >> 24, (name, values)
            assert values[0] == before[name]
            assert values[-1] < counter.limit
    finally:
        parent.close()


@pytest.mark.slow
def test_a_log_is_restored_from_a_restored_one_a_thousand_times() -> None:
    state = empty_state()
    seen = [meta_of(state)]
    for number in range(1_000):
        begin_restored(state, now_ms=NOW_MS + number, random=SeededRandom(number))
        seen.append(meta_of(state))
    state.close()
    for name, counter in COUNTERS.items():
        values = [meta.get(name, counter.first) for meta in seen]
        assert all(value + 10_000 < after for value, after in itertools.pairwise(values))
        assert values[-1] < counter.limit
    leader_epochs = [meta[LEADER_EPOCH] for meta in seen[1:]]
    assert leader_epochs == list(range(200_000_000, 200_001_000))
    assert leader_epochs[-1] < 1 << 31


def test_epochs_are_the_time_of_the_restore_and_never_go_back() -> None:
    state = empty_state()
    state.execute(
        "INSERT INTO agents (agent, epoch, labels, software, endpoint) VALUES (1, 7, '{}', '', '')"
    )
    expected = [
        # A clock that was never set: counted on.
        (0, 1, 7),
        (NOW_MS, 200_000_000, 200_000_000),
        (NOW_MS, 200_000_001, 200_000_000),
        (NOW_MS - 5_000, 200_000_002, 200_000_000),
        (NOW_MS + 60_000, 200_000_060, 200_000_060),
    ]
    for now_ms, leader_epoch, agents_floor in expected:
        begin_restored(state, now_ms=now_ms, random=SeededRandom(1))
        meta = meta_of(state)
        assert (meta[LEADER_EPOCH], meta[EPOCH_FLOOR]) == (leader_epoch, agents_floor), now_ms
    state.close()


def test_histories_and_digests_of_the_parent_are_not_the_restored_ones() -> None:
    """An open history would hold back every condemnation, and no archive of this cluster's has it
    to be closed with; an answer of a round would be compared with states of other positions."""
    state = empty_state()
    state.execute("INSERT INTO lost_histories VALUES (3, 40, 50, 1, 2, 0, 1, 45, 1, NULL, 0, 0)")
    state.execute("INSERT INTO digests VALUES (1, 7, 44, x'00')")
    for name in HISTORIES:
        state.execute("INSERT INTO meta VALUES (?, 3)", (name,))
    begin_restored(state, now_ms=NOW_MS, random=SeededRandom(1))
    for table in ("lost_histories", "digests"):
        assert state.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    assert not HISTORIES & meta_of(state).keys()
    state.close()


def test_the_floor_of_epochs_is_seconds_since_2020() -> None:
    assert epoch_floor(EPOCH_ORIGIN_MS + 1_999) == 1
    assert epoch_floor(0) == 0
    # A clock that runs wild leaves room for restores to count on in Kafka's int32.
    assert epoch_floor(1 << 62) + (1 << 28) < 1 << 31
