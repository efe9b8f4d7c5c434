"""A new table begins where it is told to, also when its first run is killed or rolled back."""

from __future__ import annotations

import datetime as dt

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.job import run_table_once
from support.api_server import NOW_MS, ApiServer
from support.tables import Lake, follow, new_record, produce


def produce_two_days(api: ApiServer, topic: str) -> None:
    """Four records of partition 0 and two of partition 1, a second apart, in two runs each."""
    for first in (0, 2):
        produce(
            api,
            topic,
            0,
            [
                new_record(None, b"%d" % number, timestamp_ms=NOW_MS + 1000 * number)
                for number in (first, first + 1)
            ],
        )
    produce(api, topic, 1, [new_record(None, b"x", timestamp_ms=NOW_MS)])
    produce(api, topic, 1, [new_record(None, b"y", timestamp_ms=NOW_MS + 5000)])


def instant(after_ms: int) -> str:
    return (dt.datetime.fromtimestamp((NOW_MS + after_ms) / 1000, dt.UTC)).isoformat()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "rows"),
    [
        ("", [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]),
        ("earliest", [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]),
        ("0:3", [(0, 3), (1, 0), (1, 1)]),
        ("0:9,1:1", [(1, 1)]),
        (instant(1000), [(0, 1), (0, 2), (0, 3), (1, 1)]),
        (instant(2500), [(0, 3), (1, 1)]),
        (instant(6000), []),
        ("latest", []),
    ],
)
def test_a_table_begins_there(
    api: ApiServer, lake: Lake, topic: str, begin: str, rows: list[tuple[int, int]]
) -> None:
    produce_two_days(api, topic)
    summary = follow(api, lake, topic, begin=begin)
    assert (summary.rows, summary.behind) == (len(rows), 0)
    assert lake.rows(topic, "partition", "offset") == rows
    # What comes later is all there, without being told again.
    produce(api, topic, 0, [new_record(None, b"later", timestamp_ms=NOW_MS)])
    follow(api, lake, topic)
    assert lake.rows(topic, "partition", "offset") == sorted([*rows, (0, 4)])


@pytest.mark.slow
def test_a_topics_config_says_where_a_scheduled_table_begins(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    produce_two_days(api, topic)
    api.alter(topic, {"penstock.table.begin": "0:3,1:1"})
    follow(api, lake, topic)
    assert lake.rows(topic, "partition", "offset") == [(0, 3), (1, 1)]


@pytest.mark.slow
def test_a_first_run_that_was_killed_is_no_other_beginning(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce_two_days(api, topic)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.pipeline.tables.job.commit_change", _die)
        with pytest.raises(KeyboardInterrupt):
            follow(api, lake, topic, begin="0:2,1:1")
    follow(api, lake, topic)
    assert lake.rows(topic, "partition", "offset") == [(0, 2), (0, 3), (1, 1)]


def _die(*_: object) -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("begin", "detail"),
    [
        ("2024-02-29T12:00:00", "has no zone"),
        ("2:0", "has 2 partitions"),
        ("0", "is not PARTITION:OFFSET"),
        ("0:-1", "is not PARTITION:OFFSET"),
        ("soon", "is not PARTITION:OFFSET"),
    ],
)
def test_what_says_no_place_is_refused(
    api: ApiServer, lake: Lake, topic: str, begin: str, detail: str
) -> None:
    with pytest.raises(InvalidRequestError, match=detail):
        follow(api, lake, topic, begin=begin)


@pytest.mark.slow
def test_the_log_is_listed_once_for_all_commits_of_a_call(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit of a backfill used to list all runs that were left."""
    for _ in range(6):
        produce(api, topic, 0, [new_record(None, bytes(2000))] * 10)
    listed = []
    known = type(api.client).runs
    monkeypatch.setattr(
        type(api.client),
        "runs",
        lambda self, ranges=None, **more: listed.append(ranges) or known(self, ranges, **more),
    )
    # Executors have clients of their own, and ask for the ranges that they read.
    settings = lake.settings(topic, target_file_bytes=30_000, commit_bytes=30_000)
    summary = run_table_once(api.client, LocalEngine(1), settings)
    assert summary.commits >= 3
    whole = [ranges for ranges in listed if ranges and ranges[0].end == 60]
    assert len([ranges for ranges in whole if ranges[0].start == 0]) == 1
