"""A task of a write puts rows into raw segment objects of the job, and reports what they hold.

Objects have names of their own at each attempt, and nothing names them before the driver commits:
a task that is tried again, or twice at a time, leaves orphans that the agents delete.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from penstock.kernels.encode import EncodedBatch
from penstock.model.errors import InvalidRequestError, PenstockError, RetryableError
from penstock.pipeline.api_messages import OutputObject, WriteRun
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.connector.write_plan import TaskOutput, TopicTarget, WritePlan, find_topic
from penstock.pipeline.connector.write_rows import RowEncoder
from penstock.pipeline.objects import ObjectAccess
from penstock.records.sums import crcs_of
from penstock.segment import RunDescriber, build_segment, job_object_key
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 16 << 20
"""Rows that are encoded at a time, so that batches are full although Spark's are small."""
_RENEWALS_PER_LEASE: Final = 3
_FRESH_SHARE: Final = 0.2
"""The share of a lease within which the job is not renewed again: each renewal is a journal entry,
and short tasks can be many."""


def write_rows(plan: WritePlan, chunks: Iterable[pa.RecordBatch]) -> TaskOutput:
    """Encode and put all rows of a task.

    Raises:
        FencedError: the job is over.
        InvalidRequestError, NotFoundError: as `RowEncoder.encode`.
        RetryableError: neither agents nor store answered.
    """
    with PipelineClient(plan.options.api) as client, ObjectAccess(client) as objects:
        return write_with(client, objects, plan, chunks)


def write_with(
    client: PipelineClient, objects: ObjectAccess, plan: WritePlan, chunks: Iterable[pa.RecordBatch]
) -> TaskOutput:
    """Do the same as `write_rows`, with a given client and access."""
    with (
        RenewedJob(client, plan) as job,
        _Objects(client, objects, plan.job) as output,
    ):
        topics = _Topics(client, plan.topics)
        encoder = RowEncoder(
            columns=plan.columns,
            topic=plan.options.topic,
            codec=plan.options.codec,
            batch_bytes=plan.options.batch_bytes,
            find_topic=topics.find,
            below=client.random.below,
        )
        for chunk in _larger(chunks):
            job.check()
            for rows in encoder.encode(chunk, now_ms=client.clock.now_ms()):
                output.add(rows.topic_id, rows.partition, rows.batches)
            if output.pending_bytes >= plan.options.object_bytes:
                output.put()
        output.put()
        finished = output.finish()
        job.renew_if_old()  # from here until the commit perhaps no other process renews it
        return finished


class RenewedJob:
    """Keeps the write's job alive while a task works for it."""

    def __init__(self, client: PipelineClient, plan: WritePlan) -> None:
        self._client = client
        self._job = plan.job
        self._lease_ms = plan.lease_ms
        self._renewed_ms = plan.opened_ms
        self._over = threading.Event()
        self._lost: PenstockError | None = None
        name = f"lease of job {plan.job}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.renew_if_old()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def renew_if_old(self) -> None:
        """Renew, unless that was done a moment ago.

        Raises:
            FencedError: the job is over.
        """
        # Machines' clocks differ a little: a time ahead of this clock doesn't count as recent.
        silent_ms = self._client.clock.now_ms() - self._renewed_ms
        if not 0 <= silent_ms < self._lease_ms * _FRESH_SHARE:
            self._renew()

    def check(self) -> None:
        """Raise the error that the thread got."""
        if self._lost is not None:
            raise self._lost

    def _renew(self) -> None:
        before_ms = self._client.clock.now_ms()
        self._client.renew_job(self._job)
        self._renewed_ms = before_ms

    def _run(self) -> None:
        while not self._over.wait(self._lease_ms / 1000 / _RENEWALS_PER_LEASE):
            try:
                self._renew()
            except RetryableError as error:
                heard(Cause.JOB_LEASE, error, logger, "the job of a write can't be renewed now")
                continue
            except PenstockError as error:
                self._lost = error
                return


class _Topics:
    """Topics by name; asked for once a task."""

    def __init__(self, client: PipelineClient, known: Sequence[TopicTarget]) -> None:
        self._client = client
        self._known = {topic.name: topic for topic in known}

    def find(self, name: str) -> TopicTarget:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = find_topic(self._client, name)
        return known


class _Objects:
    """Gathers batches by partition and puts them as raw segments, one while the next is made."""

    def __init__(self, client: PipelineClient, access: ObjectAccess, job: int) -> None:
        self._random = client.random
        self._access = access
        self._job = job
        self._pending: dict[tuple[bytes, int], list[EncodedBatch]] = {}
        self._objects: list[OutputObject] = []
        self._runs: list[WriteRun] = []
        self._record_count = 0
        self._thread = ThreadPoolExecutor(1)
        self._put: Future[None] | None = None
        self.pending_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown()

    def add(self, topic_id: str, partition: int, batches: list[EncodedBatch]) -> None:
        """Add batches behind those of the partition that are there."""
        self._pending.setdefault((bytes.fromhex(topic_id), partition), []).extend(batches)
        self.pending_bytes += sum(batch.length for batch in batches)

    def put(self) -> None:
        """Begin to put what was added, after what was put before."""
        if not self._pending:
            return
        described, number = [], len(self._objects)
        places = sorted(self._pending)
        for topic_id, partition in places:
            run = RunDescriber(
                base_offset=0, operation="write", subject=f"{topic_id.hex()}-{partition}"
            )
            for batch in self._pending[topic_id, partition]:
                run.add(batch.body, raw_offset=run.end_offset)
            described.append(run.describe(topic_id, partition))
        built = build_segment(described, offsets_final=False)
        for (topic_id, partition), position in zip(places, built.positions, strict=True):
            batches = self._pending[topic_id, partition]
            self._runs.append(
                WriteRun(
                    topic_id=topic_id.hex(),
                    partition=partition,
                    object=number,
                    position=position,
                    batches=_described(batches),
                    crcs=crcs_of(batch.body for batch in batches),
                )
            )
            self._record_count += sum(batch.record_count for batch in batches)
        key = job_object_key(job=self._job, name=self._random.token_bytes(16).hex())
        self._objects.append(OutputObject(key=key, size_bytes=built.size_bytes))
        self._pending = {}
        self.pending_bytes = 0
        self._wait()
        self._put = self._thread.submit(self._access.put, key, built.parts)

    def finish(self) -> TaskOutput:
        """Wait for the last put; what all hold."""
        self._wait()
        return TaskOutput(
            job=self._job,
            objects=self._objects,
            runs=self._runs,
            record_count=self._record_count,
        )

    def _wait(self) -> None:
        if self._put is not None:
            self._put.result()


def _described(batches: Sequence[EncodedBatch]) -> list[int]:
    numbers: list[int] = []
    before = 0
    for batch in batches:
        numbers += (batch.length, batch.record_count, batch.max_timestamp - before, -1, -1, -1)
        before = batch.max_timestamp
    return numbers


def _larger(chunks: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Rows in chunks of about CHUNK_BYTES."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for chunk in chunks:
        if not chunk.num_rows:
            continue
        gathered.append(chunk)
        size += chunk.nbytes
        if size >= CHUNK_BYTES:
            yield _joined(gathered)
            gathered, size = [], 0
    if gathered:
        yield _joined(gathered)


def _joined(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(chunks) == 1:
        return chunks[0]
    try:
        return pa.concat_batches(chunks)
    except pa.ArrowInvalid as error:
        raise InvalidRequestError("write", "rows", str(error)) from error
