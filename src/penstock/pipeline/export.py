"""Topics as Parquet files: docs/spark.md says what they look like.

One file per partition and range of offsets, named by both and by the export, so that an attempt
that is repeated writes the same file again, and none of another export. The manifest comes after
them: an export without one is not whole. An older export is deleted after that. All of this is done
by one export at a time (`penstock.pipeline.export_folder`).
"""

import itertools
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.kernels import decode as decoding
from penstock.model.errors import ConflictError, CorruptDataError, NotFoundError
from penstock.model.malformed import MALFORMED
from penstock.pipeline.api_messages import RUN_FIELDS, Range, RunPage, TopicState
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.export_folder import ExportFolder, Marker
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import read_range
from penstock.pipeline.tables.files import FilesOptions, TableFiles, warehouse_url
from penstock.records.batch import NO_TIMESTAMP

KIND: Final = "export"
VERSION: Final = 1
MANIFEST: Final = "_penstock_export.json"
"""Its underscore keeps Spark and its like from reading it as data."""
FILE_BYTES: Final = 64 << 20
"""The bytes of the log that go into one file."""
ROW_GROUP_BYTES: Final = 32 << 20

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(decoding.HEADER_TYPE)),
        # Null where a record has none, which Kafka writes as -1.
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("timestamp_type", pa.int32()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)
_NAME_DIGITS: Final = 16
"""Digits of an export's id in its files' names."""
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

Watch = Callable[[int, int, int], None]
"""Called with progress: bytes done, bytes in all, records done."""


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one partition with offsets in [start, end). `name`: relative to the manifest;
    "" where there are none."""

    name: str
    partition: int
    start: int
    end: int
    records: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An export's contents, as of one position of the journal. `files` by partition and offset."""

    version: int
    export_id: str
    cluster_id: str
    topic: str
    topic_id: str
    configs: dict[str, str]
    partitions: int
    position: int
    time_ms: int
    files: list[ExportedFile]


class ExportItem(msgspec.Struct, frozen=True, kw_only=True):
    """One file to write. Holds no secret: it goes to executors."""

    api: ClientOptions
    files: FilesOptions
    folder: str
    name: str
    wanted: Range
    compression: str


class Exported(msgspec.Struct, kw_only=True):
    """The result of an export; `url`: the manifest's folder."""

    topic: str
    url: str
    files: int = 0
    records: int = 0
    bytes: int = 0
    log_bytes: int = 0
    seconds: float = 0.0


def export_topic(
    client: PipelineClient,
    engine: Engine,
    name: str,
    target: str,
    *,
    options: FilesOptions | None = None,
    compression: str = "zstd",
    file_bytes: int = FILE_BYTES,
    overwrite: bool = False,
    watch: Watch | None = None,
) -> Exported:
    """Write all that a topic has now into the folder `target`/`name`.

    Args:
        target: a directory or URL; executors must reach it too.
        file_bytes: about so much of the log goes into a file.
        overwrite: whether an export, or what is left of one, may be there. The new manifest takes
            the place of its own, and then its files are deleted: cut anywhere, one is whole.

    Raises:
        NotFoundError: no such topic.
        ConflictError: something is there already, or another export writes into the folder.
        FencedError: its job was over before its end, or another export took the folder over.
        LogTruncatedError: retention was faster than the export.
    """
    started_s = client.clock.monotonic_s()
    files_options = options or FilesOptions()
    files = TableFiles(files_options)
    url = f"{warehouse_url(target)}/{folder_name(name)}"
    with JobLease(client, kind=KIND, name=f"export {name}") as lease:
        found = client.topics(names=[name])
        if not found.topics:
            raise NotFoundError("export", name, "no such topic")
        (topic,) = found.topics
        own = Marker(
            export_id=client.random.token_bytes(16).hex(),
            cluster_id=client.info().cluster_id,
            leader_epoch=_leader_epoch(topic),
            job=lease.job,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=lease.time_ms,
        )
        with ExportFolder(files, url, own, client) as folder:
            there = [found.url for found in folder.listed()]
            if there and not overwrite:
                raise ConflictError(
                    "export",
                    url,
                    f"{len(there)} files are there already",
                    "--overwrite deletes them once the new ones are written",
                )
            planned = plan_files(topic, client.runs(_whole(topic)), file_bytes=file_bytes)
            items = [
                ExportItem(
                    api=client.options,
                    files=files_options,
                    folder=url,
                    name=file_name(wanted, own.export_id),
                    wanted=wanted,
                    compression=compression,
                )
                for wanted, _ in planned
            ]
            written = _write_files(
                engine, items, [size for _, size in planned], lease, watch or _watch_nothing
            )
            manifest = _manifest(own, topic, lease, written)
            lease.check()
            folder.check()
            files.put(
                f"{url}/{MANIFEST}", msgspec.json.format(msgspec.json.encode(manifest), indent=1)
            )
            kept = {f"{url}/{name}" for name in (MANIFEST, *(file.name for file in written))}
            files.delete([old for old in there if old not in kept])
    return Exported(
        topic=name,
        url=url,
        files=sum(bool(file.name) for file in written),
        records=sum(file.records for file in written),
        bytes=sum(file.bytes for file in written),
        log_bytes=sum(size for _, size in planned),
        seconds=client.clock.monotonic_s() - started_s,
    )


def _write_files(
    engine: Engine,
    items: Sequence[ExportItem],
    sizes: Sequence[int],
    lease: JobLease,
    watch: Watch,
) -> list[ExportedFile]:
    """Return the written files, in the order of `items`, whose bytes of the log are `sizes`."""
    written: dict[int, ExportedFile] = {}
    done_bytes = records = 0
    # Closed whatever happens: nothing is written any more once this is over.
    with closing(engine.run(write_file, items)) as results:
        for index, result in results:
            lease.check()
            written[index] = result
            done_bytes += sizes[index]
            records += result.records
            watch(done_bytes, sum(sizes), records)
    return [written[index] for index in range(len(items))]


def _watch_nothing(_done: int, _total: int, _records: int) -> None:
    pass


def _manifest(
    own: Marker, topic: TopicState, lease: JobLease, written: list[ExportedFile]
) -> Manifest:
    return Manifest(
        version=VERSION,
        export_id=own.export_id,
        cluster_id=own.cluster_id,
        topic=topic.name,
        topic_id=topic.topic_id,
        configs=topic.configs,
        partitions=len(topic.partitions),
        position=lease.position,
        time_ms=lease.time_ms,
        files=written,
    )


def _leader_epoch(topic: TopicState) -> int:
    """Return the leader epoch of the log's last restore; 0: it was never restored."""
    return max((epoch for state in topic.partitions for epoch, _ in state.epoch_starts), default=0)


def read_manifest(files: TableFiles, url: str) -> Manifest:
    """The manifest of an export's folder.

    Raises:
        NotFoundError: there is none: no export, or one that was cut short.
        CorruptDataError: it is none, or a later release's.
    """
    try:
        body = files.get(f"{url}/{MANIFEST}")
    except NotFoundError as error:
        raise NotFoundError(
            "import", url, f"there is no {MANIFEST}", "an export that was cut short has none"
        ) from error
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except MALFORMED as error:
        raise CorruptDataError("import", f"{url}/{MANIFEST}", str(error)) from error
    if manifest.version != VERSION:
        raise CorruptDataError(
            "import",
            f"{url}/{MANIFEST}",
            f"version {manifest.version}, this release knows {VERSION}",
        )
    return manifest


def _whole(topic: TopicState) -> list[Range]:
    return [
        Range(topic.topic_id, partition, state.log_start, state.high_watermark)
        for partition, state in enumerate(topic.partitions)
    ]


def plan_files(
    topic: TopicState, pages: Iterable[RunPage], *, file_bytes: int
) -> list[tuple[Range, int]]:
    """Ranges that together are all of a topic, each about `file_bytes` of the log, and their bytes.

    Together they hold every offset from the log's start to the high watermark: those that
    compaction left out too, so that an import knows that they are gaps. A partition whose records
    are all gone has an empty range at its end, which says where the next record goes.
    """
    runs: dict[int, list[tuple[int, int]]] = {}
    for page in pages:
        for at in range(0, len(page.rows), RUN_FIELDS):
            index, _, end, _, _, length = page.rows[at : at + 6]
            topic_id, partition = page.partitions[index]
            if topic_id == topic.topic_id:
                runs.setdefault(partition, []).append((end, length))
    planned: list[tuple[Range, int]] = []
    for partition, state in enumerate(topic.partitions):
        start, gathered = state.log_start, 0
        for end, length in runs.get(partition, []):
            gathered += length
            cut = min(end, state.high_watermark)
            if gathered < file_bytes or cut <= start:
                continue
            planned += _split(topic.topic_id, partition, start, cut, gathered, file_bytes)
            start, gathered = cut, 0
        is_emptied = state.log_start == state.high_watermark > 0
        if start < state.high_watermark or is_emptied:
            planned.append(
                (Range(topic.topic_id, partition, start, state.high_watermark), gathered)
            )
    return planned


def _split(
    topic_id: str, partition: int, start: int, end: int, size: int, file_bytes: int
) -> Iterator[tuple[Range, int]]:
    """A range that a large run made too long, in equal parts by offset."""
    count = min(max(1, round(size / file_bytes)), end - start)
    bounds = [start + (end - start) * number // count for number in range(count + 1)]
    for low, high in itertools.pairwise(bounds):
        yield Range(topic_id, partition, low, high), size // count


def folder_name(topic: str) -> str:
    """Topics have letters, digits, `.`, `_` and `-` in their names, which every store takes."""
    assert _SAFE_NAME.fullmatch(topic), topic
    return topic


def file_name(wanted: Range, export_id: str) -> str:
    """Sorted by name, the files of an export are sorted by partition and offset."""
    return (
        f"{wanted.partition:06}-{wanted.start:020}-{wanted.end:020}"
        f"-{export_id[:_NAME_DIGITS]}.parquet"
    )


# -- on executors ----------------------------------------------------------------------------------


def write_file(item: ExportItem) -> ExportedFile:
    """Read a range and write its file; nothing where it holds no record."""
    wanted = item.wanted
    records = size_bytes = 0
    files = TableFiles(item.files)
    with (
        PipelineClient(item.api) as client,
        ObjectAccess(client) as objects,
        tempfile.TemporaryDirectory(prefix="penstock-export-") as scratch,
    ):
        path = Path(scratch) / "rows.parquet"
        compression = None if item.compression == "none" else item.compression
        with pq.ParquetWriter(path, SCHEMA, compression=compression) as writer:
            for rows in _row_groups(_rows(client, objects, wanted)):
                writer.write_table(rows, row_group_size=rows.num_rows)
                records += rows.num_rows
        if records:
            size_bytes = path.stat().st_size
            files.put_file(f"{item.folder}/{item.name}", path)
    return ExportedFile(
        name=item.name if records else "",
        partition=wanted.partition,
        start=wanted.start,
        end=wanted.end,
        records=records,
        bytes=size_bytes,
    )


def _rows(client: PipelineClient, objects: ObjectAccess, wanted: Range) -> Iterator[pa.Table]:
    for part in read_range(client, objects, wanted):
        found = decoding.decode(
            part.body,
            start_offset=wanted.start,
            end_offset=wanted.end,
            subject=f"partition {wanted.partition} of topic {wanted.topic_id}",
        ).table()
        if found.num_rows:
            yield export_rows(found, wanted.partition)


def export_rows(found: pa.Table, partition: int) -> pa.Table:
    """Decoded columns as SCHEMA has them."""
    timestamps = found.column(decoding.TIMESTAMP)
    timestamps = pc.if_else(pc.equal(timestamps, NO_TIMESTAMP), None, timestamps)
    columns = {
        "key": found.column(decoding.KEY),
        "value": found.column(decoding.VALUE),
        "headers": found.column(decoding.HEADERS),
        "timestamp": timestamps.cast(SCHEMA.field("timestamp").type),
        "timestamp_type": found.column(decoding.TIMESTAMP_TYPE),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), found.num_rows),
        "offset": found.column(decoding.OFFSET),
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def _row_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables joined to about ROW_GROUP_BYTES."""
    gathered: list[pa.Table] = []
    for table in tables:
        gathered.append(table)
        if sum(one.nbytes for one in gathered) >= ROW_GROUP_BYTES:
            yield _joined(gathered)
            gathered = []
    if gathered:
        yield _joined(gathered)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables)
