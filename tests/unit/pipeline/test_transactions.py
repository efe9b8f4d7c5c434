"""Readers of the pipeline see committed records alone, and all of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

import penstock.tables
from penstock.kernels.decode import decode
from penstock.model.errors import InvalidRequestError
from penstock.pipeline.api_messages import Range, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.connector.options import parse
from penstock.pipeline.connector.read import PenstockReader
from penstock.pipeline.connector.union_options import parse_union
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.export import MANIFEST, export_topic
from penstock.pipeline.imports import import_topic
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import AbortedBatches, read_range
from penstock.pipeline.verify import verify_cluster
from penstock.records.batch import CONTROL, TRANSACTIONAL
from support.api_server import ApiServer, serve_in_thread
from support.tables import Lake, follow

COMMITTED = [b"plain", b"good", b"late"]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "warehouse")


@pytest.fixture(params=["all in the WAL", "in objects", "the markers alone in the WAL"])
def topic(api: ApiServer, request: pytest.FixtureRequest) -> str:
    """Offsets: 0 plain, 1 bad (aborted), 2 good (committed), 3, 4 their markers, 5 late, and from 6
    on an open transaction with a plain record in it."""
    name = f"topic{next(_numbers)}"
    api.create(name)
    api.produce(name, 0, count=1, value=b"plain")
    api.transaction(f"bad {name}", [(name, 0, b"k", b"bad")])
    api.transaction(f"good {name}", [(name, 0, b"k", b"good")])
    if request.param == "the markers alone in the WAL":
        api.drain()
    api.transaction(f"bad {name}", [], commits=False)
    api.transaction(f"good {name}", [], commits=True)
    api.produce(name, 0, count=1, value=b"late")
    api.transaction(f"open {name}", [(name, 0, b"k", b"open")])
    api.produce(name, 0, count=1, value=b"held back")
    if request.param == "in objects":
        api.drain()
    return name


def state_of(client: PipelineClient, name: str) -> TopicState:
    (topic,) = client.topics(names=[name]).topics
    return topic


def values(client: PipelineClient, wanted: Range, *, bytes_max: int = 1 << 20) -> list[bytes]:
    found: list[bytes] = []
    with ObjectAccess(client) as objects:
        for part in read_range(client, objects, wanted, bytes_max=bytes_max):
            table = decode(part.body, start_offset=wanted.start, end_offset=wanted.end).table()
            found += table.column("value").to_pylist()
    return found


def test_the_high_watermark_of_a_reader_is_the_last_stable_offset(
    api: ApiServer, topic: str
) -> None:
    (state,) = state_of(api.client, topic).partitions
    assert (state.high_watermark, state.last_stable) == (6, 6)
    (state,) = api.client.topics(names=[topic], uncommitted=True).topics[0].partitions
    assert (state.high_watermark, state.last_stable) == (8, 6)
    api.transaction(f"open {topic}", [], commits=True)
    (state,) = state_of(api.client, topic).partitions
    assert (state.high_watermark, state.last_stable) == (9, 9)


@pytest.mark.slow
@pytest.mark.parametrize("bytes_max", [1, 100, 1 << 20])
def test_ranges_have_no_aborted_record_and_no_marker(
    api: ApiServer, topic: str, bytes_max: int
) -> None:
    topic_id = state_of(api.client, topic).topic_id
    for start in range(6):
        expected = [
            value
            for offset, value in ((0, b"plain"), (2, b"good"), (5, b"late"))
            if offset >= start
        ]
        wanted = Range(topic_id, 0, start, 6)
        assert values(api.client, wanted, bytes_max=bytes_max) == expected
    options = msgspec.structs.replace(api.client.options, reads_committed=False)
    with PipelineClient(options) as client:
        (state,) = state_of(client, topic).partitions
        wanted = Range(topic_id, 0, 0, state.high_watermark)
        assert values(client, wanted, bytes_max=bytes_max) == [
            b"plain",
            b"bad",
            b"good",
            b"late",
            b"open",
            b"held back",
        ]


@pytest.mark.slow
def test_what_is_open_comes_once_it_is_committed_and_never_if_it_is_aborted(
    api: ApiServer, topic: str, lake: Lake
) -> None:
    summary = follow(api, lake, topic)
    assert lake.rows(topic, "value") == [(value,) for value in COMMITTED]
    assert (summary.rows, follow(api, lake, topic).rows) == (3, 0)
    api.transaction(f"open {topic}", [], commits=False)
    api.transaction(f"good {topic}", [(topic, 0, b"k", b"more")], commits=True)
    assert follow(api, lake, topic).rows == 2
    assert lake.rows(topic, "value") == [(value,) for value in (*COMMITTED, b"held back", b"more")]


@pytest.mark.slow
def test_a_view_of_table_and_log_has_what_is_committed_on_both_sides(
    api: ApiServer, topic: str, lake: Lake
) -> None:
    (url,) = api.client.options.urls

    def offsets() -> list[int]:
        rows = penstock.tables.read(topic, url=url, warehouse=str(lake.folder))
        found: list[int] = sorted(rows.column("offset").to_pylist())
        return found

    follow(api, lake, topic)
    assert offsets() == [0, 2, 5]
    api.transaction(f"good {topic}", [(topic, 0, b"k", b"more")], commits=True)
    assert offsets() == [0, 2, 5]
    api.transaction(f"open {topic}", [], commits=False)
    # 6 was aborted, 7 is the plain record in it, 8 the committed one, 9 and 10 are markers.
    assert offsets() == [0, 2, 5, 7, 8]


@pytest.mark.slow
def test_an_export_holds_what_is_committed_and_is_imported_where_it_was(
    api: ApiServer, topic: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "out")
    export_topic(api.client, LocalEngine(1), topic, folder)
    (path,) = Path(folder).rglob("*.parquet")
    table = pq.read_table(path)
    assert table.column("value").to_pylist() == COMMITTED
    assert table.column("offset").to_pylist() == [0, 2, 5]
    manifest = next(Path(folder).rglob(MANIFEST))
    assert json.loads(manifest.read_text())["files"][-1]["end"] == 6
    copy = f"copy of {topic}".replace(" ", "-")
    topic_id = api.create(copy)
    import_topic(api.client, LocalEngine(1), str(manifest.parent), name=copy)
    assert values(api.client, Range(topic_id, 0, 0, 6)) == COMMITTED


def rows(api: ApiServer, topic: str, **options: str) -> list[tuple[int, bytes]]:
    (url,) = api.client.options.urls
    given = {"url": url, "subscribe": topic, **options}
    reader = PenstockReader(parse(given, mode="batch"), ("offset", "value"))
    found: list[tuple[int, bytes]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return sorted(found)


def test_the_connector_reads_what_is_committed_by_default(api: ApiServer, topic: str) -> None:
    committed = list(zip((0, 2, 5), COMMITTED, strict=True))
    assert rows(api, topic) == committed
    assert rows(api, topic, **{"kafka.isolation.level": "read_committed"}) == committed
    assert [
        value for _, value in rows(api, topic, **{"kafka.isolation.level": "READ_UNCOMMITTED"})
    ] == [b"plain", b"bad", b"good", b"late", b"open", b"held back"]
    with pytest.raises(InvalidRequestError, match=r"kafka\.isolation\.level"):
        rows(api, topic, **{"kafka.isolation.level": "serializable"})


def test_a_view_of_table_and_log_takes_no_isolation() -> None:
    with pytest.raises(InvalidRequestError, match=r"kafka\.isolation\.level"):
        parse_union(
            {
                "url": "http://a:1",
                "subscribe": "t",
                "kafka.isolation.level": "read_uncommitted",
            },
            mode="batch",
        )


def test_a_topic_with_nothing_but_an_open_transaction_takes_no_import(
    api: ApiServer, tmp_path: Path
) -> None:
    source, target = f"source{next(_numbers)}", f"target{next(_numbers)}"
    api.create(source)
    api.create(target)
    api.produce(source, 0, count=2)
    folder = str(tmp_path / "out")
    export_topic(api.client, LocalEngine(1), source, folder)
    api.transaction("held", [(target, 0, None, b"open")])
    manifest = next(Path(folder).rglob(MANIFEST))
    with pytest.raises(Exception, match="has been written to"):
        import_topic(api.client, LocalEngine(1), str(manifest.parent), name=target)


def test_a_time_at_which_nothing_may_be_read_yet_has_no_record(api: ApiServer) -> None:
    name = f"topic{next(_numbers)}"
    api.create(name)
    api.transaction("later", [(name, 0, None, b"open")])
    options: dict[str, Any] = {"startingTimestamp": "1"}
    with pytest.raises(InvalidRequestError, match="no record as late"):
        rows(api, name, **options)
    assert rows(api, name, **options, startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.slow
def test_verify_reads_what_is_open_and_aborted_too(api: ApiServer, topic: str) -> None:
    findings = verify_cluster(api.client, LocalEngine(1)).findings
    assert not [finding for finding in findings if topic in f"{finding.subject} {finding.detail}"]


def test_a_batch_is_aborted_by_its_producer_and_place() -> None:
    aborted = AbortedBatches()
    aborted.add([0, 7, 10, 20, 0, 8, 12, 30])
    aborted.add([0, 7, 10, 20, 0, 7, 25, 28])
    held = [
        (producer, offset)
        for producer in (7, 8, 9)
        for offset in (9, 10, 19, 20, 24, 25, 27, 28)
        if aborted.holds(producer, TRANSACTIONAL, offset)
    ]
    assert held == [
        *((7, offset) for offset in (10, 19, 25, 27)),
        *((8, offset) for offset in (19, 20, 24, 25, 27, 28)),
    ]
    assert not aborted.holds(7, 0, 10)
    assert not aborted.holds(7, TRANSACTIONAL | CONTROL, 10)
