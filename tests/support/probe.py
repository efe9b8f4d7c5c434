"""A client's clock: a producer and a reader that touch every partition again and again, and when
each was acknowledged, refused or read."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from support.received import received
from support.waiting import eventually

SILENT = logging.getLogger("rdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False
"""Clients tell of each refused connection, which here is what the test wants."""

PAUSE_S = 0.02
PATIENCE_S = 60.0
"""How long what takes a moment may take where a machine does other things, too."""
CLIENT = {
    # Kafka's own default is 1 s; librdkafka's, 10 s, would measure the client's patience.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 5000,
    "logger": SILENT,
}


@dataclass
class Sent:
    """One record: what became of it and when, in seconds of the monotonic clock."""

    partition: int
    value: str
    began_s: float
    ended_s: float = 0.0
    offset: int = -1
    error: str = ""
    retriable: bool = False


@dataclass
class Read:
    """One record that was read."""

    partition: int
    offset: int
    value: str
    at_s: float


@dataclass
class Probe:
    """A producer, and a reader of all partitions from the topic's end on, each in a thread.

    Args:
        timeout_ms: after which a record that was not acknowledged is given up.
        client, producer: further settings of librdkafka, of both or of the producer.
        reads: whether there is a reader.
    """

    bootstrap: str
    topic: str
    partitions: int
    timeout_ms: int = 60_000
    pause_s: float = PAUSE_S
    client: dict[str, Any] = field(default_factory=dict)
    producer: dict[str, Any] = field(default_factory=dict)
    reads: bool = True
    sent: list[Sent] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        if self.reads:
            ready = threading.Event()
            self._start(threading.Thread(target=self._read_all, args=(ready,), daemon=True))
            assert ready.wait(PATIENCE_S + 30), "the reader knows no offsets"
        self._start(threading.Thread(target=self._send_all, daemon=True))
        return self

    def _start(self, thread: threading.Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(self.timeout_ms / 1000 + 10)

    # -- what was seen ---------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Wait until each partition has been written and read."""
        self.wait_accepted(0.0)
        self.wait_served(0.0)

    def accepted(self, after_s: float) -> dict[int, float]:
        """By partition, when the first record that was sent after a moment was acknowledged."""
        found: dict[int, float] = {}
        for sent in reversed(list(self.sent)):
            if sent.began_s < after_s:
                break
            if sent.offset >= 0:
                found[sent.partition] = min(sent.ended_s, found.get(sent.partition, float("inf")))
        return found

    def served(self, after_s: float) -> dict[int, float]:
        """By partition, when the first record that was sent after a moment was read."""
        since = set()
        for sent in reversed(list(self.sent)):
            if sent.began_s < after_s:
                break
            since.add(sent.value)
        found: dict[int, float] = {}
        for read in reversed(list(self.read)):
            if read.at_s < after_s:
                break
            if read.value in since:
                found[read.partition] = read.at_s
        return found

    def wait_accepted(self, after_s: float, *, timeout_seconds: float = 60) -> float:
        """Wait until all partitions accept; seconds from the moment to the last of them."""
        found = eventually(
            lambda: self.accepted(after_s),
            lambda seen: len(seen) == self.partitions,
            timeout_seconds=timeout_seconds,
        )
        return max(found.values()) - after_s

    def wait_served(self, after_s: float, *, timeout_seconds: float = 60) -> float:
        """Wait until all partitions give what was sent after the moment; likewise."""
        found = eventually(
            lambda: self.served(after_s),
            lambda seen: len(seen) == self.partitions,
            timeout_seconds=timeout_seconds,
        )
        return max(found.values()) - after_s

    def acked(self) -> dict[tuple[int, int], str]:
        """Values by partition and offset of what was acknowledged."""
        return {(s.partition, s.offset): s.value for s in list(self.sent) if s.offset >= 0}

    def failed(self) -> list[Sent]:
        """What was given up."""
        return [sent for sent in list(self.sent) if sent.error]

    # -- threads ---------------------------------------------------------------------------------

    def _send_all(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "linger.ms": 0,
                "enable.idempotence": True,
                "delivery.timeout.ms": self.timeout_ms,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 200,
                "topic.metadata.refresh.fast.interval.ms": 100,
                **CLIENT,
                **self.client,
                **self.producer,
            }
        )

        def done(sent: Sent, error: Any, message: Any) -> None:
            sent.ended_s = time.monotonic()
            if error is None:
                sent.offset = message.offset()
            else:
                sent.error, sent.retriable = error.name(), error.retriable()

        number = 0
        while not self._stop.is_set():
            for partition in range(self.partitions):
                sent = Sent(partition, f"{partition}/{number}", time.monotonic())
                try:
                    producer.produce(
                        self.topic,
                        sent.value.encode(),
                        partition=partition,
                        on_delivery=partial(done, sent),
                    )
                except BufferError:
                    break
                self.sent.append(sent)
            number += 1
            until = time.monotonic() + self.pause_s
            while (left := until - time.monotonic()) > 0:
                producer.poll(left)
        producer.flush(self.timeout_ms / 1000 + 5)

    def _read_all(self, ready: threading.Event) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                **CLIENT,
                **self.client,
            }
        )
        places = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        for place in places:
            place.offset = ask_end(consumer, place)
        consumer.assign(places)
        ready.set()
        while not self._stop.is_set():
            for message in consumer.consume(1000, timeout=0.05):
                if message.error() is None:
                    at_s = time.monotonic()
                    record = received(message)
                    value = record.value.decode()
                    self.read.append(Read(record.partition, record.offset, value, at_s))
        consumer.close()


def create_topic(address: str, name: str, partitions: int, **configs: str) -> None:
    """A topic; configs with underscores for dots."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    options: dict[str, Any] = {"bootstrap.servers": address, "logger": SILENT}
    admin = AdminClient(options)
    wanted = {key.replace("_", "."): value for key, value in configs.items()}
    for created in admin.create_topics([NewTopic(name, partitions, config=wanted)]).values():
        created.result(PATIENCE_S)


def read_all(
    bootstrap: str, topic: str, partitions: int, *, timeout_seconds: float = PATIENCE_S
) -> dict[tuple[int, int], str]:
    """All records of a topic, by partition and offset, from the beginning to the ends as the
    cluster tells them."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **CLIENT,
        }
    )
    places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)]
    ends = {place.partition: ask_end(consumer, place) for place in places}
    consumer.assign(places)
    found: dict[tuple[int, int], str] = {}
    reached = dict.fromkeys(ends, 0)
    deadline = time.monotonic() + timeout_seconds
    try:
        while any(reached[number] < end for number, end in ends.items()):
            assert time.monotonic() < deadline, f"read up to {reached} of {ends}"
            for message in consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    record = received(message)
                    found[record.partition, record.offset] = record.value.decode()
                    reached[record.partition] = record.offset + 1
    finally:
        consumer.close()
    return found


def ask_end(consumer: Any, place: Any, *, patience_s: float = PATIENCE_S) -> int:
    """Of a partition; asked again while the client still knows a leader that is gone."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + patience_s
    while True:
        try:
            end: int = consumer.get_watermark_offsets(place, timeout=20)[1]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return end
