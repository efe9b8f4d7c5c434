"""Export to Parquet and import of it: everything of a record comes back, once, where it was."""

import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.kernels.decode import decode
from penstock.model.errors import ConflictError, FencedError, InvalidRequestError, NotFoundError
from penstock.pipeline.api_messages import RUN_FIELDS, PartitionState, RunPage, TopicState
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.export import MANIFEST, Exported, export_topic, plan_files
from penstock.pipeline.imports import empty_batches, import_topic, plan_steps
from penstock.pipeline.tables.files import TableFiles
from penstock.records.batch import crc_is_right, stored_header
from support.api_server import ApiServer, serve_in_thread
from support.topics import Topics

Row = tuple[int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, timestamp, its type, key, value, headers."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path_factory.mktemp("data")) as found:
        yield found


@pytest.fixture(scope="module")
def topics(api: ApiServer) -> Topics:
    return Topics(str(api.server.kafka_address), idempotent=False)


@pytest.fixture
def engine() -> LocalEngine:
    return LocalEngine(2)


def rows_of(api: ApiServer, name: str) -> list[list[Row]]:
    """All records of a topic, by partition."""
    (topic,) = api.client.topics(names=[name]).topics
    found: list[list[Row]] = []
    for partition, state in enumerate(topic.partitions):
        rows: list[Row] = []
        if state.log_start < state.high_watermark:
            for part in api.parts(topic.topic_id, partition, state.log_start, state.high_watermark):
                for row in decode(part.body, start_offset=state.log_start).table().to_pylist():
                    headers = [(header["key"], header["value"]) for header in row["headers"]]
                    rows.append(
                        (row["offset"], row["timestamp"], row["timestamp_type"], row["key"],
                         row["value"], headers)
                    )  # fmt: skip
        found.append(rows)
    return found


def fill(topics: Topics, *, name: str = "", first: int = 0) -> str:
    """Three partitions: many records, few with every oddity, none."""
    name = topics.make(3, name=name)
    values: list[bytes | None] = [b"%d" % (first + n) * 50 for n in range(2000)]
    topics.write(
        name, values, partition=0, keys=[b"k%d" % (n % 7) for n in range(2000)],
        timestamps=[1_700_000_000_000 + n for n in range(2000)], compression_type="zstd",
    )  # fmt: skip
    topics.write(
        name, [None, b"", b"x"], partition=2, keys=[b"k", None, b""],
        headers=[[("a", b"1"), ("a", None)], [], [("ü", b"\x00\xff")]],
        timestamps=[5, 1, 3],
    )  # fmt: skip
    return name


def export(api: ApiServer, name: str, folder: Path, **options: Any) -> Exported:
    return export_topic(api.client, LocalEngine(2), name, str(folder), **options)


@pytest.mark.slow
def test_every_record_comes_back_where_it_was(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = fill(topics)
    exported = export(api, name, tmp_path, file_bytes=2000)
    assert exported.records == 2003
    assert exported.files > 3
    copy = topics.make(3)
    imported = import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    assert (imported.records, imported.repeated_records) == (2003, 0)
    assert rows_of(api, copy) == rows_of(api, name)


def test_what_the_log_stamped_keeps_stamp_and_type(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = topics.make(1, message_timestamp_type="LogAppendTime")
    topics.write(name, [b"1", b"2"])
    topics.write(name, [b"3"])
    export(api, name, tmp_path)
    copy = topics.make(1)
    import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    (rows,) = rows_of(api, copy)
    assert [row[2] for row in rows] == [1, 1, 1]
    assert rows == rows_of(api, name)[0]


def test_a_file_has_the_columns_that_the_page_tells_of(
    api: ApiServer, topics: Topics, tmp_path: Path
) -> None:
    name = fill(topics)
    export(api, name, tmp_path)
    (third,) = (tmp_path / name).glob("000002-*.parquet")
    rows = pq.read_table(third).to_pylist()
    assert [row["offset"] for row in rows] == [0, 1, 2]
    assert [row["key"] for row in rows] == [b"k", None, b""]
    assert [row["timestamp"].timestamp() for row in rows] == [0.005, 0.001, 0.003]
    assert rows[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]


@pytest.mark.slow
def test_offsets_before_the_logs_start_and_in_gaps_stay_unused(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    """What compaction leaves: here by taking rows out of the files."""
    name = topics.make(1)
    topics.write(name, [b"%d" % n for n in range(5000)])
    topics.trim(name, 0, 100)
    export(api, name, tmp_path)
    (file,) = (tmp_path / name).glob("*.parquet")
    rows = pq.read_table(file)
    kept = [n for n in range(rows.num_rows) if n % 1000 < 300 and not 2000 <= n < 2999]
    pq.write_table(rows.take(pa.array(kept)), file)
    copy = topics.make(1)
    import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    (found,) = rows_of(api, copy)
    assert [row[0] for row in found] == [n + 100 for n in kept]
    (original,) = rows_of(api, name)
    assert found == [original[n] for n in kept]
    (state,) = api.client.topics(names=[copy]).topics[0].partitions
    assert state.high_watermark == 5000


@pytest.mark.slow
def test_a_real_consumer_reads_over_the_gaps(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = topics.make(1)
    topics.write(name, [b"%d" % n for n in range(1000)])
    topics.trim(name, 0, 10)
    export(api, name, tmp_path)
    (file,) = (tmp_path / name).glob("*.parquet")
    rows = pq.read_table(file)
    kept = [n for n in range(rows.num_rows) if n % 7 == 0]
    pq.write_table(rows.take(pa.array(kept)), file)
    copy = topics.make(1)
    import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    consumer = Consumer(
        {
            "bootstrap.servers": topics.bootstrap,
            "group.id": copy,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(copy, 0, 0)])
    seen: list[tuple[int, bytes]] = []
    while True:
        message = consumer.poll(120)
        assert message is not None
        if message.error():
            break
        seen.append((message.offset(), message.value()))
    consumer.close()
    assert seen == [(n + 10, b"%d" % (n + 10)) for n in kept]


@pytest.mark.slow
def test_an_import_that_is_repeated_does_nothing(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = fill(topics)
    export(api, name, tmp_path)
    copy = topics.make(3)
    import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    again = import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    assert (again.records, again.repeated_records) == (0, 2003)
    assert rows_of(api, copy) == rows_of(api, name)


@pytest.mark.slow
def test_an_import_that_was_cut_short_goes_on_where_it_was(
    api: ApiServer,
    topics: Topics,
    engine: LocalEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.pipeline import imports

    monkeypatch.setattr(imports, "STEP_FILES", 2)
    name = fill(topics)
    export(api, name, tmp_path, file_bytes=2000)
    copy = topics.make(3)

    def stop(done: int, total: int) -> None:
        assert done < total
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy, watch=stop)
    partly = sum(map(len, rows_of(api, copy)))
    assert 0 < partly < 2003
    rest = import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    assert (rest.repeated_records, rest.records) == (partly, 2003 - partly)
    assert rows_of(api, copy) == rows_of(api, name)


@pytest.mark.slow
def test_offsets_cannot_be_kept_where_somebody_wrote(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = fill(topics)
    export(api, name, tmp_path)
    copy = topics.make(3)
    topics.write(copy, [b"first"], partition=1)
    with pytest.raises(ConflictError, match="--offsets new"):
        import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy, offsets="new")
    topics.write(copy, [b"last"], partition=2)
    found = rows_of(api, copy)
    assert [row[4] for row in found[1]] == [b"first"]
    assert [row[0] for row in found[2]] == [0, 1, 2, 3]


def test_a_topic_with_too_few_partitions_is_refused(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = fill(topics)
    export(api, name, tmp_path)
    with pytest.raises(InvalidRequestError, match="2 partitions"):
        import_topic(api.client, engine, f"{tmp_path}/{name}", name=topics.make(2))


def test_a_compacted_topic_takes_no_records_without_keys(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = fill(topics)
    export(api, name, tmp_path)
    copy = topics.make(3, cleanup_policy="compact")
    with pytest.raises(InvalidRequestError, match="without a key"):
        import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    assert rows_of(api, copy) == [[], [], []]


def test_an_export_that_was_cut_short_is_no_export(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = fill(topics)
    export(api, name, tmp_path)
    (tmp_path / name / MANIFEST).unlink()
    with pytest.raises(NotFoundError, match=MANIFEST):
        import_topic(api.client, engine, f"{tmp_path}/{name}", name=topics.make(3))


@pytest.mark.slow
def test_an_export_is_not_mixed_with_an_older_one(
    api: ApiServer, topics: Topics, tmp_path: Path
) -> None:
    name = fill(topics)
    export(api, name, tmp_path, file_bytes=2000)
    topics.write(name, [b"more"], partition=1)
    with pytest.raises(ConflictError, match="--overwrite"):
        export(api, name, tmp_path)
    again = export(api, name, tmp_path, overwrite=True)
    assert again.records == 2004
    listed = [f.url for f in TableFiles(_no_options()).list(again.url) if "parquet" in f.url]
    assert len(listed) == again.files


@pytest.mark.slow
def test_the_old_export_stays_if_the_topic_is_gone(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    name = fill(topics)
    export(api, name, tmp_path)
    before = rows_of(api, name)
    topics.delete(name)
    with pytest.raises(NotFoundError, match="no such topic"):
        export(api, name, tmp_path, overwrite=True)
    copy = topics.make(3)
    import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    assert rows_of(api, copy) == before


@pytest.mark.slow
@pytest.mark.parametrize("step", ["file", "manifest", "deletion"])
def test_an_export_over_another_leaves_one_whole_wherever_it_is_cut(
    api: ApiServer,
    topics: Topics,
    engine: LocalEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Killed after a file is written, before the manifest, and before old files are deleted. The
    topic was made anew in between, so that what is mixed of both is seen."""
    name = fill(topics)
    export(api, name, tmp_path, file_bytes=2000)
    old = rows_of(api, name)
    topics.delete(name)
    fill(topics, name=name, first=10_000)

    real_put, real_delete = TableFiles.put, TableFiles.delete

    def cut(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def put(files: TableFiles, url: str, body: bytes) -> None:
        if url.endswith(MANIFEST):
            raise KeyboardInterrupt
        real_put(files, url, body)

    def delete(files: TableFiles, urls: list[str]) -> None:
        if any(url.endswith(".parquet") for url in urls):
            raise KeyboardInterrupt
        real_delete(files, urls)

    with monkeypatch.context() as patch:
        if step == "manifest":
            patch.setattr(TableFiles, "put", put)
        if step == "deletion":
            patch.setattr(TableFiles, "delete", delete)
        with pytest.raises(KeyboardInterrupt):
            export(
                api, name, tmp_path, file_bytes=2000, overwrite=True,
                watch=cut if step == "file" else None,
            )  # fmt: skip
    copy = topics.make(3)
    import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    assert rows_of(api, copy) == (rows_of(api, name) if step == "deletion" else old)
    again = export(api, name, tmp_path, overwrite=True)
    assert len(list((tmp_path / name).glob("*.parquet"))) == again.files


@pytest.mark.slow
def test_two_exports_into_one_folder_at_once_are_kept_apart(
    api: ApiServer, topics: Topics, tmp_path: Path
) -> None:
    """With `--overwrite` the second would delete files that the first's manifest names."""
    name = fill(topics)
    refused: list[str] = []

    def other(*_: int) -> None:
        with pytest.raises(ConflictError, match=f"host {socket.gethostname()} .* is open") as found:
            export(api, name, tmp_path, overwrite=True)
        refused.append(str(found.value))

    exported = export(api, name, tmp_path, watch=other)
    assert len(refused) == exported.files == 2
    assert sorted(
        path.name for path in (tmp_path / name).iterdir() if path.suffix != ".parquet"
    ) == [MANIFEST]
    again = export(api, name, tmp_path, overwrite=True)
    assert len(list((tmp_path / name).glob("*.parquet"))) == again.files


def test_an_export_whose_job_was_ended_puts_no_manifest(
    api: ApiServer, topics: Topics, tmp_path: Path
) -> None:
    """As one that was stopped for longer than its lease: the next one takes the folder over."""
    name = fill(topics)

    def ended(*_: int) -> None:
        if not taken:
            (marker,) = (tmp_path / name).glob("_penstock_exporting_*")
            api.client.close_job(json.loads(marker.read_text())["job"])
            taken.append(export(api, name, tmp_path, overwrite=True))

    taken: list[Exported] = []
    with pytest.raises(FencedError, match="taken the folder over"):
        export(api, name, tmp_path, overwrite=True, watch=ended)
    manifest = json.loads((tmp_path / name / MANIFEST).read_text())
    assert sum(bool(file["name"]) for file in manifest["files"]) == taken[0].files
    assert all((tmp_path / name / file["name"]).exists() for file in manifest["files"])


def test_a_partition_that_retention_emptied_keeps_its_next_offset(
    api: ApiServer, topics: Topics, engine: LocalEngine, tmp_path: Path
) -> None:
    """A group that had read it to the end goes on with the first record that comes."""
    name = topics.make(2)
    topics.write(name, [b"%d" % n for n in range(100)])
    topics.trim(name, 0, 100)
    export(api, name, tmp_path)
    copy = topics.make(2)
    import_topic(api.client, engine, f"{tmp_path}/{name}", name=copy)
    (found,) = api.client.topics(names=[copy]).topics
    assert [state.high_watermark for state in found.partitions] == [100, 0]
    topics.write(copy, [b"next"])
    consumer = Consumer(
        {
            "bootstrap.servers": topics.bootstrap,
            "group.id": copy,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    consumer.commit(offsets=[TopicPartition(copy, 0, 100)], asynchronous=False)
    consumer.assign([TopicPartition(copy, 0)])
    message = consumer.poll(120)
    consumer.close()
    assert message is not None
    assert message.error() is None
    assert (message.offset(), message.value()) == (100, b"next")


def test_a_topic_that_is_not_there_is_told(api: ApiServer, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such topic"):
        export(api, "nobody", tmp_path)


def _no_options() -> Any:
    from penstock.pipeline.tables.files import FilesOptions

    return FilesOptions()


# -- the parts ---------------------------------------------------------------------------------


def test_planned_files_hold_every_offset_once() -> None:
    topic = TopicState(
        name="t", topic_id="a" * 32, configs={},
        partitions=[
            PartitionState(log_start=5, high_watermark=100, size_bytes=0),
            PartitionState(log_start=0, high_watermark=0, size_bytes=0),
            PartitionState(log_start=0, high_watermark=10, size_bytes=0),
            PartitionState(log_start=7, high_watermark=7, size_bytes=0),
        ],
    )  # fmt: skip
    runs = [(0, 0, 20, 10), (0, 20, 40, 10), (0, 40, 90, 200), (2, 0, 10, 3)]
    rows = [
        number
        for partition, base, end, length in runs
        for number in (partition, base, end, 0, 0, length, 0, 1)
    ]
    assert len(rows) == len(runs) * RUN_FIELDS
    page = RunPage(
        position=1, partitions=[("a" * 32, 0), ("a" * 32, 1), ("a" * 32, 2)], object_keys=["k"],
        object_bytes=[1], object_raw=[0], object_origins=[""], rows=rows,
    )  # fmt: skip
    planned = plan_files(topic, [page], file_bytes=15)
    ranges = [(wanted.partition, wanted.start, wanted.end) for wanted, _ in planned]
    assert ranges[0] == (0, 5, 40)
    assert ranges[-2:] == [(2, 0, 10), (3, 7, 7)]
    firsts = [one for one in ranges if one[0] == 0]
    assert all(a[2] == b[1] for a, b in itertools.pairwise(firsts))
    assert firsts[-1][2] == 100
    assert len(firsts) > 10  # the large run is split


@pytest.mark.parametrize("count", [0, 1, 1000, 1 << 30, (1 << 33) + 7])
def test_batches_without_records_take_as_many_offsets_as_asked(count: int) -> None:
    offset = 0
    for body, span, _ in empty_batches(count):
        assert crc_is_right(memoryview(body))
        header = stored_header(body, 0)
        assert (header.record_count, header.end_offset) == (0, span)
        offset += span
    assert offset == count


def test_steps_are_a_function_of_the_manifest() -> None:
    assert plan_steps([]) == []
