"""An export back into a topic: the same partitions, order, headers and timestamps, once per import.

Files are encoded by executors, and committed in order by the API's write: all files of a step or
none, under the import's id and the step's number. So an import that is started again goes on where
it was, and one that is through does nothing.

Offsets. The log gives them, one after the other. Into partitions that were never written to they
come out as they were: what the export begins with, and its gaps, are written as offsets that no
record has: batches without records, or whose records lie apart, as Kafka's own compaction leaves
them. Otherwise (`offsets="new"`) records follow what is there, without gaps.
"""

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock.kernels.encode import encode
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
)
from penstock.pipeline.api_messages import OutputObject, TopicState, WriteRequest, WriteRun
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.engine import Engine
from penstock.pipeline.export import SCHEMA, ExportedFile, Manifest, read_manifest
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.tables.files import FilesOptions, TableFiles, warehouse_url
from penstock.records.batch import CRC_FROM, HEADER, LENGTH_END, LOG_APPEND_TIME, MAGIC
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.sums import crcs_of
from penstock.segment import Mark, SegmentRun, build_segment, job_object_key
from penstock.segment.runs import MARK_BYTES
from penstock.system.randomness import SystemRandom

KIND: Final = "import"
STEP_FILES: Final = 16
STEP_BYTES: Final = 512 << 20
SPAN_MAX: Final = 1 << 30
"""Offsets of one batch: their count has to fit 31 bits."""
SPARSE_RECORDS: Final = 1000

Watch = Callable[[int, int], None]
"""Called with progress: records committed, records in all."""


class ImportItem(msgspec.Struct, frozen=True, kw_only=True):
    """One file to encode. Holds no secret: it goes to executors."""

    api: ClientOptions
    files: FilesOptions
    folder: str
    file: ExportedFile
    skipped: int
    """Offsets before the file's first that have to be skipped too."""
    topic_id: str
    job: int
    keeps_offsets: bool
    codec: str
    message_bytes_max: int
    compacts: bool


class ImportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """An object with one run; `batches` as in `WriteRun`. `key` is "" where there is nothing."""

    key: str
    size_bytes: int
    position: int
    batches: list[int]
    crcs: bytes = b""


class Imported(msgspec.Struct, kw_only=True):
    """The result of an import: `records` by this process; `repeated_records` by an earlier one."""

    topic: str
    import_id: str
    offsets: str
    records: int = 0
    repeated_records: int = 0
    steps: int = 0
    seconds: float = 0.0


def import_topic(
    client: PipelineClient,
    engine: Engine,
    source: str,
    *,
    name: str = "",
    import_id: str = "",
    offsets: str = "keep",
    codec: str = "zstd",
    options: FilesOptions | None = None,
    watch: Watch | None = None,
) -> Imported:
    """Write an export into a topic that exists.

    Args:
        source: the folder of an export, with its manifest.
        name: of the topic; "": as it was called.
        import_id: what makes it happen once; "": the export's own id and the topic's.
        offsets: `keep` them, in a topic that was never written to, or give `new` ones.
        codec: of the batches.

    Raises:
        NotFoundError: no such topic, or no whole export.
        ConflictError: the topic has been written to, so that offsets can't be kept.
        InvalidRequestError: the topic has too few partitions, or doesn't take the records.
    """
    started_s = client.clock.monotonic_s()
    folder = warehouse_url(source)
    manifest = read_manifest(TableFiles(options or FilesOptions()), folder)
    wanted = name or manifest.topic
    found = client.topics(names=[wanted], uncommitted=True).topics
    if not found:
        raise NotFoundError(
            "import", wanted, "no such topic", f"create it with {manifest.partitions} partitions"
        )
    (topic,) = found
    if len(topic.partitions) < manifest.partitions:
        raise InvalidRequestError(
            "import",
            wanted,
            f"{len(topic.partitions)} partitions, the export has {manifest.partitions}",
        )
    writer_id = f"import:{import_id or f'{manifest.export_id}:{topic.topic_id}'}"
    steps = plan_steps(manifest.files)
    # Another way to cut the same export would number its steps otherwise.
    incarnation = f"{manifest.export_id}:{topic.topic_id}:{offsets}:{len(steps)}"
    writer = client.writer(writer_id)
    if writer is not None and writer.incarnation != incarnation:
        raise ConflictError(
            "import",
            wanted,
            f"{writer_id} was another export, another topic or other offsets",
            "choose another --import-id",
        )
    keeps = offsets == "keep"
    if writer is None and keeps:
        _check_untouched(topic)
    result = Imported(topic=wanted, import_id=writer_id, offsets=offsets)
    total = sum(file.records for file in manifest.files)
    first = 0 if writer is None else writer.batch_id + 1
    result.repeated_records = sum(file.records for step in steps[:first] for file in step)
    with JobLease(client, kind=KIND, name=f"import {wanted}") as lease:
        make = _item_maker(client, lease.job, manifest, topic, folder, options, codec, keeps=keeps)
        with closing(_by_step(engine, steps, first, make)) as encoded:
            for number, done in encoded:
                lease.check()
                _commit(
                    client, lease.job, topic, writer_id, number, incarnation, steps[number], done
                )
                result.steps += 1
                result.records += sum(file.records for file in steps[number])
                if watch is not None:
                    watch(result.repeated_records + result.records, total)
    result.seconds = client.clock.monotonic_s() - started_s
    return result


def plan_steps(files: Sequence[ExportedFile]) -> list[list[ExportedFile]]:
    """Files in the groups that are committed together: a function of the manifest alone."""
    steps: list[list[ExportedFile]] = []
    size = 0
    for file in sorted(files, key=lambda file: (file.partition, file.start)):
        if not steps or len(steps[-1]) >= STEP_FILES or size + file.bytes > STEP_BYTES:
            steps.append([])
            size = 0
        steps[-1].append(file)
        size += file.bytes
    return steps


def _check_untouched(topic: TopicState) -> None:
    for partition, state in enumerate(topic.partitions):
        if state.high_watermark:
            raise ConflictError(
                "import",
                f"{topic.name}-{partition}",
                f"it has been written to: offset {state.high_watermark} is next",
                "offsets can be kept in a topic that is new; else --offsets new",
            )


def _item_maker(
    client: PipelineClient,
    job: int,
    manifest: Manifest,
    topic: TopicState,
    folder: str,
    options: FilesOptions | None,
    codec: str,
    *,
    keeps: bool,
) -> Callable[[ExportedFile], ImportItem]:
    starts: dict[int, int] = {}
    for file in manifest.files:
        starts[file.partition] = min(starts.get(file.partition, file.start), file.start)

    def make(file: ExportedFile) -> ImportItem:
        return ImportItem(
            api=client.options,
            files=options or FilesOptions(),
            folder=folder,
            file=file,
            skipped=file.start if keeps and starts[file.partition] == file.start else 0,
            topic_id=topic.topic_id,
            job=job,
            keeps_offsets=keeps,
            codec=codec,
            message_bytes_max=int(topic.configs.get("max.message.bytes", 2**31 - 1)),
            compacts="compact" in topic.configs.get("cleanup.policy", ""),
        )

    return make


def _by_step(
    engine: Engine,
    steps: Sequence[Sequence[ExportedFile]],
    first: int,
    make: Callable[[ExportedFile], ImportItem],
) -> Generator[tuple[int, list[ImportedFile]], None, None]:
    """Steps from `first` on, in order, each when all of its files are encoded. To be closed."""
    places = [
        (number, index)
        for number in range(first, len(steps))
        for index in range(len(steps[number]))
    ]
    items = (make(steps[number][index]) for number, index in places)
    done: dict[int, dict[int, ImportedFile]] = {}
    following = first
    with closing(engine.run(encode_file, items)) as results:
        for place, result in results:
            number, index = places[place]
            done.setdefault(number, {})[index] = result
            while following < len(steps) and len(done.get(following, ())) == len(steps[following]):
                encoded = done.pop(following)
                yield following, [encoded[index] for index in sorted(encoded)]
                following += 1


def _commit(
    client: PipelineClient,
    job: int,
    topic: TopicState,
    writer_id: str,
    number: int,
    incarnation: str,
    step: Sequence[ExportedFile],
    encoded: Sequence[ImportedFile],
) -> None:
    named = [(file, one) for file, one in zip(step, encoded, strict=True) if one.key]
    if not named:
        return
    written = client.write(
        WriteRequest(
            job=job,
            writer_id=writer_id,
            batch_id=number,
            incarnation=incarnation,
            objects=[OutputObject(key=one.key, size_bytes=one.size_bytes) for _, one in named],
            runs=[
                WriteRun(
                    topic_id=topic.topic_id,
                    partition=file.partition,
                    object=index,
                    position=one.position,
                    batches=one.batches,
                    crcs=one.crcs,
                )
                for index, (file, one) in enumerate(named)
            ],
        )
    )
    if ":keep:" not in incarnation:
        return
    ends = {given.partition: given.end for given in written.ranges}
    for file, _ in named:
        last = max(other.end for other, _ in named if other.partition == file.partition)
        if ends.get(file.partition) != last:
            raise ConflictError(
                "import",
                f"{topic.name}-{file.partition}",
                f"its end is {ends.get(file.partition)} instead of {last}: another client wrote",
                "delete the topic and import again, with no producers",
            )


# -- on executors ----------------------------------------------------------------------------------


def encode_file(item: ImportItem) -> ImportedFile:
    """Encode a file's records into an object of one run, and put it."""
    file = item.file
    batches: list[tuple[bytes | memoryview, int, int]] = []
    """Bytes, offsets, max timestamp."""
    following = file.start
    if item.keeps_offsets:
        batches += empty_batches(item.skipped)
    if file.name:
        body = TableFiles(item.files).get(f"{item.folder}/{file.name}")
        reader = pq.ParquetFile(pa.BufferReader(body))
        if not reader.schema_arrow.equals(SCHEMA):
            raise CorruptDataError("import", file.name, "its columns aren't an export's")
        for number in range(reader.num_row_groups):
            for rows in _batchable(reader.read_row_group(number)):
                first, last = _check(rows, item, following)
                if item.keeps_offsets:
                    batches += empty_batches(first - following)
                batches += _encode(rows, item)
                following = last + 1
    if item.keeps_offsets:
        batches += empty_batches(file.end - following)
    if not batches:
        return ImportedFile(key="", size_bytes=0, position=0, batches=[])
    run, numbers = describe(item.topic_id, file.partition, batches)
    segment = build_segment([run], offsets_final=False)
    key = job_object_key(job=item.job, name=SystemRandom().token_bytes(16).hex())
    with PipelineClient(item.api) as client, ObjectAccess(client) as objects:
        objects.put(key, segment.parts)
    return ImportedFile(
        key=key,
        size_bytes=segment.size_bytes,
        position=segment.positions[0],
        batches=numbers,
        crcs=crcs_of(body for body, _, _ in batches),
    )


def _batchable(rows: pa.Table) -> Iterator[pa.Table]:
    """Rows that may stand in the same batches: of one timestamp type, and where the log stamped
    them of one timestamp, since such a batch has but one."""
    if not rows.num_rows:
        return
    kinds = rows.column("timestamp_type").to_numpy()
    times = _times(rows)
    changes = (np.diff(kinds) != 0) | ((np.diff(times) != 0) & (kinds[1:] == 1))
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), rows.num_rows]
    for start, end in itertools.pairwise(bounds):
        yield rows.slice(start, end - start)


def _times(rows: pa.Table) -> Any:
    return rows.column("timestamp").cast(pa.int64()).fill_null(-1).to_numpy()


def _check(rows: pa.Table, item: ImportItem, following: int) -> tuple[int, int]:
    """The first and the last offset. Raises: CorruptDataError, InvalidRequestError."""
    offsets = rows.column("offset").to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    if first < following or last >= item.file.end or (np.diff(offsets) <= 0).any():
        raise CorruptDataError(
            "import", item.file.name, f"offsets {first} to {last} where {following} is due"
        )
    if item.compacts and rows.column("key").null_count:
        raise InvalidRequestError(
            "import", item.file.name, "records without a key, and the topic is compacted by key"
        )
    return first, last


def _encode(rows: pa.Table, item: ImportItem) -> list[tuple[bytes | memoryview, int, int]]:
    offsets = rows.column("offset").to_numpy()
    times = _times(rows)
    stamp = int(times[0]) if rows.column("timestamp_type")[0].as_py() == 1 else -1
    if item.keeps_offsets and int(offsets[-1] - offsets[0]) + 1 != rows.num_rows:
        return list(_sparse(rows, item, offsets, times, stamp))
    return [
        (batch.body, batch.record_count, batch.max_timestamp)
        for batch in encode(
            rows.column("key"),
            rows.column("value"),
            times,
            rows.column("headers"),
            codec=item.codec,
            message_bytes_max=item.message_bytes_max,
            log_append_ms=stamp,
        )
    ]


def _sparse(
    rows: pa.Table, item: ImportItem, offsets: Any, times: Any, stamp: int
) -> Iterator[tuple[bytes | memoryview, int, int]]:
    """Batches whose records lie apart. In Python, record by record: for what compaction left."""
    listed = rows.select(["key", "value", "headers"]).to_pylist()
    start = 0
    end_offset = int(offsets[0])
    while start < len(listed):
        base = end_offset
        end, size = start, 0
        while end < len(listed) and end - start < SPARSE_RECORDS:
            row = listed[end]
            size += len(row["key"] or b"") + len(row["value"] or b"") + 64
            far = int(offsets[end]) - base >= SPAN_MAX
            if end > start and (far or size > min(item.message_bytes_max, 512 << 10)):
                break
            end += 1
        skipped = int(offsets[start]) - base
        if skipped >= SPAN_MAX:
            yield from empty_batches(skipped)
            base += skipped
        records = [
            Record(
                offset_delta=int(offsets[index]) - base,
                timestamp=int(times[index]),
                key=listed[index]["key"],
                value=listed[index]["value"],
                headers=tuple(
                    (header["key"], header["value"]) for header in listed[index]["headers"]
                ),
            )
            for index in range(start, end)
        ]
        body = encode_batch(
            records, codec=item.codec, attributes=LOG_APPEND_TIME if stamp >= 0 else 0
        )
        if len(body) > item.message_bytes_max:
            raise InvalidRequestError(
                "import",
                f"{item.file.name} offset {int(offsets[start])}",
                f"a batch of {len(body)} bytes; max.message.bytes is {item.message_bytes_max}",
            )
        end_offset = int(offsets[end - 1]) + 1
        yield bytes(body), end_offset - base, max(record.timestamp for record in records)
        start = end


def empty_batches(count: int) -> Iterator[tuple[bytes | memoryview, int, int]]:
    """Batches without records that take `count` offsets, as Kafka's cleaner leaves them.

    Source: Kafka's DefaultRecordBatch.writeEmptyHeader.
    """
    while count > 0:
        span = min(count, SPAN_MAX)
        batch = bytearray(
            HEADER.pack(
                0, HEADER.size - LENGTH_END, 0, MAGIC, 0, 0, span - 1, -1, -1, -1, -1, -1, 0
            )
        )
        batch[17:21] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")
        yield bytes(batch), span, -1
        count -= span


def describe(
    topic_id: str, partition: int, batches: Sequence[tuple[bytes | memoryview, int, int]]
) -> tuple[SegmentRun, list[int]]:
    """The run of an object whose offsets aren't final, and `WriteRun.batches`."""
    numbers: list[int] = []
    marks: list[Mark] = []
    position = offset = 0
    newest = -1
    before = 0
    for body, span, timestamp in batches:
        if not marks or position - marks[-1].position >= MARK_BYTES:
            marks.append(Mark(base_offset=offset, position=position, max_timestamp=newest))
        # An empty batch has no time: what came before keeps the sum of differences as it is.
        shown = timestamp if timestamp >= 0 or newest < 0 else newest
        numbers += [len(body), span, shown - before, -1, -1, -1]
        before = shown
        newest = max(newest, timestamp)
        position += len(body)
        offset += span
    run = SegmentRun(
        topic_id=bytes.fromhex(topic_id),
        partition=partition,
        base_offset=0,
        end_offset=offset,
        record_count=offset,
        batch_count=len(batches),
        max_timestamp=newest,
        parts=[body for body, _, _ in batches],
        length=position,
        marks=marks,
    )
    return run, numbers
