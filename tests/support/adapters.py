"""One small face over the three client libraries, so that a test can say "any writer, any reader".

Only what all three can do is here: write to named partitions, read partitions from the start.
Whatever a client has of its own (groups, administration, errors) is tested in its own words.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from support.received import received
from support.records import NewRecord, ReadRecord

READ_SECONDS_MAX = 120.0
Offsets = list[tuple[int, int]]


class ClientAdapter(Protocol):
    """A client library that can write records and read them back."""

    @property
    def name(self) -> str:
        """The library's name."""
        ...

    @property
    def codecs(self) -> tuple[str, ...]:
        """What it compresses with."""
        ...

    @property
    def null_headers(self) -> bool:
        """Whether it can write a header whose value is null."""
        ...

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[NewRecord],
        *,
        codec: str = "none",
        idempotent: bool = False,
        acks: str = "all",
    ) -> Offsets:
        """Write all records; their (partition, offset) as acknowledged, in the order given."""

    def read(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[ReadRecord]:
        """Read count records from the start of all partitions, in order per partition."""


class ConfluentAdapter:
    """confluent-kafka, the binding of librdkafka."""

    name = "confluent-kafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    null_headers = True

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[NewRecord],
        *,
        codec: str = "none",
        idempotent: bool = False,
        acks: str = "all",
    ) -> Offsets:
        """See ClientAdapter."""
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "acks": acks,
                # All of a partition in one batch, however long this process is kept from its
                # processor between two records: `flush` waits for no linger.
                "linger.ms": 5000,
            }
        )
        acknowledged: dict[int, tuple[int, int]] = {}
        errors: list[Any] = []

        def note(index: int) -> Any:
            def on_delivery(error: Any, message: Any) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    acknowledged[index] = (message.partition(), message.offset())

            return on_delivery

        for index, record in enumerate(records):
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=note(index),
            )
        assert producer.flush(90) == 0
        assert not errors, errors
        return [acknowledged[index] for index in range(len(records))]

    def read(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[ReadRecord]:
        """See ClientAdapter."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused-reader",
                "enable.auto.commit": False,
                "check.crcs": True,
            }
        )
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        read: list[ReadRecord] = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        while len(read) < count and time.monotonic() < deadline:
            for message in consumer.consume(500, timeout=0.2):
                record = received(message)
                headers: Any = message.headers()
                read.append(
                    ReadRecord(
                        record.partition,
                        record.offset,
                        message.key(),
                        message.value(),
                        message.timestamp()[1],
                        tuple(headers or ()),
                    )
                )
        consumer.close()
        return read


class AiokafkaAdapter:
    """aiokafka, the asyncio client."""

    name = "aiokafka"
    null_headers = True

    def __init__(self) -> None:
        from aiokafka import codec

        built = {
            "gzip": codec.has_gzip,
            "snappy": codec.has_snappy,
            "lz4": codec.has_lz4,
            "zstd": codec.has_zstd,
        }
        self.codecs = ("none", *(name for name, has in built.items() if has()))

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[NewRecord],
        *,
        codec: str = "none",
        idempotent: bool = False,
        acks: str = "all",
    ) -> Offsets:
        """See ClientAdapter."""

        async def run() -> Offsets:
            from aiokafka import AIOKafkaProducer

            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks=acks if acks == "all" else int(acks),
                linger_ms=20,
            )
            await producer.start()
            try:
                waiting = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                async with asyncio.timeout(90):
                    done = await asyncio.gather(*waiting)
            finally:
                await producer.stop()
            # With acks=0 there is no answer, so no offset either.
            return [(m.partition, m.offset) if m is not None else (-1, -1) for m in done]

        return asyncio.run(run())

    def read(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[ReadRecord]:
        """See ClientAdapter."""

        async def run() -> list[ReadRecord]:
            from aiokafka import AIOKafkaConsumer, TopicPartition

            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap, enable_auto_commit=False, check_crcs=True
            )
            await consumer.start()
            read: list[ReadRecord] = []
            try:
                assigned = [TopicPartition(topic, p) for p in range(partitions)]
                consumer.assign(assigned)
                await consumer.seek_to_beginning(*assigned)
                deadline = time.monotonic() + READ_SECONDS_MAX
                while len(read) < count and time.monotonic() < deadline:
                    for messages in (await consumer.getmany(timeout_ms=200)).values():
                        read.extend(
                            ReadRecord(
                                m.partition, m.offset, m.key, m.value, m.timestamp, m.headers
                            )
                            for m in messages
                        )
            finally:
                await consumer.stop()
            return read

        return asyncio.run(run())


class KafkaPythonAdapter:
    """kafka-python, pure Python."""

    name = "kafka-python"
    null_headers = False

    def __init__(self) -> None:
        from kafka import codec

        built = {
            "gzip": codec.has_gzip,
            "snappy": codec.has_snappy,
            "lz4": codec.has_lz4,
            "zstd": codec.has_zstd,
        }
        self.codecs = ("none", *(name for name, has in built.items() if has()))

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[NewRecord],
        *,
        codec: str = "none",
        idempotent: bool = False,
        acks: str = "all",
    ) -> Offsets:
        """See ClientAdapter."""
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks=acks if acks == "all" else int(acks),
            linger_ms=20,
        )
        try:
            waiting = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            producer.flush(90)
            done = [future.get(90) for future in waiting]
            return [(m.partition, m.offset) for m in done]
        finally:
            producer.close(timeout=10)

    def read(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[ReadRecord]:
        """See ClientAdapter."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, check_crcs=True
        )
        read: list[ReadRecord] = []
        try:
            assigned = [TopicPartition(topic, p) for p in range(partitions)]
            consumer.assign(assigned)
            consumer.seek_to_beginning(*assigned)
            deadline = time.monotonic() + READ_SECONDS_MAX
            while len(read) < count and time.monotonic() < deadline:
                for messages in consumer.poll(timeout_ms=200).values():
                    read.extend(
                        ReadRecord(
                            m.partition, m.offset, m.key, m.value, m.timestamp, tuple(m.headers)
                        )
                        for m in messages
                    )
        finally:
            consumer.close()
        return read


ADAPTERS: tuple[ClientAdapter, ...] = (
    ConfluentAdapter(),
    AiokafkaAdapter(),
    KafkaPythonAdapter(),
)
