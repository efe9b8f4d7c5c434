"""What a pin of a topic and its table holds back of the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import SnapshotLogEntry

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.lease import JobLease
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from penstock.pipeline.tables.pins import kept_from_ms, pinned_since_ms
from support.api_server import ApiServer
from support.tables import Lake, follow, produce_values

MINUTE_MS = 60_000
NOW_MS = 1_700_000_000_000


@given(times=st.lists(st.integers(0, 100), max_size=8), pinned=st.integers(2, 120))
def test_the_snapshot_that_was_current_at_the_pin_and_all_later_ones_stay(
    times: list[int], pinned: int
) -> None:
    minutes = sorted(times)
    log = [
        SnapshotLogEntry(snapshot_id=number, timestamp_ms=NOW_MS + minute * MINUTE_MS)
        for number, minute in enumerate(minutes)
    ]
    kept = kept_from_ms(log, NOW_MS + pinned * MINUTE_MS)
    stay = {entry.snapshot_id for entry in log if entry.timestamp_ms >= kept}
    # By any clock that is less than a minute off.
    for off in (-1, 0, 1):
        at = pinned + off
        current = [number for number, minute in enumerate(minutes) if minute <= at]
        assert set(current[-1:]) <= stay
        assert {number for number, minute in enumerate(minutes) if minute > at} <= stay


@pytest.mark.slow
def test_snapshots_and_files_of_a_pinned_table_stay(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = api.topics[topic][0]
    for number in range(4):
        produce_values(api, topic, [b"%d" % number])
        follow(api, lake, topic)
    read = lake.table(topic).current_snapshot()
    files = lake.files(topic)
    upkeep = Maintenance(snapshot_age_ms=0, orphan_age_ms=0, files_min=2)

    def maintain() -> int:
        settings = lake.settings(topic)
        return maintain_table(api.client, LocalEngine(1), settings, upkeep).snapshots_expired

    with JobLease(api.client, kind="pin", name=topic_id):
        assert pinned_since_ms(api.client, topic_id) is not None
        assert maintain() == 0
        produce_values(api, topic, [b"4"])
        follow(api, lake, topic)
        assert maintain() == 0
        assert set(files) < set(lake.files(topic)), "joined, and the old ones are there"
        assert lake.table(topic).snapshot_by_id(read.snapshot_id) is not None
    with JobLease(api.client, kind="pin", name="0" * 32):
        assert maintain() > 0, "a pin of another topic"
    assert not set(files) & set(lake.files(topic))

    def older(_: PipelineClient) -> None:
        raise InvalidRequestError("list", "jobs", "there is no such call")

    monkeypatch.setattr(PipelineClient, "jobs", older)
    assert pinned_since_ms(api.client, topic_id) is None
