"""What is listed and read through the pipeline API, on a whole embedded server."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.pipeline.api_messages import ITEMS_MAX, RECORDS_PATH, RUN_FIELDS, Range
from penstock.pipeline.lease import JobLease
from penstock.pipeline.ranges import LogTruncatedError
from support.api_server import ApiServer, offsets_in, replacement, serve_in_thread
from support.waiting import eventually


def test_info_tells_where_one_is(api: ApiServer) -> None:
    info = api.client.info()
    assert info.cluster_id == api.server.parts.broker.cluster_id
    assert info.objects == "agent"
    assert info.objects_url.startswith("file:///")
    assert info.position > 0
    assert info.time_ms > 0


def test_topics_by_name_id_and_pattern(api: ApiServer) -> None:
    for name in ("flights", "flights-old", "other"):
        api.create(name, partitions=2, configs={"cleanup.policy": "compact"})
    api.produce("flights", 1, count=3)
    everything = api.client.topics()
    assert [topic.name for topic in everything.topics] == ["flights", "flights-old", "other"]
    (flights,) = api.client.topics(["flights", "unknown"]).topics
    assert [state.high_watermark for state in flights.partitions] == [0, 3]
    assert flights.partitions[1].size_bytes > 0
    assert flights.partitions[1].clean_end == -1
    assert flights.configs["cleanup.policy"] == "compact"
    assert flights.configs["retention.ms"] == "604800000"
    assert api.client.topics(topic_ids=[flights.topic_id]).topics == [flights]
    assert [topic.name for topic in api.client.topics(pattern="flights.*").topics] == [
        "flights",
        "flights-old",
    ]
    assert [topic.name for topic in api.client.topics(pattern="flights").topics] == ["flights"]
    for pattern in ("(", "a{99999999999}"):
        with pytest.raises(InvalidRequestError, match="pattern"):
            api.client.topics(pattern=pattern)


def test_runs_in_the_wal_and_in_objects_are_listed_and_read_alike(api: ApiServer) -> None:
    topic_id = api.create("t", partitions=2)
    api.produce("t", 0, count=10)
    api.produce("t", 1, count=7)
    (page,) = api.client.runs()
    assert page.rows[3::RUN_FIELDS] == [-1, -1]
    assert not any(page.rows for page in api.client.runs(with_wal=False)), (
        "nothing lies in objects yet"
    )
    in_wal = api.read(topic_id, 0, 0, 10)
    api.drain()
    (page,) = api.client.runs()
    assert page.partitions == [(topic_id, 0), (topic_id, 1)]
    assert len(page.object_keys) == 1
    assert page.rows[3::RUN_FIELDS] == [0, 0]
    assert page.rows[2::RUN_FIELDS] == [10, 7]
    assert api.read(topic_id, 0, 0, 10) == in_wal
    assert offsets_in(in_wal) == list(range(10))
    assert offsets_in(api.read(topic_id, 1, 0, 7)) == list(range(7))


@pytest.mark.slow
def test_runs_come_in_pages_of_any_size_and_none_is_missed(api: ApiServer) -> None:
    topic_id = api.create("t", partitions=3)
    for _ in range(5):
        for partition in range(3):
            api.produce("t", partition, count=2)
        api.drain()
    whole = [row for page in api.client.runs() for row in _rows(page)]
    assert len(whole) == 15
    ranges = [Range(topic_id, partition, 3, 9) for partition in (2, 0)]
    wanted = [row for page in api.client.runs(ranges) for row in _rows(page)]
    assert [row[1:3] for row in wanted] == [(2, 4), (4, 6), (6, 8), (8, 10)] * 2
    for limit in (1, 2, 4, 100):
        assert [row for page in api.pages(None, limit) for row in _rows(page)] == whole
        assert [row for page in api.pages(ranges, limit) for row in _rows(page)] == wanted


def _rows(page: object) -> list[tuple[object, ...]]:
    rows = page.rows  # type: ignore[attr-defined]
    return [
        (
            page.partitions[rows[at]],  # type: ignore[attr-defined]
            *rows[at + 1 : at + 3],
            page.object_keys[rows[at + 3]],  # type: ignore[attr-defined]
            *rows[at + 4 : at + RUN_FIELDS],
        )
        for at in range(0, len(rows), RUN_FIELDS)
    ]


def test_offsets_are_looked_up_by_time(api: ApiServer) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=3, timestamp_ms=1_000)
    api.produce("t", 0, count=3, timestamp_ms=5_000)
    items = [(topic_id, 0, at) for at in (0, 1_000, 1_001, 5_000, 5_001)]
    assert api.client.offsets(items) == [0, 0, 3, 3, -1]
    with pytest.raises(NotFoundError):
        api.client.offsets([(topic_id, 1, 0)])
    with pytest.raises(NotFoundError):
        api.client.offsets([("0" * 32, 0, 0)])
    with pytest.raises(InvalidRequestError):
        api.client.offsets([("x", 0, 0)])


@pytest.mark.slow
def test_more_times_than_a_call_takes_are_looked_up(api: ApiServer) -> None:
    """As a read by timestamp over that many partitions asks for."""
    topic_id = api.create("t")
    for at in range(3):
        api.produce("t", 0, count=1, timestamp_ms=at)
    items = [(topic_id, 0, at % 4) for at in range(ITEMS_MAX + 1)]
    expected = [-1 if at % 4 == 3 else at % 4 for at in range(ITEMS_MAX + 1)]
    assert api.client.offsets(items) == expected
    assert api.client.offsets([]) == []


@pytest.mark.slow
def test_a_range_in_the_middle_is_read_in_small_parts(api: ApiServer) -> None:
    topic_id = api.create("t")
    for _ in range(20):
        api.produce("t", 0, count=5, value=b"x" * 1000)
    in_wal = list(api.parts(topic_id, 0, 33, 77, bytes_max=12_000))
    api.drain()
    in_object = list(api.parts(topic_id, 0, 33, 77, bytes_max=12_000))
    for parts in (in_wal, in_object):
        assert len(parts) > 2
        offsets = offsets_in(b"".join(part.body for part in parts))
        assert offsets == list(range(offsets[0], offsets[-1] + 1))
        assert offsets[0] <= 33
        assert offsets[-1] >= 76
        assert parts[-1].next_offset >= 77


def test_a_log_that_was_trimmed_says_what_is_there(api: ApiServer) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=10)
    api.trim("t", 0, 6)
    with pytest.raises(LogTruncatedError) as caught:
        api.read(topic_id, 0, 2, 10)
    assert (caught.value.wanted, caught.value.available) == (2, 6)
    assert caught.value.topic_id == topic_id
    assert offsets_in(api.read(topic_id, 0, 6, 10))[-1] == 9


def test_what_is_trimmed_while_records_are_read_is_no_gap(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = api.create("t")
    for _ in range(5):
        api.produce("t", 0, count=2)
    log = api.server.parts.log
    read_loaded = log.reader.read_loaded
    key = api.server.parts.pipeline_sources().partition(topic_id, 0)

    async def trimmed_first(*arguments: Any) -> Any:
        await log.delete_records([(key, 6)])
        return await read_loaded(key, 6, 1 << 20)

    monkeypatch.setattr(log.reader, "read_loaded", trimmed_first)
    with pytest.raises(NotFoundError, match="begins at 6"):
        api.client.records(topic_id, 0, 0, 10)


def test_what_cannot_be_read_just_now_is_no_gap(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=2)

    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(api.server.parts.log.reader, "read_loaded", nothing)
    asked = f"{RECORDS_PATH}?topic_id={topic_id}&partition=0&start=0&end=2&bytes_max=9"
    problem = json.loads(api.get(asked))
    assert problem["kind"] == "retry"
    assert "are being moved to another object" in problem["error"]


def test_a_deleted_topic_is_not_found(api: ApiServer) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=10)
    api.delete("t")
    with pytest.raises(NotFoundError):
        api.read(topic_id, 0, 0, 10)
    api.create("t")
    with pytest.raises(NotFoundError):
        api.read(topic_id, 0, 0, 10)


def test_producers_are_listed(api: ApiServer) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=4, producer_id=7)
    assert api.client.producers([(topic_id, 0)]).producers == [[7, 0, 3]]


@pytest.mark.slow
def test_a_range_is_read_on_though_its_objects_are_deleted_meanwhile(tmp_path: Path) -> None:
    with serve_in_thread(
        tmp_path / "data", segment_age_ms=3_600_000, retention_check_ms=100, delete_grace_ms=0
    ) as api:
        topic_id = api.create("t", configs={"retention.ms": "-1"})
        for _ in range(6):
            api.produce("t", 0, count=5, value=b"x" * 1000)
            api.drain()
        (page,) = api.client.runs()
        assert len(page.object_keys) == 6
        wanted = api.read(topic_id, 0, 0, 30)
        parts = api.parts(topic_id, 0, 0, 30, bytes_max=6000)
        read = [next(parts).body]
        with JobLease(api.client, kind="test", name="tests") as job:
            assert api.client.replace(
                replacement(api.client, api.objects, job, topic_id)
            ).codes == [""]
            # While a job is open whatever was live when it began can be read.
            last = page.object_keys[-1]
            time.sleep(0.5)
            assert api.objects.get_range(last, 0, 4) == b"PSEG"
        eventually(lambda: _is_gone(api, last))
        read += [part.body for part in parts]
        assert b"".join(read) == wanted


def _is_gone(api: ApiServer, key: str) -> bool:
    try:
        api.objects.get_range(key, 0, 4)
    except NotFoundError:
        return True
    return False


@pytest.mark.slow
def test_many_threads_share_a_client(api: ApiServer) -> None:
    topic_id = api.create("t", configs={"retention.ms": "-1"})
    for _ in range(10):
        api.produce("t", 0, count=5, value=b"x" * 500)
        api.drain()
    wanted = api.read(topic_id, 0, 0, 50)
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: api.read(topic_id, 0, 0, 50), range(32)))
    assert found == [wanted] * 32
