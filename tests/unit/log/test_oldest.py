"""A pass of retention looks at the partitions that may have outlived theirs, and at few others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.retention.oldest import RELOOK_PASSES, OldestRuns
from penstock.log.retention.plan import Held, new_log_start
from penstock.metadata.queries import Queries, StoredRun
from penstock.model.ids import PartitionKey
from penstock.model.topic_configs import topic_settings
from support.log_rig import Rig, run_rig
from unit.log.test_retention_plan import runs

PARTITIONS = 60


def test_a_pass_asks_about_few_partitions_until_they_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        keys = await rig.topic("t", partitions=PARTITIONS, retention_ms="60000")
        for key in keys:
            await rig.append(key, b"a", timestamp=rig.clock.now_ms())
        await rig.drain()
        keeper = rig.log.keeper
        looked: list[int] = []
        runs_from = Queries.runs_from

        def count(
            queries: Queries, key: PartitionKey, offset: int, *, limit: int
        ) -> list[StoredRun]:
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

    run_rig(tmp_path, test)


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
