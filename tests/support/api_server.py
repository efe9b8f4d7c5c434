"""The pipeline API in tests: a server in a thread with a client, and small jobs by hand."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from penstock.app.server import Server
from penstock.config.about import MIB
from penstock.config.settings import ServerSettings
from penstock.log import Log
from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey, partition_key
from penstock.pipeline.api_messages import (
    RUN_FIELDS,
    OutputObject,
    Range,
    ReplacedPartition,
    ReplaceRequest,
    RunPage,
    RunsRequest,
    WriteRequest,
    WriteRun,
)
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import RangePart, read_range
from penstock.records.batch import check_batch, stored_header
from penstock.records.sums import crcs_of, partition_seed
from penstock.segment import RunDescriber, SegmentRun, build_segment, job_object_key
from penstock.state.answers import TopicCreated
from penstock.state.commands import (
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from support.batches import ANY, make_batch
from support.transactional_producer import TransactionalProducer

T = TypeVar("T")

NOW_MS = 1_700_000_000_000
WAIT_S = 120.0
_COMMITS: weakref.WeakKeyDictionary[JobLease, itertools.count[int]] = weakref.WeakKeyDictionary()
"""The numbers of jobs' next commits."""


def new_key(job: int) -> str:
    """A key of a job that nobody has used."""
    return job_object_key(job=job, name=SystemRandom().token_bytes(16).hex())


def offsets_in(body: bytes) -> list[int]:
    """Of all records in whole batches."""
    offsets: list[int] = []
    position = 0
    while position < len(body):
        header = stored_header(body, position)
        offsets += range(header.base_offset, header.end_offset)
        position += header.length
    assert position == len(body)
    return offsets


def replacement(
    client: PipelineClient,
    objects: ObjectAccess,
    job: JobLease,
    topic_id: str,
    *,
    of: ReplaceRequest | None = None,
    put: bool = True,
    cut: int = 0,
    damage: bool = False,
    offsets_final: bool = True,
    output_changes: Mapping[int, int] | None = None,
    n: int = 0,
    kept: Callable[[int], bool] | None = None,
) -> ReplaceRequest:
    """All runs of partition 0 that lie in objects joined into one, put and not yet committed.

    Args:
        of: takes inputs and object of this one; nothing new is put.
        put, cut, damage, offsets_final, output_changes: what may be wrong with it.
        n: the commit's number; 0: the job's next, or 1 where it is to be refused.
        kept: which batches, by base offset: without some there are gaps, as compaction by key
            leaves them.
    """
    wrong = not put or cut or damage or not offsets_final or output_changes
    number = n or (1 if wrong else next(_COMMITS.setdefault(job, itertools.count(1))))
    if of is not None:
        key = new_key(job.job)
        body = objects.get_range(of.objects[0].key, 0, of.objects[0].size_bytes)
        objects.put(key, [body])
        copied = [OutputObject(key, len(body))]
        return ReplaceRequest(
            job=job.job,
            n=number,
            input_keys=of.input_keys,
            objects=copied,
            partitions=of.partitions,
        )
    keys: list[str] = []
    inputs: list[int] = []
    views: list[tuple[memoryview, int]] = []
    base = end = -1
    for page in client.runs([Range(topic_id, 0, 0, 1 << 62)], with_wal=False):
        for at in range(0, len(page.rows), RUN_FIELDS):
            _, start, stop, index, position, length, _, _ = page.rows[at : at + RUN_FIELDS]
            object_key = page.object_keys[index]
            body = objects.get_range(object_key, position, position + length)
            raw = start if page.object_raw[index] else -1
            views.append((memoryview(bytearray(_kept(body, kept) if kept else body)), raw))
            if object_key not in keys:
                keys.append(object_key)
            inputs += [start, stop, keys.index(object_key), position, length]
            base = start if base < 0 else base
            end = stop
    seed = partition_seed(bytes.fromhex(topic_id), 0)
    described = RunDescriber(base_offset=base, operation="join", subject="a test's", seed=seed)
    for view, raw_offset in views:
        described.add(view, raw_offset=raw_offset)
    end = described.end_offset
    run = described.describe(bytes.fromhex(topic_id), 0)
    built = build_segment([run], offsets_final=offsets_final)
    body = b"".join(bytes(part) for part in built.parts)
    if damage:
        body = body[:-20] + bytes([body[-20] ^ 1]) + body[-19:]
    key = new_key(job.job)
    if put:
        objects.put(key, [body])
    output: list[Any] = [
        base, end, 0, built.positions[0], run.length, run.max_timestamp, run.batch_count
    ]  # fmt: skip
    for index, changed in (output_changes or {}).items():
        output[index] = changed
    partition = ReplacedPartition(
        topic_id=topic_id,
        partition=0,
        inputs=inputs,
        outputs=output,
        clean_end=end if kept else -1,
        sums=[run.sum],
    )
    return ReplaceRequest(
        job=job.job,
        n=number,
        input_keys=keys,
        objects=[OutputObject(key, len(body) - cut)],
        partitions=[partition],
    )


def _kept(body: bytes, kept: Callable[[int], bool]) -> bytes:
    batches = []
    position = 0
    while position < len(body):
        header = stored_header(body, position)
        if kept(header.base_offset):
            batches.append(body[position : position + header.length])
        position += header.length
    return b"".join(batches)


def write_request(
    objects: ObjectAccess,
    job: JobLease,
    topic_id: str,
    counts: Mapping[int, int],
    *,
    writer_id: str = "",
    batch_id: int = 0,
    incarnation: str = "checkpoint",
    put: bool = True,
    offsets_final: bool = False,
    record_count: int = 0,
) -> WriteRequest:
    """So many records by partition, each in a batch of its own, put and not yet committed."""
    runs: list[SegmentRun] = []
    for partition, count in sorted(counts.items()):
        batches = [
            make_batch(b"value", keys=[b"k"], time=NOW_MS + number) for number in range(count)
        ]
        runs.append(
            SegmentRun(
                topic_id=bytes.fromhex(topic_id),
                partition=partition,
                base_offset=0,
                end_offset=count,
                record_count=count,
                batch_count=count,
                max_timestamp=NOW_MS + count - 1,
                parts=batches,
                length=sum(map(len, batches)),
                marks=(),
            )
        )
    built = build_segment(runs, offsets_final=offsets_final)
    key = new_key(job.job)
    if put:
        objects.put(key, built.parts)
    return WriteRequest(
        job=job.job,
        writer_id=writer_id or f"writer of {topic_id}",
        batch_id=batch_id,
        incarnation=incarnation,
        objects=[OutputObject(key, built.size_bytes)],
        runs=[
            WriteRun(
                topic_id=topic_id,
                partition=run.partition,
                object=0,
                position=position,
                crcs=crcs_of(run.parts),
                batches=[
                    number
                    for index, part in enumerate(run.parts)
                    for number in (
                        memoryview(part).nbytes,
                        record_count or 1,
                        1 if index else NOW_MS,
                        -1,
                        -1,
                        -1,
                    )
                ],
            )
            for run, position in zip(runs, built.positions, strict=True)
        ],
    )


@dataclass
class ApiServer:
    """A server on a loop of its own thread, and a client of its API."""

    server: Server
    loop: asyncio.AbstractEventLoop
    client: PipelineClient
    objects: ObjectAccess
    topics: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By name: id and key."""
    _sequences: itertools.count[int] = field(default_factory=itertools.count)
    _producers: dict[str, TransactionalProducer] = field(default_factory=dict)

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def create(self, name: str, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        """Create a topic; its id."""
        topic_id = SystemRandom().token_bytes(16)
        (answer,) = self.on_loop(
            self.server.parts.log.commit(
                [
                    CreateTopic(
                        name=name, topic_id=topic_id, partitions=partitions, configs=configs or {}
                    )
                ]
            )
        )
        assert isinstance(answer, TopicCreated), answer
        self.topics[name] = topic_id.hex(), answer.topic_key
        return topic_id.hex()

    def delete(self, name: str) -> None:
        """Delete a topic."""
        topic_id = bytes.fromhex(self.topics[name][0])
        self.on_loop(self.server.parts.log.commit([DeleteTopic(topic_id=topic_id)]))

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions, up to so many."""
        command = CreatePartitions(
            topic_id=bytes.fromhex(self.topics[name][0]), partitions=partitions
        )
        self.on_loop(self.server.parts.log.commit([command]))

    def alter(self, name: str, configs: dict[str, str]) -> None:
        """Set configs of a topic."""
        topic_id = bytes.fromhex(self.topics[name][0])
        command = AlterTopicConfigs(topic_id=topic_id, set=configs)
        self.on_loop(self.server.parts.log.commit([command]))

    def produce(
        self,
        name: str,
        partition: int,
        *,
        count: int,
        value: bytes = b"value",
        timestamp_ms: int = NOW_MS,
        producer_id: int = -1,
    ) -> None:
        """Append one batch."""
        producer = (producer_id, 0, 0) if producer_id >= 0 else (-1, -1, -1)
        batch = make_batch(
            *[value] * count, keys=[b"k"] * count, time=timestamp_ms, producer=producer
        )
        checked = check_batch(memoryview(batch), ANY, NOW_MS)
        append = PartitionAppend(self._key(name, partition), checked)

        async def run() -> None:
            answer: asyncio.Future[None] = self.loop.create_future()

            def done(error: PenstockError | None) -> None:
                if error is None:
                    answer.set_result(None)
                else:
                    answer.set_exception(error)

            self.server.parts.log.append([append], timeout_ms=60_000, done=done)
            await answer

        self.on_loop(run())

    def drain(self) -> None:
        """Move the WAL to an object."""
        log: Any = self.server.parts.log
        assert self.on_loop(log.uploader.drain(WAIT_S))

    def trim(self, name: str, partition: int, offset: int) -> None:
        """Delete records before an offset."""
        key = self._key(name, partition)
        self.on_loop(self.server.parts.log.delete_records([(key, offset)]))

    def read(self, topic_id: str, partition: int, start: int, end: int) -> bytes:
        """A range's batches."""
        return b"".join(part.body for part in self.parts(topic_id, partition, start, end))

    def parts(
        self, topic_id: str, partition: int, start: int, end: int, *, bytes_max: int = 1 << 20
    ) -> Iterator[RangePart]:
        """A range's parts."""
        wanted = Range(topic_id, partition, start, end)
        return read_range(self.client, self.objects, wanted, bytes_max=bytes_max)

    def pages(self, ranges: Sequence[Range] | None, limit: int) -> Iterator[RunPage]:
        """Pages of at most `limit` runs."""
        after = ""
        while True:
            request = RunsRequest(
                ranges=None if ranges is None else list(ranges), after=after, limit=limit
            )
            page = self.client._post("/v1/pipeline/runs", request, RunPage, "list", "runs")
            assert len(page.rows) <= limit * RUN_FIELDS
            yield page
            after = page.after
            if not after:
                return

    def get(self, path: str) -> str:
        """The body of a GET."""
        assert self.server.http_address is not None
        connection = http.client.HTTPConnection(*self.server.http_address, timeout=WAIT_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    @property
    def log(self) -> Log:
        """The server's log."""
        return self.server.parts.log

    def transaction(
        self,
        name: str,
        records: Sequence[tuple[str, int, bytes | None, bytes | None]],
        *,
        commits: bool | None = None,
    ) -> None:
        """One transaction of a producer of this name.

        Args:
            records: topic, partition, key and value of each.
            commits: how it ends; None: it stays open.
        """

        async def run() -> None:
            producer = self._producers.get(name)
            if producer is None:
                producer = self._producers[name] = TransactionalProducer(self, name)
                await producer.begin()
            for topic, partition, key, value in records:
                await producer.write(self._key(topic, partition), value, record_key=key)
            if commits is not None:
                await producer.end(commits=commits)

        self.on_loop(run())

    def _key(self, name: str, partition: int) -> PartitionKey:
        _, topic_key = self.topics[name]
        return partition_key(topic_key, partition)  # type: ignore[arg-type]


@contextmanager
def serve_in_thread(data: Path, **changes: Any) -> Iterator[ApiServer]:
    """An embedded server with small files, and its API."""
    values: dict[str, Any] = {
        "data": str(data),
        "kafka": "127.0.0.1:0",
        "http": "127.0.0.1:0",
        "wal_bytes_max": 8 * MIB,
        "wal_file_bytes": 2 * MIB,
        "segment_bytes": MIB,
        "block_cache_bytes": MIB,
        "block_bytes": 256 << 10,
        "drain_timeout_ms": 5000,
        # Records of tests are years old, and a file of tests may take longer than five minutes.
        "retention_check_ms": 86_400_000,
    }
    settings = ServerSettings(**(values | changes))
    started: list[Server] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server of a test")
    thread.start()

    async def start() -> Server:
        server = Server(settings, clock=SystemClock(), random=SystemRandom(), on_fatal=fatal.append)
        await server.start()
        return server

    fatal: list[BaseException] = []
    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_S)
        started.append(server)
        assert server.http_address is not None
        options = ClientOptions(urls=(f"http://{server.http_address}",), deadline_s=60.0)
        with PipelineClient(options) as client, ObjectAccess(client) as objects:
            yield ApiServer(server, loop, client, objects)
    finally:
        for server in started:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert not fatal
