"""A topic that is cleaned by key on a whole server, and a model of what must then be in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import support.quiet
from penstock.pipeline.api_messages import RUN_FIELDS, Range, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.job import Summary, compact
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import read_range
from penstock.records.batch import HEADER, stored_header
from support.adapters import ConfluentAdapter
from support.cleaned_partition import model_batch
from support.kafka_cleaner_model import (
    ModelBatch,
    ModelConfig,
    ModelLog,
    ModelRecord,
    ModelSegment,
    clean,
)
from support.records import NewRecord
from support.waiting import eventually

assert support.quiet  # before the adapters, which import the client libraries
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS = 12
READ_SECONDS_MAX = 120


@dataclass
class CleanedTopic:
    """One topic of two partitions, its clients and its API.

    `written`: by partition all records, whatever has become of them.
    """

    bootstrap: str
    client: PipelineClient
    topic: str
    delete_retention_ms: int
    partitions: int = 2
    first_timestamp_ms: int = 1_700_000_000_000
    written: dict[int, dict[int, ModelRecord]] = field(default_factory=dict)
    _round: int = 0

    def create(self, **configs: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.0",
            "delete.retention.ms": str(self.delete_retention_ms),
            **configs,
        }
        topic = NewTopic(self.topic, self.partitions, config=wanted)
        for future in admin.create_topics([topic]).values():
            future.result(90)
        self.written = {number: {} for number in range(self.partitions)}

    def write(self, rounds: int, *, count: int = 40) -> None:
        """So many runs in objects more per partition: each of another codec, idempotent or not,
        with keys that come again, and that are deleted."""
        for _ in range(rounds):
            self._round += 1
            random = Random(self._round)
            before = self.run_counts()
            new = []
            for number in range(count):
                key = b"key %d" % random.randrange(KEYS)
                value = None if random.random() < 0.2 else b"%d-%d" % (self._round, number) * 9
                headers = (("h", b"%d" % number),) if number % 3 else ()
                stamp = self.first_timestamp_ms + self._round * 1000 + random.randrange(900)
                new.append(NewRecord(number % self.partitions, key, value, stamp, headers))
            offsets = ConfluentAdapter().write(
                self.bootstrap,
                self.topic,
                new,
                codec=CODECS[self._round % len(CODECS)],
                idempotent=bool(self._round % 2),
            )
            for record, (partition, offset) in zip(new, offsets, strict=True):
                self.written[partition][offset] = ModelRecord(
                    offset, record.timestamp_ms, record.key, record.value, record.headers
                )
            eventually(self.run_counts, partial(_has_grown, before))

    def state(self) -> TopicState:
        (found,) = self.client.topics([self.topic]).topics
        return found

    def run_counts(self) -> dict[int, int]:
        """Runs in objects by partition."""
        return {number: len(runs) for number, runs in self.runs().items()}

    def runs(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """By partition (base offset, end offset, length, max timestamp) of runs in objects."""
        topic_id = self.state().topic_id
        found: dict[int, list[tuple[int, int, int, int]]] = {
            number: [] for number in range(self.partitions)
        }
        for page in self.client.runs(with_wal=False):
            for at in range(0, len(page.rows), RUN_FIELDS):
                index, base, end, _, _, length, newest, _ = page.rows[at : at + RUN_FIELDS]
                if page.partitions[index][0] == topic_id:
                    found[page.partitions[index][1]].append((base, end, length, newest))
        return found

    def named_objects(self) -> set[str]:
        """Keys of all objects that hold a run."""
        return {key for page in self.client.runs(with_wal=False) for key in page.object_keys}

    def batches(self, partition: int) -> list[ModelBatch]:
        """All batches that are there now, in the model's words."""
        state = self.state()
        found: list[ModelBatch] = []
        place = state.partitions[partition]
        wanted = Range(state.topic_id, partition, place.log_start, place.high_watermark)
        objects = ObjectAccess(self.client)
        try:
            for part in read_range(self.client, objects, wanted):
                at = 0
                while at < len(part.body):
                    header = stored_header(part.body, at)
                    batch = memoryview(part.body)[at : at + header.length]
                    found.append(model_batch(batch, HEADER.unpack_from(batch)))
                    at += header.length
        finally:
            objects.close()
        return found

    def model(self, partition: int) -> ModelLog:
        """A model of the partition as it is now."""
        batches = self.batches(partition)
        state = self.state().partitions[partition]
        return ModelLog(
            [
                ModelSegment([b for b in batches if base <= b.base_offset < end], length, newest)
                for base, end, length, newest in self.runs()[partition]
            ],
            log_start=state.log_start,
            clean_end=state.clean_end,
        )

    def clean(self) -> Summary:
        """Compact the topic as the model of Kafka's cleaner does."""
        expected = self.cleaned_models()
        summary = compact(
            self.client, LocalEngine(2), CompactionSettings(), names=[self.topic], rounds_max=1
        )
        assert (summary.refused, summary.failures) == ([], [])
        for number, model in expected.items():
            self.check_as(number, model)
        return summary

    def cleaned_models(self) -> dict[int, ModelLog]:
        """By partition what Kafka's cleaner would leave of what is there now."""
        models = {number: self.model(number) for number in range(self.partitions)}
        state = self.state()
        known = self.client.producers([(state.topic_id, n) for n in range(self.partitions)])
        # Horizons are of the job's own time: all that counts is whether they have come.
        now_ms = self._round
        for number, model in models.items():
            for segment in model.segments:
                segment.batches = [_at(batch, now_ms - 1) for batch in segment.batches]
            is_dirty = model.clean_end < model.segments[-1].batches[-1].last_offset + 1
            assert is_dirty == clean(
                model,
                ModelConfig(
                    min_cleanable_dirty_ratio=0, delete_retention_ms=self.delete_retention_ms
                ),
                now_ms=now_ms if not self.delete_retention_ms else 0,
                active_from=2**62,
                producers=_last_offsets(known.producers[number], model),
            )
        return models

    def check_as(self, partition: int, model: ModelLog) -> None:
        """A partition is batch by batch what a model is."""
        ours = [_at(batch, 0) for batch in self.batches(partition)]
        assert ours == [_at(batch, 0) for batch in model.batches()]
        assert self.state().partitions[partition].clean_end == model.clean_end

    def retained(self, partition: int) -> list[ModelRecord]:
        """What a consumer must read."""
        return [record for batch in self.batches(partition) for record in batch.records]

    # -- consumers -------------------------------------------------------------------------------

    def check_from_everywhere(self) -> None:
        """From each offset on the next record that is left comes, by two clients."""
        starts = [place.log_start for place in self.state().partitions]
        for read in (self._confluent_reads, self._aiokafka_reads):
            for partition, start in enumerate(starts):
                left = self.retained(partition)
                offsets = range(start, left[-1].offset)
                read(partition, [(offset, _next(left, offset)) for offset in offsets])

    @contextmanager
    def readers(self) -> Iterator[list[str]]:
        """A consumer that goes on reading at random offsets; what it found wrong."""
        faults: list[str] = []
        stopping = threading.Event()
        count = 0
        written = {partition: dict(rows) for partition, rows in self.written.items()}

        def read() -> None:
            nonlocal count
            random = Random(9)
            try:
                with _consumer(self.bootstrap) as consumer:
                    while not stopping.is_set():
                        partition = random.randrange(self.partitions)
                        # Below what is there already: a consumer of these must never wait.
                        offset = random.choice(sorted(written[partition]))
                        message = _first(consumer, self.topic, partition, offset)
                        found = written[partition].get(message.offset())
                        assert message.offset() >= offset
                        if found is not None:
                            assert (message.key(), message.value()) == (found.key, found.value)
                        self._check_skipped(partition, offset, message.offset())
                        count += 1
            except BaseException as error:
                faults.append(repr(error))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            eventually(lambda: count > 5 or faults)
            yield faults
            reached = count
            eventually(lambda: count > reached + 5 or faults)
        finally:
            stopping.set()
            thread.join(60)

    def _check_skipped(self, partition: int, start: int, end: int) -> None:
        """A consumer that got nothing of [start, end) lost nothing: no last value of a key is
        there, save deletions that may be forgotten."""
        newest = {record.key: record for record in list(self.written[partition].values())}
        for record in newest.values():
            if start <= record.offset < end:
                assert record.value is None, record
                assert not self.delete_retention_ms, record

    def _confluent_reads(self, partition: int, expected: list[tuple[int, ModelRecord]]) -> None:
        with _consumer(self.bootstrap) as consumer:
            for offset, record in expected:
                message = _first(consumer, self.topic, partition, offset)
                assert (message.offset(), message.key(), message.value()) == (
                    record.offset,
                    record.key,
                    record.value,
                )
                assert message.timestamp()[1] == record.timestamp
                assert tuple(message.headers() or ()) == record.headers

    def _aiokafka_reads(self, partition: int, expected: list[tuple[int, ModelRecord]]) -> None:
        async def run() -> None:
            from aiokafka import AIOKafkaConsumer, TopicPartition

            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                enable_auto_commit=False,
                check_crcs=True,
                fetch_max_wait_ms=5,
            )
            await consumer.start()
            try:
                place = TopicPartition(self.topic, partition)
                consumer.assign([place])
                for offset, record in expected[:: max(1, len(expected) // 25)]:
                    consumer.seek(place, offset)
                    async with asyncio.timeout(READ_SECONDS_MAX):
                        message = await consumer.getone()
                    assert (message.offset, message.key, message.value, message.timestamp) == (
                        record.offset,
                        record.key,
                        record.value,
                        record.timestamp,
                    )
            finally:
                await consumer.stop()

        asyncio.run(run())


class Follower:
    """A consumer that keeps the last value of each key of a partition, step by step."""

    def __init__(self, topic: CleanedTopic, partition: int) -> None:
        from confluent_kafka import TopicPartition

        self._topic = topic
        self._partition = partition
        self.values: dict[bytes, bytes | None] = {}
        self.position = 0
        self._manager = _consumer(topic.bootstrap)
        self._consumer: Any = self._manager.__enter__()
        self._consumer.assign([TopicPartition(topic.topic, partition, 0)])

    def read_to(self, offset: int) -> None:
        """Until a record at or past an offset has come."""
        while self.position <= offset:
            message = self._consumer.poll(READ_SECONDS_MAX)
            assert message is not None, f"nothing after offset {self.position}"
            assert message.error() is None, message.error()
            assert message.offset() >= self.position
            self.position = message.offset() + 1
            self.values[message.key()] = message.value()

    def check(self) -> None:
        """It has seen the last value of every key; deletions too if it was in time."""
        for record in self._topic.written[self._partition].values():
            assert record.key is not None
        last = {record.key: record for record in self._topic.written[self._partition].values()}
        for key, record in last.items():
            if record.value is not None or self._topic.delete_retention_ms:
                assert self.values.get(key or b"") == record.value

    def close(self) -> None:
        self._manager.__exit__(None, None, None)


@contextmanager
def _consumer(bootstrap: str) -> Iterator[Any]:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused-reader",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 5,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _first(consumer: Any, topic: str, partition: int, offset: int) -> Any:
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(topic, partition, offset)])
    message = consumer.poll(READ_SECONDS_MAX)
    assert message is not None, f"nothing at offset {offset} of partition {partition}"
    assert message.error() is None, message.error()
    return message


def _next(left: list[ModelRecord], offset: int) -> ModelRecord:
    return next(record for record in left if record.offset >= offset)


def _at(batch: ModelBatch, horizon_ms: int) -> ModelBatch:
    if batch.delete_horizon_ms is None:
        return batch
    return replace(batch, delete_horizon_ms=horizon_ms)


def _last_offsets(triples: list[int], model: ModelLog) -> dict[int, int]:
    """By producer the last offset that it wrote, of its epoch and last sequence."""
    found: dict[int, int] = {}
    numbers = iter(triples)
    for producer, epoch, sequence in zip(numbers, numbers, numbers, strict=True):
        for batch in model.batches():
            last = batch.base_sequence + batch.last_offset - batch.base_offset
            if (batch.producer_id, batch.producer_epoch, last) == (producer, epoch, sequence):
                found[producer] = batch.last_offset
    return found


def check_a_topic(topic: CleanedTopic, forget: Callable[[], None] = lambda: None) -> None:
    """Write, clean and read in turns."""
    followers = [Follower(topic, number) for number in range(topic.partitions)]
    try:
        topic.write(4)
        for follower in followers:
            follower.read_to(25)
        with topic.readers() as faults:
            summary = topic.clean()
            assert summary.dropped_records > 0
        assert not faults
        topic.check_from_everywhere()
        topic.write(3)
        with topic.readers() as faults:
            topic.clean()
        assert not faults
        topic.write(1, count=6)
        topic.clean()
        forget()
        topic.check_from_everywhere()
        for number, follower in enumerate(followers):
            left = topic.retained(number)
            follower.read_to(left[-1].offset)
            follower.check()
    finally:
        for follower in followers:
            follower.close()


def _has_grown(before: dict[int, int], now: dict[int, int]) -> bool:
    return all(now[number] > before[number] for number in now)
