"""The pipeline's door on a whole embedded server: what is listed, read and committed through it."""

import dataclasses
import http.client
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.http import HttpSources, application
from penstock.app.server import Server
from penstock.lake.door import RUN_FIELDS, RUNS_PATH, JobRequest, OutputObject, Range, TableProgress
from penstock.metadata.queries import Queries
from penstock.metadata.schema import PIPELINE_LEVEL
from penstock.model.errors import (
    FencedError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.client import DoorClient, DoorOptions, JobLease, RefusedError
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import LogTruncatedError
from support.door import (
    Door,
    new_key,
    offsets_in,
    replacement,
    serve_in_thread,
    write_request,
)
from support.waiting import eventually


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as door:
        yield door


def test_info_tells_where_one_is(door: Door) -> None:
    info = door.client.info()
    assert info.cluster_id == door.server.parts.broker.cluster_id
    assert info.objects == "agent"
    assert info.objects_url.startswith("file:///")
    assert info.position > 0
    assert info.time_ms > 0


def test_topics_by_name_id_and_pattern(door: Door) -> None:
    for name in ("flights", "flights-old", "other"):
        door.create(name, partitions=2, configs={"cleanup.policy": "compact"})
    door.produce("flights", 1, count=3)
    everything = door.client.topics()
    assert [topic.name for topic in everything.topics] == ["flights", "flights-old", "other"]
    (flights,) = door.client.topics(["flights", "unknown"]).topics
    assert [state.high_watermark for state in flights.partitions] == [0, 3]
    assert flights.partitions[1].size_bytes > 0
    assert flights.partitions[1].clean_end == -1
    assert flights.configs["cleanup.policy"] == "compact"
    assert flights.configs["retention.ms"] == "604800000"
    assert door.client.topics(topic_ids=[flights.topic_id]).topics == [flights]
    assert [topic.name for topic in door.client.topics(pattern="flights.*").topics] == [
        "flights",
        "flights-old",
    ]
    assert [topic.name for topic in door.client.topics(pattern="flights").topics] == ["flights"]
    with pytest.raises(InvalidRequestError, match="pattern"):
        door.client.topics(pattern="(")


def test_runs_in_the_wal_and_in_objects_are_listed_and_read_alike(door: Door) -> None:
    topic_id = door.create("t", partitions=2)
    door.produce("t", 0, count=10)
    door.produce("t", 1, count=7)
    (page,) = door.client.runs()
    assert page.rows[3::RUN_FIELDS] == [-1, -1]
    assert not any(page.rows for page in door.client.runs(with_wal=False)), (
        "nothing lies in objects yet"
    )
    in_wal = door.read(topic_id, 0, 0, 10)
    door.drain()
    (page,) = door.client.runs()
    assert page.partitions == [(topic_id, 0), (topic_id, 1)]
    assert len(page.object_keys) == 1
    assert page.rows[3::RUN_FIELDS] == [0, 0]
    assert page.rows[2::RUN_FIELDS] == [10, 7]
    assert door.read(topic_id, 0, 0, 10) == in_wal
    assert offsets_in(in_wal) == list(range(10))
    assert offsets_in(door.read(topic_id, 1, 0, 7)) == list(range(7))


def test_runs_come_in_pages_of_any_size_and_none_is_missed(door: Door) -> None:
    topic_id = door.create("t", partitions=3)
    for _ in range(5):
        for partition in range(3):
            door.produce("t", partition, count=2)
        door.drain()
    whole = [row for page in door.client.runs() for row in _rows(page)]
    assert len(whole) == 15
    ranges = [Range(topic_id, partition, 3, 9) for partition in (2, 0)]
    wanted = [row for page in door.client.runs(ranges) for row in _rows(page)]
    assert [row[1:3] for row in wanted] == [(2, 4), (4, 6), (6, 8), (8, 10)] * 2
    for limit in (1, 2, 4, 100):
        assert [row for page in door.pages(None, limit) for row in _rows(page)] == whole
        assert [row for page in door.pages(ranges, limit) for row in _rows(page)] == wanted


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


def test_offsets_are_looked_up_by_time(door: Door) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=3, timestamp_ms=1_000)
    door.produce("t", 0, count=3, timestamp_ms=5_000)
    items = [(topic_id, 0, at) for at in (0, 1_000, 1_001, 5_000, 5_001)]
    assert door.client.offsets(items) == [0, 0, 3, 3, -1]
    with pytest.raises(NotFoundError):
        door.client.offsets([(topic_id, 1, 0)])
    with pytest.raises(NotFoundError):
        door.client.offsets([("0" * 32, 0, 0)])
    with pytest.raises(InvalidRequestError):
        door.client.offsets([("x", 0, 0)])


def test_a_range_in_the_middle_is_read_in_small_parts(door: Door) -> None:
    topic_id = door.create("t")
    for _ in range(20):
        door.produce("t", 0, count=5, value=b"x" * 1000)
    in_wal = list(door.parts(topic_id, 0, 33, 77, bytes_max=12_000))
    door.drain()
    in_object = list(door.parts(topic_id, 0, 33, 77, bytes_max=12_000))
    for parts in (in_wal, in_object):
        assert len(parts) > 2
        offsets = offsets_in(b"".join(part.body for part in parts))
        assert offsets == list(range(offsets[0], offsets[-1] + 1))
        assert offsets[0] <= 33
        assert offsets[-1] >= 76
        assert parts[-1].next_offset >= 77


def test_a_log_that_was_trimmed_says_what_is_there(door: Door) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=10)
    door.trim("t", 0, 6)
    with pytest.raises(LogTruncatedError) as caught:
        door.read(topic_id, 0, 2, 10)
    assert (caught.value.wanted, caught.value.available) == (2, 6)
    assert caught.value.topic_id == topic_id
    assert offsets_in(door.read(topic_id, 0, 6, 10))[-1] == 9


def test_what_is_trimmed_while_records_are_read_is_no_gap(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = door.create("t")
    for _ in range(5):
        door.produce("t", 0, count=2)
    log = door.server.parts.log
    read_loaded = log.reader.read_loaded
    key = door.server.parts.pipeline_sources().partition(topic_id, 0)

    async def trimmed_first(*arguments: Any) -> Any:
        await log.delete_records([(key, 6)])
        return await read_loaded(key, 6, 1 << 20)

    monkeypatch.setattr(log.reader, "read_loaded", trimmed_first)
    with pytest.raises(NotFoundError, match="begins at 6"):
        door.client.records(topic_id, 0, 0, 10)


def test_what_cannot_be_read_just_now_is_no_gap(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=2)

    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(door.server.parts.log.reader, "read_loaded", nothing)
    with (
        DoorClient(DoorOptions(urls=door.client.options.urls, deadline_s=0.2)) as client,
        pytest.raises(RetryableError, match="moves just now"),
    ):
        client.records(topic_id, 0, 0, 2)


def test_a_deleted_topic_is_not_found(door: Door) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=10)
    door.delete("t")
    with pytest.raises(NotFoundError):
        door.read(topic_id, 0, 0, 10)
    door.create("t")
    with pytest.raises(NotFoundError):
        door.read(topic_id, 0, 0, 10)


def test_producers_are_listed(door: Door) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=4, producer_id=7)
    assert door.client.producers([(topic_id, 0)]).producers == [[7, 0, 3]]


# -- objects ---------------------------------------------------------------------------------------


def test_objects_are_put_once_and_read_by_ranges(door: Door) -> None:
    with JobLease(door.client, kind="test", name="tests") as job:
        objects = ObjectAccess(door.client)
        key = new_key(job.job)
        body = os.urandom(20 << 20)
        objects.put(key, [body[: 9 << 20], memoryview(body)[9 << 20 :]])
        assert objects.get_range(key, 0, len(body)) == body
        wanted = [(key, 5, 9), (key, 0, 3), (key, 19 << 20, 20 << 20), (key, 7, 7)]
        assert objects.get_ranges(wanted) == [body[start:end] for _, start, end in wanted]
        with pytest.raises(RefusedError) as caught:
            objects.put(key, [b"another"])
        assert caught.value.reason == "object_exists"
        assert objects.get_range(key, 0, 5) == body[:5]
        with pytest.raises(NotFoundError):
            objects.get_range(new_key(job.job), 0, 5)
        with pytest.raises(InvalidRequestError):
            objects.put("segments/00/foreign.seg", [b"x"])
        with pytest.raises(InvalidRequestError):
            objects.get_range("archive/1", 0, 5)
        with pytest.raises(InvalidRequestError):
            objects.get_range("segments/../lock", 0, 5)
    with pytest.raises(FencedError):
        objects.put(new_key(job.job), [b"x"])


def test_an_object_over_the_limit_is_refused(tmp_path: Path) -> None:
    with (
        serve_in_thread(tmp_path / "data", pipeline_object_bytes_max=1 << 20) as door,
        JobLease(door.client, kind="test", name="tests") as job,
    ):
        objects = ObjectAccess(door.client)
        objects.put(new_key(job.job), [bytes(1 << 20)])
        with pytest.raises(InvalidRequestError, match="pipeline_object_bytes_max"):
            objects.put(new_key(job.job), [bytes((1 << 20) + 1)])


def test_ambient_access_reads_files_and_puts_through_the_agent(door: Door) -> None:
    options = DoorOptions(urls=door.client.options.urls, objects="ambient")
    with (
        DoorClient(options) as client,
        ObjectAccess(client) as objects,
        JobLease(client, kind="test", name="tests") as job,
    ):
        key = new_key(job.job)
        objects.put(key, [b"0123456789"])
        assert objects.get_ranges([(key, 2, 5), (key, 8, 10)]) == [b"234", b"89"]
        with pytest.raises(NotFoundError):
            objects.get_range(new_key(job.job), 0, 1)


# -- commits ---------------------------------------------------------------------------------------


def test_runs_are_replaced_and_read_on(door: Door) -> None:
    topic_id = door.create("t")
    for _ in range(3):
        door.produce("t", 0, count=4)
        door.drain()
    before = door.read(topic_id, 0, 0, 12)
    with JobLease(door.client, kind="test", name="tests") as job:
        request = replacement(door.client, door.objects, job, topic_id)
        assert door.client.replace(request).codes == [""]
        # Sent again, as after a lost answer: the first answer.
        assert door.client.replace(request).codes == [""]
        (page,) = door.client.runs()
        assert page.object_keys == [request.objects[0].key]
        assert door.read(topic_id, 0, 0, 12) == before
        # Its inputs are no longer there.
        again = replacement(door.client, door.objects, job, topic_id, of=request)
        assert door.client.replace(again).codes == ["input_changed"]


def test_gaps_that_compaction_leaves_are_passed_over(door: Door) -> None:
    topic_id = door.create("t")
    for _ in range(6):
        door.produce("t", 0, count=2)
    door.drain()
    with JobLease(door.client, kind="test", name="tests") as job:
        request = replacement(
            door.client, door.objects, job, topic_id, kept=lambda base: base in {2, 10}
        )
        assert door.client.replace(request).codes == [""]
    assert door.client.topics(["t"]).topics[0].partitions[0].clean_end == 12
    assert offsets_in(door.read(topic_id, 0, 0, 12)) == [2, 3, 10, 11]
    assert offsets_in(door.read(topic_id, 0, 4, 8)) == []
    for start, end, found, following in (
        (0, 12, [2, 3, 10, 11], 12),
        (0, 3, [2, 3], 4),
        (3, 6, [2, 3], 6),
        (4, 8, [], 8),
        (4, 12, [10, 11], 12),
    ):
        body, next_offset = door.client.records(topic_id, 0, start, end)
        assert (offsets_in(body), next_offset) == (found, following)
    # What came later is read on, in the WAL and from it.
    door.produce("t", 0, count=2)
    assert offsets_in(door.read(topic_id, 0, 3, 14)) == [2, 3, 10, 11, 12, 13]
    body, _ = door.client.records(topic_id, 0, 4, 14)
    assert offsets_in(body) == [10, 11, 12, 13]


def test_what_an_object_does_not_hold_is_never_named(door: Door) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=4)
    door.drain()
    with JobLease(door.client, kind="test", name="tests") as job:

        def refused(**changes: object) -> str:
            request = replacement(door.client, door.objects, job, topic_id, **changes)  # type: ignore[arg-type]
            with pytest.raises(RefusedError) as caught:
                door.client.replace(request)
            assert caught.value.reason == "bad_object"
            return str(caught.value)

        assert "there is no such object" in refused(put=False)
        assert "bytes, the commit says" in refused(cut=1)
        assert "end_offset" in refused(output_changes={1: 3})
        assert "batch_count" in refused(output_changes={6: 9})
        assert "no run begins" in refused(output_changes={3: 17})
        assert "max_timestamp" in refused(output_changes={5: 1})
        assert "CRC-32C of the footer" in refused(damage=True)
        assert "not final" in refused(offsets_final=False)
        (page,) = door.client.runs()
        assert "job-" not in page.object_keys[0]
        assert door.client.replace(replacement(door.client, door.objects, job, topic_id)).codes == [
            ""
        ]


def test_a_write_is_stored_once(door: Door) -> None:
    topic_id = door.create("t", partitions=2)
    door.produce("t", 0, count=3)
    assert door.client.writer("w/1") is None
    with JobLease(door.client, kind="test", name="tests") as job:
        first = write_request(
            door.objects, job, topic_id, {0: 5, 1: 2}, writer_id="w/1", batch_id=0
        )
        written = door.client.write(first)
        assert written.ranges == [Range(topic_id, 0, 3, 8), Range(topic_id, 1, 0, 2)]
        assert not written.repeated
        # A replay after a restart puts other objects.
        again = write_request(
            door.objects, job, topic_id, {0: 5, 1: 2}, writer_id="w/1", batch_id=0
        )
        repeated = door.client.write(again)
        assert repeated.ranges == written.ranges
        assert repeated.repeated
        assert offsets_in(door.read(topic_id, 0, 0, 8)) == list(range(8))
        assert offsets_in(door.read(topic_id, 1, 0, 2)) == [0, 1]
        writer = door.client.writer("w/1")
        assert writer is not None
        assert (writer.batch_id, writer.incarnation) == (0, "checkpoint")
        following = write_request(
            door.objects, job, topic_id, {1: 1}, writer_id="w/1", batch_id=1, incarnation="another"
        )
        with pytest.raises(RefusedError) as caught:
            door.client.write(following)
        assert caught.value.reason == "writer_in_use"
    # Who lost the answer has perhaps lost the job, too.
    assert door.client.write(first).ranges == written.ranges
    elsewhere = msgspec.structs.replace(first, objects=[OutputObject(new_key(99), 5)])
    assert door.client.write(elsewhere).ranges == written.ranges


def test_a_write_must_be_in_its_objects(door: Door) -> None:
    topic_id = door.create("t")
    with JobLease(door.client, kind="test", name="tests") as job:
        for changes in ({"put": False}, {"record_count": 6}, {"offsets_final": True}):
            request = write_request(door.objects, job, topic_id, {0: 5}, **changes)  # type: ignore[arg-type]
            with pytest.raises(RefusedError) as caught:
                door.client.write(request)
            assert caught.value.reason == "bad_object"
        gone = write_request(door.objects, job, topic_id, {3: 5})
        with pytest.raises(RefusedError) as caught:
            door.client.write(gone)
        assert caught.value.reason == "unknown_partition"
    (topic,) = door.client.topics(["t"]).topics
    assert topic.partitions[0].high_watermark == 0


def test_a_closed_job_commits_nothing(door: Door) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=4)
    door.drain()
    with JobLease(door.client, kind="test", name="tests") as job:
        request = replacement(door.client, door.objects, job, topic_id)
        write = write_request(door.objects, job, topic_id, {0: 1})
        job.check()
        door.client.close_job(job.job)
        with pytest.raises(FencedError):
            door.client.replace(request)
        with pytest.raises(FencedError):
            door.client.write(write)
        with pytest.raises(FencedError):
            door.client.renew_job(job.job)
    (page,) = door.client.runs()
    assert "job-" not in page.object_keys[0]


def test_a_lease_that_was_lost_is_noticed(door: Door) -> None:
    with JobLease(door.client, kind="test", name="tests", lease_ms=1000) as job:
        door.client.close_job(job.job)
        deadline = time.monotonic() + 20
        with pytest.raises(FencedError):
            while time.monotonic() < deadline:
                job.check()
                time.sleep(0.05)


def test_commits_of_a_job_are_numbered_from_one(door: Door) -> None:
    with JobLease(door.client, kind="test", name="tests") as job:
        assert [job.next_commit() for _ in range(3)] == [1, 2, 3]


def test_tables_are_noted_and_forgotten(door: Door) -> None:
    topic_id = door.create("t", partitions=2)
    progress = TableProgress(topic_id=topic_id, table="lake.t", offsets=[(0, 5), (1, 9)], state="x")
    door.client.save_table(progress)
    (known,) = door.client.tables()
    assert (known.offsets, known.state, known.table) == (progress.offsets, "x", "lake.t")
    assert known.time_ms > 0
    assert door.client.tables(topic_id) == [known]
    assert door.client.tables("0" * 32) == []
    door.client.drop_table(topic_id, "lake.t")
    assert door.client.tables() == []
    with pytest.raises(RefusedError) as caught:
        door.client.save_table(TableProgress(topic_id="0" * 32, table="x", offsets=[]))
    assert caught.value.reason == "unknown_topic"


# -- the door itself -------------------------------------------------------------------------------


def _raw(
    server: Server, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str]]:
    assert server.http_address is not None
    connection = http.client.HTTPConnection(*server.http_address, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    finally:
        connection.close()


def test_web_pages_and_nonsense_are_refused(door: Door) -> None:
    status, problem = _raw(door.server, "GET", "/v1/pipeline/info", Origin="http://evil.example")
    assert (status, problem["kind"]) == (403, "invalid")
    for host, expected in (("evil.example:80", 403), ("localhost:1", 200), ("[::1]:1", 200)):
        # A page whose name leads to this machine by now is its own origin.
        status, problem = _raw(door.server, "GET", "/v1/pipeline/info", Host=host)
        assert status == expected
    status, problem = _raw(door.server, "POST", "/v1/pipeline/topics", b"[1")
    assert (status, problem["kind"]) == (400, "invalid")
    status, problem = _raw(door.server, "POST", "/v1/pipeline/topics", b"\xff")
    assert status == 400
    status, problem = _raw(door.server, "POST", "/v1/pipeline/runs", b'{"after": "x"}')
    assert status == 400
    status, problem = _raw(door.server, "GET", "/v1/pipeline/records?topic_id=&partition=-1")
    assert status == 400
    status, problem = _raw(door.server, "GET", "/v1/pipeline/writers/nobody")
    assert (status, problem["kind"]) == (404, "not_found")


@pytest.mark.parametrize("number", [1 << 63, 1 << 70, -(1 << 70)])
def test_numbers_that_no_state_can_hold_are_refused(door: Door, number: int) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=4)
    door.drain()
    job = door.client.open_job(JobRequest(kind="test", name="tests"))
    calls = {
        "offsets": {"items": [[topic_id, 0, number]]},
        "runs": {"ranges": [[topic_id, 0, number, number]]},
        "producers": {"partitions": [[topic_id, number]]},
        "replace": {
            "job": job.job,
            "n": 1,
            "input_keys": [],
            "objects": [],
            "partitions": [
                {"topic_id": topic_id, "partition": 0, "inputs": [number], "outputs": []}
            ],
        },
        "write": {
            "job": job.job,
            "writer_id": "w",
            "batch_id": number,
            "incarnation": "x",
            "objects": [],
            "runs": [],
        },
    }
    for path, body in calls.items():
        status, problem = _raw(
            door.server, "POST", f"/v1/pipeline/{path}", json.dumps(body).encode()
        )
        # Or nothing is found there.
        assert status in {200, 400, 404, 409}, (path, status, problem)
    for path in (f"jobs/{1 << 70}/renew", f"jobs/{1 << 63}/renew"):
        status, _ = _raw(door.server, "POST", f"/v1/pipeline/{path}")
        assert status in {400, 409}
    table = {"topic_id": topic_id, "table": "x", "offsets": [[0, number]]}
    status, _ = _raw(door.server, "PUT", "/v1/pipeline/tables", json.dumps(table).encode())
    assert status in {400, 409}
    assert offsets_in(door.read(topic_id, 0, 0, 4)) == [0, 1, 2, 3], "the server goes on"


def test_a_range_is_read_on_though_its_objects_are_deleted_meanwhile(tmp_path: Path) -> None:
    with serve_in_thread(
        tmp_path / "data", segment_age_ms=3_600_000, retention_check_ms=100, delete_grace_ms=0
    ) as door:
        topic_id = door.create("t", configs={"retention.ms": "-1"})
        for _ in range(6):
            door.produce("t", 0, count=5, value=b"x" * 1000)
            door.drain()
        (page,) = door.client.runs()
        assert len(page.object_keys) == 6
        wanted = door.read(topic_id, 0, 0, 30)
        parts = door.parts(topic_id, 0, 0, 30, bytes_max=6000)
        read = [next(parts).body]
        with JobLease(door.client, kind="test", name="tests") as job:
            assert door.client.replace(
                replacement(door.client, door.objects, job, topic_id)
            ).codes == [""]
            # While a job is open whatever was live when it began can be read.
            last = page.object_keys[-1]
            time.sleep(0.5)
            assert door.objects.get_range(last, 0, 4) == b"PSEG"
        eventually(lambda: _is_gone(door, last))
        read += [part.body for part in parts]
        assert b"".join(read) == wanted


def _is_gone(door: Door, key: str) -> bool:
    try:
        door.objects.get_range(key, 0, 4)
    except NotFoundError:
        return True
    return False


def test_a_job_that_falls_silent_is_closed_and_commits_nothing(tmp_path: Path) -> None:
    with serve_in_thread(
        tmp_path / "data", segment_age_ms=3_600_000, retention_check_ms=100
    ) as door:
        topic_id = door.create("t")
        opened = door.client.open_job(JobRequest(kind="test", name="tests", lease_ms=1))
        assert opened.lease_ms == 1000, "no less, whatever is asked for"

        def is_closed() -> bool:
            # Not by renewing it, which would keep it open.
            with closing(Queries(tmp_path / "data" / "metadata.sqlite")) as queries:
                return queries.pipeline_job(opened.job) is None

        eventually(is_closed)
        with pytest.raises(FencedError):
            door.client.renew_job(opened.job)
        with pytest.raises(FencedError):
            door.objects.put(new_key(opened.job), [b"x"])
        key = door.client.accesses("GET", [new_key(opened.job)])
        assert key == [""]
        with JobLease(door.client, kind="test", name="tests") as job:
            request = write_request(door.objects, job, topic_id, {0: 1})
        with pytest.raises(FencedError):
            door.client.write(request)


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.lists(st.integers(-2, 1 << 40), max_size=8),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def _mutated(value: object, data: st.DataObject) -> object:
    """A JSON value with one thing in it that is another."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(value)))
        return {**value, name: _mutated(value[name], data)}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        index = data.draw(st.integers(0, len(value) - 1))
        return [*value[:index], _mutated(value[index], data), *value[index + 1 :]]
    return data.draw(_VALUES)


def test_nothing_that_is_sent_breaks_the_server(door: Door) -> None:
    topic_id = door.create("t")
    door.produce("t", 0, count=4)
    door.drain()
    with JobLease(door.client, kind="test", name="tests") as job:
        bodies: dict[str, object] = {
            "topics": {"names": ["t"], "topic_ids": [topic_id], "pattern": "t.*"},
            "offsets": {"items": [[topic_id, 0, 5]]},
            "runs": {"ranges": [[topic_id, 0, 0, 4]], "after": "0:2", "limit": 3},
            "producers": {"partitions": [[topic_id, 0]]},
            "accesses": {"method": "PUT", "keys": [new_key(job.job)], "seconds": 5},
            "replace": msgspec.to_builtins(
                replacement(door.client, door.objects, job, topic_id, put=False)
            ),
            "write": msgspec.to_builtins(write_request(door.objects, job, topic_id, {0: 2})),
        }

        @settings(max_examples=300, deadline=None)
        @given(st.data())
        def send(data: st.DataObject) -> None:
            path = data.draw(st.sampled_from(sorted(bodies)))
            body = json.dumps(_mutated(bodies[path], data)).encode()
            if data.draw(st.integers(0, 9)) == 0:
                body = body[: data.draw(st.integers(0, len(body)))]
            status, problem = _raw(door.server, "POST", f"/v1/pipeline/{path}", body)
            assert status in {200, 400, 404, 409}, (path, body, status, problem)
            if status != 200:
                assert problem["kind"]

        send()
    assert offsets_in(door.read(topic_id, 0, 0, 4)) == [0, 1, 2, 3]


def test_names_may_be_of_any_characters(door: Door) -> None:
    topic_id = door.create("t")
    with JobLease(door.client, kind="test", name="größe/?#%") as job:
        writer_id = "spark/ü ?#%&+'\"://x"
        door.client.write(write_request(door.objects, job, topic_id, {0: 1}, writer_id=writer_id))
        writer = door.client.writer(writer_id)
        assert writer is not None
        assert writer.writer_id == writer_id
        assert door.client.writer(writer_id + "/") is None
        table = TableProgress(topic_id=topic_id, table="a b&c=d/ü", offsets=[(0, 1)])
        door.client.save_table(table)
        door.client.drop_table(topic_id, table.table)
        assert door.client.tables() == []


def test_many_threads_share_a_client(door: Door) -> None:
    topic_id = door.create("t", configs={"retention.ms": "-1"})
    for _ in range(10):
        door.produce("t", 0, count=5, value=b"x" * 500)
        door.drain()
    wanted = door.read(topic_id, 0, 0, 50)
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: door.read(topic_id, 0, 0, 50), range(32)))
    assert found == [wanted] * 32


def test_without_a_secret_the_door_of_a_cluster_is_shut(door: Door) -> None:
    pipeline = door.server.parts.pipeline_sources()
    assert pipeline.without_secret

    def paths(*, shared: bool, secret: ClusterSecret | None) -> set[str]:
        sources = HttpSources(
            metrics=door.server.parts.metrics,
            status=dict,
            not_ready=str,
            back_up=door.server.back_up,
            secret=secret,
            pipeline=dataclasses.replace(pipeline, without_secret=not shared),
        )
        app: Any = application(sources)
        return {route.path for route in app._app.routes}

    assert RUNS_PATH in paths(shared=False, secret=None)
    assert RUNS_PATH not in paths(shared=True, secret=None)
    assert RUNS_PATH in paths(shared=True, secret=ClusterSecret("0123456789abcdef"))


def test_jobs_wait_until_every_agent_knows_their_commands(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert door.client.info().feature_level < PIPELINE_LEVEL
    view = door.server.parts.view
    log: Any = door.server.parts.log
    # As in a cluster, where membership raises the level.
    monkeypatch.setattr(log, "commit", log.lane.commit)
    with (
        DoorClient(DoorOptions(urls=door.client.options.urls, deadline_s=0.2)) as client,
        pytest.raises(RetryableError, match="switched on"),
    ):
        client.open_job(JobRequest(kind="test", name="tests"))
    (agent,) = view.agents()
    older = dataclasses.replace(agent, agent_id=99, level_max=PIPELINE_LEVEL - 1)
    monkeypatch.setitem(view._agents, 99, older)
    with pytest.raises(RefusedError, match="older release") as caught:
        door.client.open_job(JobRequest(kind="test", name="tests"))
    assert caught.value.reason == "level_not_on"
    monkeypatch.undo()
    door.client.open_job(JobRequest(kind="test", name="tests"))
    assert door.client.info().feature_level == PIPELINE_LEVEL


def test_much_that_waits_for_compaction_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_in_thread(tmp_path / "data", compaction_warn_bytes=1) as door:
        door.create("t")
        for count in range(15):
            door.produce("t", 0, count=1)
            door.drain()
            backlog = door.server._backlog
            assert backlog is not None
            door.on_loop(backlog.run_once())
            warned = [text for text in caplog.messages if "wait for compaction" in text]
            assert len(warned) == int(count >= 12)


def test_calls_and_the_backlog_are_counted(door: Door) -> None:
    door.client.info()
    door.create("t")
    for _ in range(14):
        door.produce("t", 0, count=1)
        door.drain()
    backlog = door.server._backlog
    assert backlog is not None
    door.on_loop(backlog.run_once())
    text = door.get("/metrics")
    assert 'penstock_pipeline_calls_total{call="info 200"} 1' in text
    assert "penstock_compaction_backlog_runs 14" in text
    assert json.loads(door.get("/v1/status"))["compaction_backlog"]["runs"] == 14
