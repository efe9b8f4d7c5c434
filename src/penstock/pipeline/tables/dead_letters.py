"""Records that can't be rows: staged as Parquet by executors, then written to a topic once.

The table's commit decides which of them count: it names their files and a batch number in
DEAD_LETTERS_PROPERTY. The write follows the commit, under that number, so that a run that finds it
missing (the same run, the next one, another driver) can do it, and the log takes it once. The log
also remembers what was written, for as long as there is the table.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.kernels.encode import EncodedBatch, Rows, encode
from penstock.model.errors import CorruptDataError, InvalidRequestError, NotFoundError
from penstock.model.malformed import MALFORMED
from penstock.pipeline.api_messages import OutputObject, TopicState, WriteRequest, WriteRun
from penstock.pipeline.client import PipelineClient, RefusedError
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.tables.files import TableFiles
from penstock.pipeline.tables.letters import LEFT_OUT, Headers, letter_headers
from penstock.pipeline.tables.rows import BAD_SCHEMA
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.records.sums import crcs_of
from penstock.segment import job_object_key
from penstock.segment.format import Mark, SegmentRun, build_segment

DEAD_LETTERS_PROPERTY: Final = "penstock.dead-letters"
FOLDER: Final = "penstock-dead-letters"
"""In a table's location."""
_RECORDS_PER_BATCH: Final = 1000
_STALE: Final = "stale_write"


class BadFile(msgspec.Struct, frozen=True):
    """A staged file of BAD_SCHEMA."""

    url: str
    row_count: int


class DeadLetters(msgspec.Struct, frozen=True):
    """The last batch of dead letters that a table named."""

    batch_id: int
    files: list[BadFile]


def decode_dead_letters(properties: Mapping[str, str]) -> DeadLetters | None:
    """Read them from a table's properties. Raises: CorruptDataError."""
    text = properties.get(DEAD_LETTERS_PROPERTY)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=DeadLetters)
    except MALFORMED as error:
        raise CorruptDataError("read a table's dead letters", text, str(error)) from error


def encode_dead_letters(letters: DeadLetters) -> str:
    """The property's value."""
    return msgspec.json.encode(letters).decode()


class BadWriter:
    """Gathers a task's bad records in one staged file, if there are any; a context manager."""

    def __init__(self, location: str, files: TableFiles, *, name: str) -> None:
        self._url = f"{location}/{FOLDER}/{name}.parquet"
        self._files = files
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._writer: Any = None
        self._row_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, bad: pa.Table) -> None:
        """Take records (BAD_SCHEMA)."""
        if not bad.num_rows:
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="penstock-table-")
            self._writer = pq.ParquetWriter(self._path, BAD_SCHEMA, compression="zstd")
        self._writer.write_table(bad)
        self._row_count += bad.num_rows

    def finish(self) -> list[BadFile]:
        """Upload what there is."""
        if self._folder is None:
            return []
        self._writer.close()
        self._files.put_file(self._url, self._path)
        return [BadFile(self._url, self._row_count)]

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "bad.parquet"


class DeadLetterTopic:
    """Writes a table's dead letters to their topic.

    Args:
        source: name of the topic that the records are of.
        source_id: its id.
        name: of the dead-letter topic.
        writer_id: of this table alone.
    """

    def __init__(
        self,
        client: PipelineClient,
        files: TableFiles,
        *,
        source: str,
        source_id: str,
        name: str,
        writer_id: str,
        clock: Clock,
        random: Random,
    ) -> None:
        self._client = client
        self._files = files
        self._source = source
        self._source_id = source_id
        self._name = name
        self._writer_id = writer_id
        self._clock = clock
        self._random = random

    def find(self) -> TopicState:
        """The topic. Raises: InvalidRequestError: there is none."""
        topics = self._client.topics(names=[self._name]).topics
        if not topics:
            raise InvalidRequestError(
                "set bad records aside",
                self._source,
                f"there is no topic {self._name}",
                f"create it, or name another one by penstock.table.dlq of {self._source}",
            )
        return topics[0]

    def last_batch(self) -> int:
        """The number of the last batch that was written; 0: none yet."""
        writer = self._client.writer(self._writer_id)
        return 0 if writer is None else writer.batch_id

    def deliver(self, letters: DeadLetters) -> int:
        """Write a batch, unless it has been; how many records were written.

        The staged files are deleted behind it; those that are left by a kill are orphans.

        Raises:
            InvalidRequestError: there is no such topic.
            NotFoundError: a staged file is gone though its batch was never written.
        """
        if self._is_written(letters) or not letters.files:
            return 0
        topic = self.find()
        try:
            rows = self._read(letters)
        except NotFoundError as error:
            if self._is_written(letters):
                # By another driver since, which deleted its files.
                return 0
            raise NotFoundError(
                "set bad records aside",
                self._source,
                f"{error.subject} is gone, and its records never came into {self._name}",
                "it was deleted, or the log was restored to before they came: if they can't be "
                f"recovered, remove the table's property {DEAD_LETTERS_PROPERTY}",
            ) from error
        with JobLease(self._client, kind="table", name=self._writer_id) as job:
            request = self._store(topic, rows, letters.batch_id, job.job)
            try:
                self._client.write(request)
            except RefusedError as error:
                # Another driver was faster, and is further by now.
                if error.reason != _STALE:
                    raise
        self._files.delete([file.url for file in letters.files])
        return len(rows)

    def _is_written(self, letters: DeadLetters) -> bool:
        return self.last_batch() >= letters.batch_id

    def _read(self, letters: DeadLetters) -> pa.Table:
        return pa.concat_tables(
            [pq.read_table(pa.BufferReader(self._files.get(file.url))) for file in letters.files]
        )

    def _store(self, topic: TopicState, rows: pa.Table, batch_id: int, job: int) -> WriteRequest:
        partitions = rows.column("partition").to_numpy() % len(topic.partitions)
        size_max = int(topic.configs.get("max.message.bytes", 2**31 - 1))
        runs: list[SegmentRun] = []
        batches_of: list[list[EncodedBatch]] = []
        for partition in np.unique(partitions).tolist():
            batches = self._encode(rows.filter(pa.array(partitions == partition)), size_max)
            batches_of.append(batches)
            runs.append(_run(topic.topic_id, partition, batches))
        segment = build_segment(runs, offsets_final=False)
        key = job_object_key(job=job, name=self._random.token_bytes(16).hex())
        with ObjectAccess(self._client) as objects:
            objects.put(key, segment.parts)
        return WriteRequest(
            job=job,
            writer_id=self._writer_id,
            batch_id=batch_id,
            incarnation=self._writer_id,
            objects=[OutputObject(key=key, size_bytes=segment.size_bytes)],
            runs=[
                WriteRun(
                    topic_id=topic.topic_id,
                    partition=run.partition,
                    object=0,
                    position=position,
                    batches=_numbers(batches),
                    crcs=crcs_of(batch.body for batch in batches),
                )
                for run, position, batches in zip(runs, segment.positions, batches_of, strict=True)
            ],
        )

    def _encode(self, rows: pa.Table, size_max: int) -> list[EncodedBatch]:
        places = rows.select(["headers", "reason", "partition", "offset"]).append_column(
            "timestamp", rows.column("timestamp").cast(pa.int64())
        )
        own: list[Headers] = []
        headers: list[Headers] = []
        for row in places.to_pylist():
            own.append(letter_headers(row, topic=self._source, topic_id=self._source_id))
            headers.append(
                [*((header["key"], header["value"]) for header in row["headers"]), *own[-1]]
            )
        header_column = _header_column(headers)
        # Times of their arrival here: a record that is bad for its timestamp would be refused or
        # expire at once with it.
        times = np.full(rows.num_rows, self._clock.now_ms(), np.int64)
        keys, values = rows.column("key"), rows.column("value")
        try:
            return _encoded(keys, values, times, header_column, size_max)
        except InvalidRequestError:
            # One is larger than its topic takes: of such ones their headers say where they are.
            sizes = Rows.of(keys, values, times, header_column).sizes
            fits = pa.array(sizes <= size_max)
            header_column = _header_column(
                [
                    row if size <= size_max else [*place, (LEFT_OUT, b"%d bytes" % size)]
                    for row, place, size in zip(headers, own, sizes.tolist(), strict=True)
                ]
            )
            none = pa.scalar(None, pa.binary())
            keys, values = pc.if_else(fits, keys, none), pc.if_else(fits, values, none)
            return _encoded(keys, values, times, header_column, size_max)


def _header_column(rows: Sequence[Headers]) -> pa.Array:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.array([[{"key": key, "value": value} for key, value in row] for row in rows], kind)


def _encoded(
    keys: pa.ChunkedArray,
    values: pa.ChunkedArray,
    times: NDArray[np.int64],
    headers: pa.Array,
    size_max: int,
) -> list[EncodedBatch]:
    return encode(
        keys,
        values,
        times,
        headers,
        codec="lz4",
        batch_records=_RECORDS_PER_BATCH,
        batch_bytes=min(512 << 10, size_max),
        message_bytes_max=size_max,
    )


def _run(topic_id: str, partition: int, batches: Sequence[EncodedBatch]) -> SegmentRun:
    records = sum(batch.record_count for batch in batches)
    return SegmentRun(
        topic_id=bytes.fromhex(topic_id),
        partition=partition,
        base_offset=0,
        end_offset=records,
        record_count=records,
        batch_count=len(batches),
        max_timestamp=max(batch.max_timestamp for batch in batches),
        parts=[batch.body for batch in batches],
        length=sum(batch.length for batch in batches),
        marks=[Mark(base_offset=0, position=0, max_timestamp=-1)],
    )


def _numbers(batches: Sequence[EncodedBatch]) -> list[int]:
    """Make the numbers of `WriteRun.batches`: times as differences, no producer."""
    numbers: list[int] = []
    before = 0
    for batch in batches:
        numbers += [batch.length, batch.record_count, batch.max_timestamp - before, -1, -1, -1]
        before = batch.max_timestamp
    return numbers
