"""Compaction on a server whose topics have transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.kernels.decode import decode
from penstock.pipeline.api_messages import Range
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.job import Summary, compact
from penstock.pipeline.engine import LocalEngine
from penstock.records.batch import CONTROL, TRANSACTIONAL, StoredHeader, stored_header
from penstock.recovery.verify import VerifyReport
from support.api_server import ApiServer, serve_in_thread
from support.log_contents import verify_path

SETTINGS = CompactionSettings()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as found:
        yield found


def run(api: ApiServer, topic: str) -> Summary:
    summary = compact(api.client, LocalEngine(1), SETTINGS, names=[topic])
    assert not summary.failures
    assert not summary.refused
    return summary


def headers(api: ApiServer, topic_id: str) -> list[StoredHeader]:
    """All batches that a fetch of all records gets."""
    (topic,) = api.client.topics(topic_ids=[topic_id], uncommitted=True).topics
    end = topic.partitions[0].high_watermark
    body, _ = api.client.records(topic_id, 0, 0, end)
    found, at = [], 0
    while at < len(body):
        found.append(stored_header(body, at))
        at += found[-1].length
    return found


def committed(api: ApiServer, topic_id: str) -> list[tuple[int, bytes]]:
    (topic,) = api.client.topics(topic_ids=[topic_id]).topics
    end = topic.partitions[0].high_watermark
    found: list[tuple[int, bytes]] = []
    for part in api.parts(topic_id, 0, 0, end):
        table = decode(part.body, start_offset=0, end_offset=end).table()
        columns = (table.column(name).to_pylist() for name in ("offset", "value"))
        found += zip(*columns, strict=True)
    return found


def report(api: ApiServer, path: Path) -> VerifyReport:
    api.drain()
    return verify_path(path)


@pytest.mark.slow
def test_aborted_records_go_and_what_is_open_waits(api: ApiServer, tmp_path: Path) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    topic_id = api.create("t", configs=configs)
    api.transaction("good", [("t", 0, b"k", b"1"), ("t", 0, b"l", b"2")], commits=True)
    api.transaction("bad", [("t", 0, b"k", b"aborted")], commits=False)
    api.drain()
    api.transaction("open", [("t", 0, b"k", b"open")])
    api.transaction("good", [("t", 0, b"l", b"newer")], commits=True)
    api.drain()
    before = headers(api, topic_id)
    assert run(api, "t").dropped_records == 1
    # Offsets 0 to 4 were cleaned. The end raised the producer's epoch, so that no sequence of its
    # last batch counts any more, and the batch goes whole. Its marker stays for its retention.
    assert [(h.base_offset, h.record_count) for h in headers(api, topic_id)] == [
        (offset, 1) for offset in (0, 1, 2, 4, 5, 6, 7)
    ]
    assert headers(api, topic_id)[-3:] == before[-3:]
    assert committed(api, topic_id) == [(0, b"1"), (1, b"2")]
    api.transaction("open", [], commits=True)
    api.drain()
    assert run(api, "t").dropped_records == 2
    assert committed(api, topic_id) == [(5, b"open"), (6, b"newer")]
    assert not report(api, tmp_path / "data").findings


def test_a_partition_whose_markers_are_rows_is_compacted_once_they_are_moved(
    api: ApiServer, tmp_path: Path
) -> None:
    """A marker among the inputs, in its row, would have the agents refuse the replacement."""
    topic_id = api.create("t")
    for number in range(6):
        api.transaction("one", [("t", 0, b"k", b"%d" % number)])
        api.drain()
        api.transaction("one", [], commits=number != 3)
    before = headers(api, topic_id)
    values = committed(api, topic_id)
    assert [value for _, value in values] == [b"0", b"1", b"2", b"4", b"5"]
    assert api.on_loop(api.log.waiting_markers.run_once()) == 1
    summary = run(api, "t")
    assert (summary.runs_after, summary.dropped_records) == (1, 0)
    after = headers(api, topic_id)
    assert [(h.base_offset, h.crc) for h in after] == [(h.base_offset, h.crc) for h in before]
    assert sum(bool(h.attributes & CONTROL) for h in after) == 6
    assert all(h.attributes & TRANSACTIONAL for h in after)
    assert committed(api, topic_id) == values
    wanted = Range(topic_id, 0, 0, 12)
    assert sum(len(page.aborted) // 4 for page in api.client.runs([wanted])) == 1
    assert not report(api, tmp_path / "data").findings


@pytest.mark.slow
def test_an_abort_is_forgotten_with_its_marker_and_fetches_go_on(
    api: ApiServer, tmp_path: Path
) -> None:
    """A reader that hears of the abort and meets no marker would take later records for aborted."""
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "0",
    }
    topic_id = api.create("t", configs=configs)
    api.transaction("one", [("t", 0, b"k", b"aborted")], commits=False)
    api.transaction("one", [("t", 0, b"l", b"good")], commits=True)
    key = api._key("t", 0)
    head = api.server.parts.view.head(key)
    assert head is not None
    for number in range(4):
        api.produce("t", 0, count=1, value=b"%d" % number)
        api.drain()
        run(api, "t")
    assert [h.base_offset for h in headers(api, topic_id) if h.attributes & CONTROL] == [3]
    (page,) = api.client.runs([Range(topic_id, 0, 0, 8)])
    assert page.aborted == []
    assert committed(api, topic_id)[0] == (2, b"good")
    # The head still names the abort: what a fetch waits for isn't its row.
    assert head.last_aborted == 1
    reader = api.log.reader

    async def ask() -> object:
        return reader.aborted(key, 0, 8, last_aborted=head.last_aborted)

    assert api.on_loop(ask()) == []
    assert not report(api, tmp_path / "data").findings
