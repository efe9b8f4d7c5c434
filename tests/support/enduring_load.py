"""A producer that goes on through the deaths of servers, and all that lies there in the end."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from support.received import received
from support.waiting import eventually

TOPIC = "t"
PARTITIONS = 32
"""So many that each of a few agents leads some."""


class EnduringLoad:
    """An idempotent producer, and what it was told."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                # Partitions move to agents that come, and any agent takes what it is sent.
                "topic.metadata.refresh.interval.ms": 200,
            }
        )
        self._next = 0
        self.acked: dict[tuple[int, int], bytes] = {}
        self.failures: list[Any] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(
                TOPIC,
                b"value %d" % self._next,
                partition=self._next % PARTITIONS,
                on_delivery=self._delivered,
            )
            self._next += 1
        self._producer.poll(0.05)

    def flush(self) -> None:
        assert self._producer.flush(120) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            place = message.partition(), message.offset()
            assert place not in self.acked
            self.acked[place] = message.value()


def read_all(bootstrap: str, count: int) -> dict[tuple[int, int], bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign(
        [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
    )
    found: dict[tuple[int, int], bytes] = {}

    def read() -> int:
        for message in consumer.consume(1000, 0.5):
            record = received(message)
            found[record.partition, record.offset] = record.value
        return len(found)

    try:
        eventually(read, lambda seen: seen >= count, timeout_seconds=120)
    finally:
        consumer.close()
    return found
