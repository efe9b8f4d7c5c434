"""What jobs commit through the pipeline's API: runs, writes, tables, each once and while the job
is open."""

import logging
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.app.api.commits import SHOWN_MAX, saved_line
from penstock.model.errors import FencedError
from penstock.pipeline.api_messages import JobRequest, OutputObject, Range, TableProgress
from penstock.pipeline.client import RefusedError
from penstock.pipeline.lease import JobLease
from penstock.state.read.queries import Queries
from penstock.state.rows import TableRow
from support.api_server import (
    ApiServer,
    new_key,
    offsets_in,
    replacement,
    serve_in_thread,
    write_request,
)
from support.waiting import eventually


def test_runs_are_replaced_and_read_on(api: ApiServer) -> None:
    topic_id = api.create("t")
    for _ in range(3):
        api.produce("t", 0, count=4)
        api.drain()
    before = api.read(topic_id, 0, 0, 12)
    with JobLease(api.client, kind="test", name="tests") as job:
        request = replacement(api.client, api.objects, job, topic_id)
        assert api.client.replace(request).codes == [""]
        # Sent again, as after a lost answer: the first answer.
        assert api.client.replace(request).codes == [""]
        (page,) = api.client.runs()
        assert page.object_keys == [request.objects[0].key]
        assert api.read(topic_id, 0, 0, 12) == before
        # Its inputs are no longer there.
        again = replacement(api.client, api.objects, job, topic_id, of=request)
        assert api.client.replace(again).codes == ["input_changed"]


def test_gaps_that_compaction_leaves_are_passed_over(api: ApiServer) -> None:
    topic_id = api.create("t")
    for _ in range(6):
        api.produce("t", 0, count=2)
    api.drain()
    with JobLease(api.client, kind="test", name="tests") as job:
        request = replacement(
            api.client, api.objects, job, topic_id, kept=lambda base: base in {2, 10}
        )
        assert api.client.replace(request).codes == [""]
    assert api.client.topics(["t"]).topics[0].partitions[0].clean_end == 12
    assert offsets_in(api.read(topic_id, 0, 0, 12)) == [2, 3, 10, 11]
    assert offsets_in(api.read(topic_id, 0, 4, 8)) == []
    for start, end, found, following in (
        (0, 12, [2, 3, 10, 11], 12),
        (0, 3, [2, 3], 4),
        (3, 6, [2, 3], 6),
        (4, 8, [], 8),
        (4, 12, [10, 11], 12),
    ):
        body, next_offset = api.client.records(topic_id, 0, start, end)
        assert (offsets_in(body), next_offset) == (found, following)
    # What came later is read on, in the WAL and from it.
    api.produce("t", 0, count=2)
    assert offsets_in(api.read(topic_id, 0, 3, 14)) == [2, 3, 10, 11, 12, 13]
    body, _ = api.client.records(topic_id, 0, 4, 14)
    assert offsets_in(body) == [10, 11, 12, 13]


@pytest.mark.slow
def test_what_an_object_does_not_hold_is_never_named(api: ApiServer) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=4)
    api.drain()
    with JobLease(api.client, kind="test", name="tests") as job:

        def refused(**changes: object) -> str:
            request = replacement(api.client, api.objects, job, topic_id, **changes)  # type: ignore[arg-type]
            with pytest.raises(RefusedError) as caught:
                api.client.replace(request)
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
        (page,) = api.client.runs()
        assert "job-" not in page.object_keys[0]
        assert api.client.replace(replacement(api.client, api.objects, job, topic_id)).codes == [""]


def test_a_write_is_stored_once(api: ApiServer) -> None:
    topic_id = api.create("t", partitions=2)
    api.produce("t", 0, count=3)
    assert api.client.writer("w/1") is None
    with JobLease(api.client, kind="test", name="tests") as job:
        first = write_request(api.objects, job, topic_id, {0: 5, 1: 2}, writer_id="w/1", batch_id=0)
        written = api.client.write(first)
        assert written.ranges == [Range(topic_id, 0, 3, 8), Range(topic_id, 1, 0, 2)]
        assert not written.repeated
        # A replay after a restart puts other objects.
        again = write_request(api.objects, job, topic_id, {0: 5, 1: 2}, writer_id="w/1", batch_id=0)
        repeated = api.client.write(again)
        assert repeated.ranges == written.ranges
        assert repeated.repeated
        assert offsets_in(api.read(topic_id, 0, 0, 8)) == list(range(8))
        assert offsets_in(api.read(topic_id, 1, 0, 2)) == [0, 1]
        writer = api.client.writer("w/1")
        assert writer is not None
        assert (writer.batch_id, writer.incarnation) == (0, "checkpoint")
        following = write_request(
            api.objects, job, topic_id, {1: 1}, writer_id="w/1", batch_id=1, incarnation="another"
        )
        with pytest.raises(RefusedError) as caught:
            api.client.write(following)
        assert caught.value.reason == "writer_in_use"
    # Who lost the answer has perhaps lost the job, too.
    assert api.client.write(first).ranges == written.ranges
    elsewhere = msgspec.structs.replace(first, objects=[OutputObject(new_key(99), 5)])
    assert api.client.write(elsewhere).ranges == written.ranges


def test_a_write_must_be_in_its_objects(api: ApiServer) -> None:
    topic_id = api.create("t")
    with JobLease(api.client, kind="test", name="tests") as job:
        for changes in ({"put": False}, {"record_count": 6}, {"offsets_final": True}):
            request = write_request(api.objects, job, topic_id, {0: 5}, **changes)  # type: ignore[arg-type]
            with pytest.raises(RefusedError) as caught:
                api.client.write(request)
            assert caught.value.reason == "bad_object"
        gone = write_request(api.objects, job, topic_id, {3: 5})
        with pytest.raises(RefusedError) as caught:
            api.client.write(gone)
        assert caught.value.reason == "unknown_partition"
    (topic,) = api.client.topics(["t"]).topics
    assert topic.partitions[0].high_watermark == 0


def test_a_closed_job_commits_nothing(api: ApiServer) -> None:
    topic_id = api.create("t")
    api.produce("t", 0, count=4)
    api.drain()
    with JobLease(api.client, kind="test", name="tests") as job:
        request = replacement(api.client, api.objects, job, topic_id)
        write = write_request(api.objects, job, topic_id, {0: 1})
        job.check()
        assert api.client.is_job_open(job.job)
        assert not api.client.is_job_open(job.job + 1)
        api.client.close_job(job.job)
        assert not api.client.is_job_open(job.job)
        with pytest.raises(FencedError):
            api.client.replace(request)
        with pytest.raises(FencedError):
            api.client.write(write)
        with pytest.raises(FencedError):
            api.client.renew_job(job.job)
    (page,) = api.client.runs()
    assert "job-" not in page.object_keys[0]


def test_a_lease_that_was_lost_is_noticed(api: ApiServer) -> None:
    with JobLease(api.client, kind="test", name="tests", lease_ms=1000) as job:
        api.client.close_job(job.job)
        deadline = time.monotonic() + 20
        with pytest.raises(FencedError):
            while time.monotonic() < deadline:
                job.check()
                time.sleep(0.05)


def test_open_jobs_are_listed(api: ApiServer) -> None:
    with JobLease(api.client, kind="pin", name="0" * 32) as job:
        (found,) = [one for one in api.client.jobs() if one.job == job.job]
        assert (found.kind, found.name, found.opened_ms) == ("pin", "0" * 32, job.time_ms)
    assert job.job not in {one.job for one in api.client.jobs()}


@pytest.mark.slow
def test_a_job_that_falls_silent_is_closed_and_commits_nothing(tmp_path: Path) -> None:
    with serve_in_thread(
        tmp_path / "data", segment_age_ms=3_600_000, retention_check_ms=100
    ) as api:
        topic_id = api.create("t")
        opened = api.client.open_job(JobRequest(kind="test", name="tests", lease_ms=1))
        assert opened.lease_ms == 1000, "no less, whatever is asked for"

        def is_closed() -> bool:
            # Not by renewing it, which would keep it open.
            with closing(Queries(tmp_path / "data" / "metadata.sqlite")) as queries:
                return queries.pipeline_job(opened.job) is None

        eventually(is_closed)
        with pytest.raises(FencedError):
            api.client.renew_job(opened.job)
        with pytest.raises(FencedError):
            api.objects.put(new_key(opened.job), [b"x"])
        key = api.client.accesses("GET", [new_key(opened.job)])
        assert key == [""]
        with JobLease(api.client, kind="test", name="tests") as job:
            request = write_request(api.objects, job, topic_id, {0: 1})
        with pytest.raises(FencedError):
            api.client.write(request)


@pytest.mark.slow
def test_tables_are_noted_and_forgotten(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="penstock.app.http.agents_api")
    topic_id = api.create("t", partitions=2)
    progress = TableProgress(topic_id=topic_id, table="lake.t", offsets=[(0, 5), (1, 9)], state="x")
    api.client.save_table(progress)
    (known,) = api.client.tables()
    assert (known.offsets, known.state, known.table) == (progress.offsets, "x", "lake.t")
    assert known.time_ms > 0
    assert api.client.tables(topic_id) == [known]
    assert api.client.tables("0" * 32) == []
    api.client.drop_table(topic_id, "lake.t")
    assert api.client.tables() == []
    with pytest.raises(RefusedError) as caught:
        api.client.save_table(TableProgress(topic_id="0" * 32, table="x", offsets=[]))
    assert caught.value.reason == "unknown_topic"
    saved, dropped = (line for line in caplog.messages if line.startswith("client at 127.0.0.1"))
    assert saved.endswith(
        f"table 'lake.t' of topic {topic_id} saved: "
        "partition 0 up to none -> 5, partition 1 up to none -> 9"
    )
    assert dropped.endswith(f"table 'lake.t' of topic {topic_id} dropped")


def test_the_line_of_a_table_says_what_moved() -> None:
    topic_id = "0" * 32
    before = TableRow(
        topic_id=bytes(16), table="t", offsets={0: 5, 1: 9}, snapshot_id=3, state="x", time_ms=1
    )

    def line(**changes: Any) -> str:
        now = TableProgress(
            topic_id=topic_id, table="t", offsets=[(0, 5), (1, 9)], snapshot_id=3, state="x"
        )
        return saved_line(before, msgspec.structs.replace(now, **changes)).partition(": ")[2]

    assert line() == "nothing new"
    assert line(state="y") == "another state"
    assert line(snapshot_id=4, offsets=[(0, 7), (1, 9)]) == (
        "snapshot 3 -> 4, partition 0 up to 5 -> 7"
    )
    assert line(snapshot_id=-1) == "snapshot 3 -> none"
    many = line(offsets=[(number, 1) for number in range(2, 20)])
    assert many.count("up to none -> 1") == SHOWN_MAX
    assert many.endswith(", 8 more partitions")
