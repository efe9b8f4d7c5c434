"""A pass of retention looks at the partitions that may have outlived theirs, and at few others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.retention.oldest import RELOOK_PASSES, OldestRuns
from penstock.log.retention.plan import Held, new_log_start
from penstock.model.ids import PartitionKey
from penstock.model.topic_configs import topic_settings
from penstock.state.read.queries import Queries, StoredRun
from support.log_rig import Rig
from unit.log.test_retention_plan import runs

PARTITIONS = 60
HELD = Held(0, 10, bytes_total=100)


async def test_a_pass_asks_about_few_partitions_until_they_are_due(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await rig.topic("t", partitions=PARTITIONS, retention_ms="60000")
    for key in keys:
        await rig.append(key, b"a", timestamp=rig.clock.now_ms())
    await rig.drain()
    keeper = rig.log.keeper
    looked: list[int] = []
    runs_from = Queries.runs_from

    def count(queries: Queries, key: PartitionKey, offset: int, *, limit: int) -> list[StoredRun]:
        looked.append(key)
        return runs_from(queries, key, offset, limit=limit)

    monkeypatch.setattr(Queries, "runs_from", count)
    assert await keeper.trim_expired() == 0
    assert len(looked) == PARTITIONS
    looked.clear()
    for _ in range(RELOOK_PASSES):
        assert await keeper.trim_expired() == 0
    assert sorted(looked) == sorted(keys), "each once in so many passes"
    rig.clock.advance(61)
    assert await keeper.trim_expired() == PARTITIONS


@given(
    timestamps=st.lists(st.integers(-1, 500), min_size=1, max_size=4),
    retention_ms=st.integers(-1, 300),
    retention_bytes=st.integers(-1, 500),
    retention_messages=st.integers(-1, 5),
    now_ms=st.integers(0, 1000),
)
def test_what_is_passed_over_would_have_lost_nothing(
    timestamps: list[int],
    retention_ms: int,
    retention_bytes: int,
    retention_messages: int,
    now_ms: int,
) -> None:
    configs = {
        "retention.ms": str(retention_ms),
        "retention.bytes": str(retention_bytes),
        "penstock.retention.messages": str(retention_messages),
    }
    settings = topic_settings(configs, {})
    rows = runs(*timestamps)
    held = Held(0, len(rows), bytes_total=sum(run.length for run in rows))
    oldest = OldestRuns()
    oldest.begin_pass()
    assert oldest.may_be_due(1, settings, held, now_ms=now_ms)
    oldest.note(1, rows[0], log_start=0)
    if not oldest.may_be_due(1, settings, held, now_ms=now_ms):
        assert new_log_start(rows, settings, held, now_ms=now_ms) is None


def test_a_log_start_that_was_moved_is_looked_at_again() -> None:
    settings = topic_settings({"retention.ms": "1000"}, {})
    oldest = OldestRuns()
    oldest.begin_pass()
    # Without timestamps the run is never too old; the next one is.
    oldest.note(5, runs(-1)[0], log_start=0)
    assert not oldest.may_be_due(5, settings, Held(0, 20, bytes_total=9), now_ms=10_000)
    assert oldest.may_be_due(5, settings, Held(10, 20, bytes_total=9), now_ms=10_000)


class Noted:
    """A partition of 10 offsets and 100 bytes, of whose oldest run the timestamp is known."""

    def __init__(self, timestamp: int = 5_000) -> None:
        self.oldest = OldestRuns()
        self.oldest.begin_pass()
        self.oldest.note(5, runs(timestamp)[0], log_start=0)

    def is_due(self, *, now_ms: int | None = 6_000, held: Held = HELD, **configs: int) -> bool:
        named = {name.replace("_", "."): str(value) for name, value in configs.items()}
        return self.oldest.may_be_due(5, topic_settings(named, {}), held, now_ms=now_ms)


def test_a_partition_is_due_by_bytes_at_its_bound() -> None:
    noted = Noted()
    bounds = {-1: False, 0: True, 99: True, 100: True, 101: False}
    assert {bound: noted.is_due(retention_bytes=bound) for bound in bounds} == bounds


def test_a_partition_is_due_by_count_past_its_bound() -> None:
    noted = Noted()
    bounds = {-1: False, 0: True, 9: True, 10: False, 11: False}
    assert {bound: noted.is_due(penstock_retention_messages=bound) for bound in bounds} == bounds


def test_a_partition_is_due_by_time_past_its_retention() -> None:
    noted = Noted()
    bounds = {-1: False, 0: True, 999: True, 1_000: False}
    assert {bound: noted.is_due(retention_ms=bound) for bound in bounds} == bounds
    assert not noted.is_due(retention_ms=0, now_ms=5_000)
    assert not noted.is_due(retention_ms=0, now_ms=None), "no clock is believed"
    assert Noted(0).is_due(retention_ms=5_999)
    assert not Noted(-1).is_due(retention_ms=0), "nobody knows how old it is"


def test_an_empty_partition_is_never_due_and_what_was_known_of_it_is_forgotten() -> None:
    noted = Noted()
    empty = Held(0, 0, bytes_total=0)
    assert not noted.is_due(held=empty)
    assert not noted.is_due(held=empty, retention_bytes=0)
    assert noted.is_due(), "its oldest run is another"
    assert not OldestRuns().may_be_due(5, topic_settings({}, {}), empty, now_ms=0)


def test_partitions_that_are_gone_and_looks_that_found_no_run_leave_nothing() -> None:
    noted = Noted()
    noted.oldest.note(6, None, log_start=0)
    noted.oldest.keep({5})
    assert not noted.is_due()
    noted.oldest.keep({6})
    assert noted.is_due()
