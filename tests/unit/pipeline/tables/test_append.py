"""A raw table follows its topic, each record once, whatever is killed."""

from __future__ import annotations

import datetime as dt
import gc
import threading
from typing import Any

import psutil
import pytest

from penstock.model.errors import InDoubtError, NotFoundError, RetryableError
from penstock.pipeline.api_messages import Range
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables import job
from penstock.pipeline.tables.catalog import ancestry, lineage_of, summary_of
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from penstock.pipeline.tables.offsets import (
    COMMIT_PROPERTY,
    OFFSETS_PROPERTY,
    Holdings,
    decode_offsets,
)
from support.api_server import NOW_MS, ApiServer
from support.tables import (
    STEPS,
    KilledError,
    Lake,
    follow,
    new_record,
    produce,
    produce_values,
    records_of,
    spoil,
)

BEYOND_MS = 2**62
"""A timestamp that no calendar has: a bad record."""


def offsets_of(lake: Lake, topic: str) -> list[tuple[int, int]]:
    return lake.rows(topic, "partition", "offset")


@pytest.mark.slow
def test_rows_are_the_records(api: ApiServer, lake: Lake, topic: str) -> None:
    headers = [("trace", b"1"), ("trace", None)]
    produce(api, topic, 1, [new_record(b"k", b"v", headers=headers), new_record(None, None)])
    produce(api, topic, 0, [new_record(b"other", b"", timestamp_ms=-1)])
    summary = follow(api, lake, topic)
    assert (summary.rows, summary.commits, summary.behind) == (3, 1, 0)
    time = dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)
    assert lake.rows(topic, "partition", "offset", "key", "value", "timestamp", "headers") == [
        (0, 0, b"other", b"", None, []),
        (
            1,
            0,
            b"k",
            b"v",
            time,
            [{"key": "trace", "value": b"1"}, {"key": "trace", "value": None}],
        ),
        (1, 1, None, None, time, []),
    ]


@pytest.mark.slow
def test_a_second_run_goes_on_where_the_first_ended(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a", b"b"])
    follow(api, lake, topic)
    assert follow(api, lake, topic).commits == 0
    produce_values(api, topic, [b"c"])
    api.drain()
    assert follow(api, lake, topic).rows == 1
    assert lake.rows(topic, "value") == [(b"a",), (b"b",), (b"c",)]


def test_offsets_are_in_the_snapshot_and_in_the_api(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a", b"b"])
    summary = follow(api, lake, topic)
    (snapshot,) = ancestry(lake.table(topic))
    assert lineage_of(lake.table(topic)).is_whole
    topic_id = api.topics[topic][0]
    text = summary_of(snapshot)[OFFSETS_PROPERTY]
    assert decode_offsets(text, subject="") == Holdings({topic_id: {0: 2}}, {topic_id: {0: 0}})
    (progress,) = api.client.tables(topic_id)
    assert progress.offsets == [(0, 2)]
    assert progress.snapshot_id == summary.snapshot_id == snapshot.snapshot_id


def test_days_are_partitions_and_few_files(api: ApiServer, lake: Lake, topic: str) -> None:
    day_ms = 86_400_000
    for partition in (0, 1):
        produce(
            api,
            topic,
            partition,
            [new_record(b"k", b"v", timestamp_ms=NOW_MS - n * day_ms) for n in range(3)],
        )
    summary = follow(api, lake, topic)
    # Both partitions of the topic share a day's file: many partitions don't mean many files.
    assert summary.files == 3
    tasks = (
        lake.table(topic).scan(row_filter="timestamp >= '2023-11-14T00:00:00+00:00'").plan_files()
    )
    assert len(list(tasks)) == 1


@pytest.mark.slow
def test_large_topics_take_several_items_and_commits(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    for _ in range(6):
        produce_values(api, topic, [bytes(2000)] * 10)
        produce_values(api, topic, [bytes(2000)] * 10, partition=1)
    summary = follow(api, lake, topic, target_file_bytes=30_000, commit_bytes=100_000)
    assert summary.commits > 1
    assert summary.files > summary.commits
    assert offsets_of(lake, topic) == [(p, n) for p in (0, 1) for n in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_who_watches_is_told_how_far_it_is(
    api: ApiServer, lake: Lake, topic: str, mode: str
) -> None:
    told: list[tuple[int, int]] = []
    for number in range(6):
        produce(api, topic, 0, [new_record(b"%d" % number, bytes(2000))] * 10)
    settings = lake.settings(topic, mode=mode, target_file_bytes=30_000, commit_bytes=60_000)
    summary = run_table_once(
        api.client,
        LocalEngine(2),
        settings,
        watch=lambda done, total: told.append((done, total)),
    )
    assert summary.commits > 1
    assert sorted(done for done, _ in told) == [done for done, _ in told]
    assert told[0][0] < told[0][1]
    done, total = told[-1]
    assert done == total == summary.bytes_read > 6 * 20_000


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_each_record_is_there_once(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """tests/spark/test_tables_processes.py does it with processes."""
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    bad = new_record(b"bad", b"letter", timestamp_ms=BEYOND_MS)
    produce(api, topic, 0, [new_record(None, b"b"), bad, new_record(None, b"c")])

    def end() -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        spoil(patched.setattr, step, end)
        with pytest.raises(KilledError):
            follow(api, lake, topic)
    follow(api, lake, topic)
    follow(api, lake, topic)
    assert lake.rows(topic, "value") == [(b"a",), (b"b",), (b"c",)]
    assert [record.key for record in records_of(api, f"{topic}.dlq")] == [b"bad"]
    (progress,) = api.client.tables(api.topics[topic][0])
    assert progress.offsets == [(0, 4)]


@pytest.mark.slow
def test_another_driver_that_was_faster_is_noticed_by_its_offsets(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits the same ranges between this one's files and its commit."""
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    produce_values(api, topic, [b"b", b"c"])
    real = job.commit_change
    faster: list[int] = []

    def commit(table: Any, change: Any) -> int:
        if not faster:
            faster.append(1)
            follow(api, lake, topic)
        return real(table, change)

    monkeypatch.setattr(job, "commit_change", commit)
    summary = follow(api, lake, topic)
    assert summary.rows == 0
    assert lake.rows(topic, "value") == [(b"a",), (b"b",), (b"c",)]
    # What the slower one wrote is gone again: three files of three commits would be four.
    assert len(lake.files(topic)) == 2


@pytest.mark.slow
def test_retries_of_pyiceberg_are_ended_where_somebody_set_them(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With retries PyIceberg lays the slower commit over the faster one: rows would be doubled."""
    produce_values(api, topic, [b"a"])
    follow(api, lake, topic)
    with lake.table(topic).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "5"})
    produce_values(api, topic, [b"b"])
    real = job.commit_change
    faster: list[int] = []

    def commit(table: Any, change: Any) -> int:
        if not faster:
            faster.append(1)
            other = threading.Thread(target=follow, args=(api, lake, topic))
            other.start()
            other.join()
        return real(table, change)

    monkeypatch.setattr(job, "commit_change", commit)
    follow(api, lake, topic)
    assert lake.rows(topic, "value") == [(b"a",), (b"b",)]


def test_a_commit_whose_reply_was_lost_is_found(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce_values(api, topic, [b"a", b"b"])
    real = job.commit_change

    def commit(table: Any, change: Any) -> int:
        real(table, change)
        raise InDoubtError("commit", "table", "no reply")

    monkeypatch.setattr(job, "commit_change", commit)
    summary = follow(api, lake, topic)
    assert (summary.rows, summary.commits) == (2, 1)
    assert lake.rows(topic, "value") == [(b"a",), (b"b",)]


def test_a_lost_commit_that_never_happened_is_made_again(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce_values(api, topic, [b"a"])
    real = job.commit_change
    lost: list[int] = []

    def commit(table: Any, change: Any) -> int:
        if not lost:
            lost.append(1)
            raise InDoubtError("commit", "table", "no reply")
        return real(table, change)

    monkeypatch.setattr(job, "commit_change", commit)
    assert follow(api, lake, topic).rows == 1
    assert lake.rows(topic, "value") == [(b"a",)]


@pytest.mark.slow
def test_an_executor_that_fails_once_is_tried_again(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.pipeline.tables import raw

    produce_values(api, topic, [b"a"])
    real = raw.append_rows
    failures: list[int] = []

    def append(item: Any) -> Any:
        result = real(item)
        if not failures:
            # After its files were written: the second attempt must not meet them.
            failures.append(1)
            raise RetryableError("write", "file", "the executor was lost")
        return result

    monkeypatch.setattr(raw, "append_rows", append)
    follow(api, lake, topic)
    assert lake.rows(topic, "value") == [(b"a",)]
    assert len(lake.files(topic)) == 2, (
        "the first attempt's file is an orphan, and named by nothing"
    )


@pytest.mark.slow
def test_retention_that_was_faster_is_reported(api: ApiServer, lake: Lake, topic: str) -> None:
    produce_values(api, topic, [b"a", b"b"])
    follow(api, lake, topic)
    produce_values(api, topic, [b"c", b"d", b"e"])
    api.trim(topic, 0, 4)
    topic_id = api.topics[topic][0]
    summary = follow(api, lake, topic)
    assert summary.lost == [Range(topic_id=topic_id, partition=0, start=2, end=4)]
    assert offsets_of(lake, topic) == [(0, 0), (0, 1), (0, 4)]
    (progress,) = api.client.tables(topic_id)
    assert f'"lost":[["{topic_id}",0,2,4]]' in progress.state
    assert follow(api, lake, topic).lost == []


def test_retention_between_plan_and_read_is_reported_too(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.pipeline.tables import raw

    produce_values(api, topic, [b"a", b"b", b"c"])
    real = raw.append_rows
    trimmed: list[int] = []

    def append(item: Any) -> Any:
        if not trimmed:
            trimmed.append(1)
            api.trim(topic, 0, 2)
        return real(item)

    monkeypatch.setattr(raw, "append_rows", append)
    summary = follow(api, lake, topic)
    assert offsets_of(lake, topic) == [(0, 2)]
    # The table held nothing yet, so its start is the log's: nothing that it had promised is gone.
    assert summary.offsets[0] == 3


@pytest.mark.slow
def test_bad_records_carry_where_they_were(api: ApiServer, lake: Lake, topic: str) -> None:
    headers = [("mine", b"x")]
    bad = new_record(b"k", b"v", timestamp_ms=BEYOND_MS, headers=headers)
    produce(api, topic, 1, [new_record(None, b"good"), bad])
    summary = follow(api, lake, topic)
    assert (summary.rows, summary.bad_records) == (1, 1)
    (letter,) = records_of(api, f"{topic}.dlq")
    assert (letter.key, letter.value) == (b"k", b"v")
    assert dict(letter.headers) == {
        "mine": b"x",
        "penstock.reason": b"its timestamp is beyond the years 1 to 9999",
        "penstock.topic": topic.encode(),
        "penstock.topic-id": api.topics[topic][0].encode(),
        "penstock.partition": b"1",
        "penstock.offset": b"1",
    }
    # Its staged file goes once the letter is written.
    assert not [path for path in lake.files(topic) if "dead-letters" in path]


@pytest.mark.slow
def test_without_a_dead_letter_topic_nothing_is_lost(api: ApiServer, lake: Lake) -> None:
    api.create("no-letters")
    produce(api, "no-letters", 0, [new_record(None, b"a", timestamp_ms=BEYOND_MS)])
    with pytest.raises(Exception, match=r"there is no topic no-letters\.dlq"):
        follow(api, lake, "no-letters")
    (progress,) = api.client.tables(api.topics["no-letters"][0])
    assert '"status":"stopped"' in progress.state
    assert progress.offsets == []
    api.create("no-letters.dlq")
    assert follow(api, lake, "no-letters").bad_records == 1
    (progress,) = api.client.tables(api.topics["no-letters"][0])
    assert '"status":"ok"' in progress.state
    assert progress.offsets == [(0, 1)]


def test_a_topic_that_is_not_there(api: ApiServer, lake: Lake) -> None:
    with pytest.raises(NotFoundError, match="there is no such topic"):
        run_table_once(api.client, LocalEngine(1), lake.settings("nothing"))


@pytest.mark.slow
def test_each_commit_has_a_name_of_its_own(api: ApiServer, lake: Lake, topic: str) -> None:
    for value in (b"a", b"b"):
        produce_values(api, topic, [value])
        follow(api, lake, topic)
    names = {summary_of(snapshot)[COMMIT_PROPERTY] for snapshot in ancestry(lake.table(topic))}
    assert len(names) == 2


@pytest.mark.slow
def test_a_run_gives_the_catalogs_connections_back(api: ApiServer, lake: Lake, topic: str) -> None:
    """A schedule runs for months in one process."""
    produce(api, topic, 0, [new_record(b"k", b"v")])
    gc.disable()
    try:
        follow(api, lake, topic)
        upkeep = Maintenance(files_min=1)
        maintain_table(api.client, LocalEngine(1), lake.settings(topic), upkeep)
        opened = [file.path for file in psutil.Process().open_files()]
    finally:
        gc.enable()
    assert not [path for path in opened if path.startswith(str(lake.folder))]
