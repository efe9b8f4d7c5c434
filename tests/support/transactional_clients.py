"""Transactional producers of the three client libraries under one face, and what they make of it.

All speak protocol V1. `transform` is the loop that transactions are for: consume, produce, and
commit the offsets of what was consumed with what was produced.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from support.received import received

SECONDS_MAX = 120.0
END = b"end"
"""The last record of each partition: readers stop at it."""


class TransactionalClient(Protocol):
    """A producer with a transactional id, which `__init__` has initialized."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None: ...

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Produce a record, and wait until it is acknowledged."""

    def commit(self) -> None:
        """Commit. Raises what `is_fenced` knows."""

    def abort(self) -> None:
        """Abort."""

    def close(self) -> None:
        """End the client."""

    @staticmethod
    def is_fenced(error: BaseException) -> bool:
        """Whether an error says that another instance has the transactional id."""
        ...

    @staticmethod
    def read(bootstrap: str, topic: str, partitions: int, *, committed: bool) -> list[bytes]:
        """All values before END of each partition, sorted."""
        ...

    @classmethod
    def transform(cls, bootstrap: str, source: str, target: str, group: str, *, count: int) -> None:
        """Consume records of a topic in a group, one at a time, and produce each to another topic
        with its offset, until `count` are committed. Every third transaction is aborted, and what
        it consumed is consumed again."""


class Confluent:
    """confluent-kafka, the binding of librdkafka."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        from confluent_kafka import Producer

        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
        )
        self.producer.init_transactions(SECONDS_MAX)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self.producer.produce(topic, value, partition=partition)
        assert self.producer.flush(SECONDS_MAX) == 0

    def commit(self) -> None:
        self.producer.commit_transaction(SECONDS_MAX)

    def abort(self) -> None:
        self.producer.abort_transaction(SECONDS_MAX)

    def close(self) -> None:
        del self.producer  # which has no other end

    @staticmethod
    def is_fenced(error: BaseException) -> bool:
        return "_FENCED" in repr(error)

    @staticmethod
    def read(bootstrap: str, topic: str, partitions: int, *, committed: bool) -> list[bytes]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[bytes] = []
        open_partitions = set(range(partitions))
        deadline = time.monotonic() + SECONDS_MAX
        while open_partitions:
            assert time.monotonic() < deadline, found
            for message in consumer.consume(500, timeout=0.2):
                record = received(message)
                if record.value == END:
                    open_partitions.discard(record.partition)
                else:
                    found.append(record.value)
        consumer.close()
        return sorted(found)

    @classmethod
    def transform(cls, bootstrap: str, source: str, target: str, group: str, *, count: int) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([source])
        client = cls(bootstrap, group)
        done = 0
        for turn in itertools.count():
            message = consumer.poll(SECONDS_MAX)
            assert message is not None
            record = received(message)
            client.begin()
            client.producer.produce(target, record.value, partition=record.partition)
            next_one = TopicPartition(source, record.partition, record.offset + 1)
            client.producer.send_offsets_to_transaction(
                [next_one], consumer.consumer_group_metadata(), SECONDS_MAX
            )
            if turn % 3 == 2:
                client.abort()
                consumer.seek(TopicPartition(source, record.partition, record.offset))
                continue
            client.commit()
            done += 1
            if done == count:
                break
        consumer.close()
        client.close()


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        from kafka import KafkaProducer

        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","), transactional_id=transactional_id
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self.producer.send(topic, value, partition=partition).get(SECONDS_MAX)

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=10)

    @staticmethod
    def is_fenced(error: BaseException) -> bool:
        return "Fenced" in type(error).__name__ or "Epoch" in type(error).__name__

    @staticmethod
    def read(bootstrap: str, topic: str, partitions: int, *, committed: bool) -> list[bytes]:
        from kafka import KafkaConsumer
        from kafka.structs import TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            isolation_level="read_committed" if committed else "read_uncommitted",
            auto_offset_reset="earliest",
        )
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        found: list[bytes] = []
        open_partitions = set(range(partitions))
        deadline = time.monotonic() + SECONDS_MAX
        while open_partitions:
            assert time.monotonic() < deadline, found
            for records in consumer.poll(200).values():
                for record in records:
                    if record.value == END:
                        open_partitions.discard(record.partition)
                    else:
                        found.append(record.value)
        consumer.close()
        return sorted(found)

    @classmethod
    def transform(cls, bootstrap: str, source: str, target: str, group: str, *, count: int) -> None:
        from kafka import KafkaConsumer
        from kafka.structs import OffsetAndMetadata, TopicPartition

        consumer = KafkaConsumer(
            source,
            bootstrap_servers=bootstrap.split(","),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        client = cls(bootstrap, group)
        done = 0
        for turn in itertools.count():
            record = next(consumer)
            place = TopicPartition(source, record.partition)
            client.begin()
            client.producer.send(target, record.value, partition=record.partition)
            client.producer.send_offsets_to_transaction(
                {place: OffsetAndMetadata(record.offset + 1, "", -1)}, group
            )
            if turn % 3 == 2:
                client.abort()
                consumer.seek(place, record.offset)
                continue
            client.commit()
            done += 1
            if done == count:
                break
        consumer.close()
        client.close()


class AioKafka:
    """aiokafka, on a loop of its own that runs while it is called."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.producer: Any = None

        async def start() -> None:
            from aiokafka import AIOKafkaProducer

            self.producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id
            )
            await self.producer.start()

        self.run(start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run to its end."""
        return self.loop.run_until_complete(asyncio.wait_for(work, SECONDS_MAX))

    def begin(self) -> None:
        self.run(self.producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self.run(self.producer.send_and_wait(topic, value, partition=partition))

    def commit(self) -> None:
        self.run(self.producer.commit_transaction())

    def abort(self) -> None:
        self.run(self.producer.abort_transaction())

    def close(self) -> None:
        self.run(self.producer.stop())
        self.loop.close()

    @staticmethod
    def is_fenced(error: BaseException) -> bool:
        return "Fenced" in type(error).__name__

    @staticmethod
    def read(bootstrap: str, topic: str, partitions: int, *, committed: bool) -> list[bytes]:
        async def run() -> list[bytes]:
            from aiokafka import AIOKafkaConsumer, TopicPartition

            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                isolation_level="read_committed" if committed else "read_uncommitted",
                auto_offset_reset="earliest",
            )
            consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
            await consumer.start()
            found, open_partitions = [], set(range(partitions))
            try:
                while open_partitions:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        for record in records:
                            if record.value == END:
                                open_partitions.discard(record.partition)
                            else:
                                found.append(record.value)
            finally:
                await consumer.stop()
            return sorted(found)

        return asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))

    @classmethod
    def transform(cls, bootstrap: str, source: str, target: str, group: str, *, count: int) -> None:
        async def run() -> None:
            from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

            consumer = AIOKafkaConsumer(
                source,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
            )
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=group)
            await consumer.start()
            await producer.start()
            done = 0
            try:
                for turn in itertools.count():
                    record = await consumer.getone()
                    place = TopicPartition(source, record.partition)
                    await producer.begin_transaction()
                    await producer.send(target, record.value, partition=record.partition)
                    await producer.send_offsets_to_transaction({place: record.offset + 1}, group)
                    if turn % 3 == 2:
                        await producer.abort_transaction()
                        consumer.seek(place, record.offset)
                        continue
                    await producer.commit_transaction()
                    done += 1
                    if done == count:
                        break
            finally:
                await consumer.stop()
                await producer.stop()

        asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


CLIENTS: Sequence[type[TransactionalClient]] = (Confluent, KafkaPython, AioKafka)
