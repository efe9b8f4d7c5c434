"""A plan lists what may have changed since the last one, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.pipeline.api_messages import PartitionState, Range, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.compaction import job
from penstock.pipeline.compaction.incremental import WHOLE_MS, Memory, Seen
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.engine import LocalEngine
from support.api_server import ApiServer, serve_in_thread

ID = "00" * 16
SETTINGS = CompactionSettings()


def topic(*partitions: PartitionState, **configs: str) -> TopicState:
    return TopicState(name="t", topic_id=ID, configs=configs, partitions=list(partitions))


def state(high_watermark: int, *, log_start: int = 0, size: int = 100) -> PartitionState:
    return PartitionState(log_start=log_start, high_watermark=high_watermark, size_bytes=size)


def seen(full_end: int = -1, *, quiet: bool) -> Seen:
    return Seen(full_end=full_end, is_quiet=quiet)


def test_all_is_listed_at_first_and_once_in_a_while() -> None:
    memory = Memory()
    topics = [topic(state(10))]
    assert memory.ranges(topics, now_ms=1000) is None
    memory.note(topics, {(ID, 0): seen(quiet=True)})
    assert memory.ranges(topics, now_ms=1000 + WHOLE_MS - 1) == []
    assert memory.ranges(topics, now_ms=1000 + WHOLE_MS) is None
    assert memory.ranges(topics, now_ms=900) is None, "time went back"


def test_what_changed_is_listed_and_what_is_quiet_is_not() -> None:
    memory = Memory()
    before = topic(state(10), state(10), state(10), state(0))
    assert memory.ranges([before], now_ms=0) is None
    memory.note(
        [before],
        {(ID, 0): seen(quiet=True), (ID, 1): seen(7, quiet=False), (ID, 2): seen(9, quiet=True)},
    )
    # Of what was not quiet the runs of full length are passed over.
    assert memory.ranges([before], now_ms=1) == [Range(ID, 1, 7, 10)]
    after = topic(state(10, size=99), state(10), state(12), state(3))
    assert memory.ranges([after], now_ms=1) == [
        Range(ID, 0, 0, 10),
        Range(ID, 1, 7, 10),
        Range(ID, 2, 9, 12),
        Range(ID, 3, 0, 3),
    ]
    trimmed = topic(state(10), state(10, log_start=8), state(10), state(0))
    assert memory.ranges([trimmed], now_ms=1) == [Range(ID, 1, 8, 10)]
    memory.forget([(ID, 0)])
    assert memory.ranges([before], now_ms=1) == [Range(ID, 0, 0, 10), Range(ID, 1, 7, 10)]


def test_cleaning_by_key_sees_the_whole_log() -> None:
    memory = Memory()
    compacted = replace(topic(state(10)), configs={"cleanup.policy": "compact"})
    assert memory.ranges([compacted], now_ms=0) is None
    memory.note([compacted], {(ID, 0): seen(9, quiet=False)})
    assert memory.ranges([compacted], now_ms=1) == [Range(ID, 0, 0, 10)]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as api:
        yield api


@pytest.mark.slow
def test_a_job_that_goes_on_lists_little(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("idle", "busy"):
        api.create(name, 3)
    busy = api.topics["busy"][0]
    listed: list[list[Range] | None] = []
    runs = PipelineClient.runs

    def noted(client: PipelineClient, ranges: list[Range] | None = None, **other: bool) -> object:
        listed.append(ranges)
        return runs(client, ranges, **other)

    monkeypatch.setattr(PipelineClient, "runs", noted)
    memory = Memory()

    def fill(name: str) -> None:
        for _ in range(6):
            for partition in range(3):
                api.produce(name, partition, count=2)
            api.drain()

    def compact() -> int:
        summary = job.compact(api.client, LocalEngine(1), SETTINGS, memory=memory)
        assert not summary.failures
        return summary.partitions

    fill("idle")
    fill("busy")
    assert compact() == 6
    assert listed[0] is None
    listed.clear()
    assert compact() == 0
    assert listed == [], "nothing has changed"
    fill("busy")
    assert compact() == 3
    assert listed
    assert all(one.topic_id == busy for ranges in listed if ranges is not None for one in ranges)
    assert None not in listed
