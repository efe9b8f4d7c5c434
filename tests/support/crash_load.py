"""The load that runs while a server is killed: producers, a group's commits, administration.

Every thread notes what it tried and what was acknowledged, for `support.log_checker`. Each thread
has one owner (`CrashLoad`) that starts it, tells it to end and joins it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from functools import partial
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from support.log_checker import Commit, CommittedRead, History, Place, Poll, Send, TopicEvent
from support.received import received
from support.waiting import eventually

# A client must outlive many kills: it tries again soon, and gives a record up only long after.
PATIENT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "socket.connection.setup.timeout.ms": 3000,
    "log_level": 0,
}
DELIVERY_SECONDS_MAX = 120
UNFLUSHED_MAX = 2000


class ProducerThread(threading.Thread):
    """One producer that writes to several partitions and notes each answer."""

    def __init__(self, bootstrap: str, name: str, places: list[Place], *, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.idempotent = not name.startswith("plain")
        self.places = places
        self.records_max = 2 if "small" in name else 40
        self.random = random.Random(seed)
        self.ending = threading.Event()
        self.offsets: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        self.sent: list[tuple[Place, str]] = []
        self.fatal: list[str] = []
        self.producer = Producer(
            {
                **PATIENT,
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "enable.idempotence": self.idempotent,
                "acks": "all",
                "linger.ms": self.random.choice([0, 2, 10]),
                "retry.backoff.ms": 20,
                "request.timeout.ms": 3000,
                "message.timeout.ms": DELIVERY_SECONDS_MAX * 1000,
                "compression.type": self.random.choice(["none", "lz4", "zstd"]),
                "error_cb": self._on_error,
            }
        )

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self.fatal.append(f"{self.name}: {error}")

    def _on_delivery(self, value: str) -> Any:
        def note(error: Any, message: Any) -> None:
            if error is None:
                self.offsets[value] = message.offset()
            else:
                self.errors[value] = error.str()

        return note

    def run(self) -> None:
        """Write until told to end, then wait for what is under way."""
        padding = b"." * 400
        count = 0
        while not self.ending.is_set():
            for _ in range(self.random.randint(1, self.records_max)):
                place = self.random.choice(self.places)
                value = f"{self.name}/{count}"
                body = value.encode() + b"|" + padding[: self.random.randint(0, 400)]
                try:
                    self.producer.produce(
                        place[0],
                        body,
                        partition=place[1],
                        on_delivery=self._on_delivery(value),
                    )
                except BufferError:
                    break
                self.sent.append((place, value))
                count += 1
            # While the server is away the queue grows; a bound keeps the histories readable.
            while not self.ending.is_set() and len(self.producer) > UNFLUSHED_MAX:
                self.producer.poll(0.05)
            until = time.monotonic() + self.random.uniform(0.01, 0.05)
            # Each answer ends a poll. A load that takes all of the processor meets no more kills.
            while not self.ending.is_set() and (left := until - time.monotonic()) > 0:
                self.producer.poll(left)
        self.producer.flush(DELIVERY_SECONDS_MAX)
        self.producer.flush(0)

    def sends(self) -> list[Send]:
        """What was sent, in order, with the offsets that were acknowledged."""
        return [
            Send(place, value, self.name, self.idempotent, self.offsets.get(value))
            for place, value in self.sent
        ]


class CommitThread(threading.Thread):
    """Commits rising offsets for a group without members, one partition after another."""

    def __init__(self, bootstrap: str, group: str, places: list[Place]) -> None:
        super().__init__(name=f"commits-{group}", daemon=True)
        self.group = group
        self.places = places
        self.ending = threading.Event()
        self.events: list[Commit | CommittedRead] = []
        self.problems: list[str] = []
        self.consumer = Consumer(
            {
                **PATIENT,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "socket.timeout.ms": 3000,
            }
        )

    def run(self) -> None:
        """Commit and now and then read back, until told to end."""
        turn = 0
        while not self.ending.is_set():
            turn += 1
            place = self.places[turn % len(self.places)]
            event = Commit(self.group, place, turn, acknowledged=False)
            try:
                done = self.consumer.commit(
                    offsets=[TopicPartition(*place, turn)], asynchronous=False
                )
                acknowledged = done[0].error is None
                event = Commit(self.group, place, turn, acknowledged=acknowledged)
            except KafkaException:
                pass
            self.events.append(event)
            if turn % 10 == 0:
                self.read_back(timeout_seconds=3)
            self.ending.wait(0.02)

    def read_back(self, timeout_seconds: float) -> bool:
        """Read the group's offsets; whether the server answered."""
        try:
            found = self.consumer.committed(
                [TopicPartition(*place) for place in self.places], timeout=timeout_seconds
            )
        except KafkaException:
            return False
        for partition in found:
            if partition.error is not None:
                return False
        for partition in found:
            place = (partition.topic, partition.partition)
            offset = partition.offset if partition.offset >= 0 else None
            self.events.append(CommittedRead(self.group, place, offset))
        return True


class ReaderThread(threading.Thread):
    """A member of a real group, that reads what is produced, commits and survives the kills."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.ending = threading.Event()
        self.polls: dict[tuple[Place, int], list[tuple[int, str]]] = defaultdict(list)
        self.sessions: dict[Place, int] = defaultdict(int)
        self.commits = 0
        self.consumer = Consumer(
            {
                **PATIENT,
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
            }
        )
        self.topics = topics

    def _on_assign(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        # After a rebalance a partition is read again from its committed offset: a new reading.
        for partition in partitions:
            self.sessions[partition.topic, partition.partition] += 1

    def run(self) -> None:
        """Read and commit until told to end."""
        self.consumer.subscribe(self.topics, on_assign=self._on_assign)
        while not self.ending.is_set():
            messages = [m for m in self.consumer.consume(500, timeout=0.1) if m.error() is None]
            for message in messages:
                record = received(message)
                place = (record.topic, record.partition)
                value = value_of(record.value)
                self.polls[place, self.sessions[place]].append((record.offset, value))
            if messages:
                try:
                    self.consumer.commit(asynchronous=False)
                    self.commits += 1
                except KafkaException:
                    pass
        self.consumer.close()

    def readings(self) -> list[Poll]:
        """What each reading of each partition got."""
        return [
            Poll(f"{self.name} reading {session}", place, tuple(records))
            for (place, session), records in self.polls.items()
        ]


class AdminThread(threading.Thread):
    """Makes topics and deletes some of them."""

    def __init__(self, bootstrap: str, prefix: str, seed: int) -> None:
        super().__init__(name="admin", daemon=True)
        self.random = random.Random(seed)
        self.prefix = prefix
        self.ending = threading.Event()
        self.events: list[TopicEvent] = []
        self.admin = AdminClient({**PATIENT, "bootstrap.servers": bootstrap})

    def run(self) -> None:
        """Make and delete until told to end."""
        alive: list[str] = []
        count = 0
        while not self.ending.is_set():
            if len(alive) < 3 or self.random.random() < 0.6:
                topic = f"{self.prefix}-{count}"
                count += 1
                wanted = NewTopic(topic, self.random.randint(1, 5), 1)
                done = self._answered(self.admin.create_topics([wanted], request_timeout=3)[topic])
                alive.append(topic)
                self.events.append(TopicEvent(topic, created=True, acknowledged=done))
            else:
                topic = alive.pop(self.random.randrange(len(alive)))
                done = self._answered(self.admin.delete_topics([topic], request_timeout=3)[topic])
                self.events.append(TopicEvent(topic, created=False, acknowledged=done))
            self.ending.wait(0.05)

    @staticmethod
    def _answered(future: Any) -> bool:
        try:
            future.result(10)
        except Exception:
            # Timed out or cut: it may have happened or not. A topic that "exists already" may be
            # our own earlier try, which the client sent again by itself.
            return False
        return True


class CrashLoad:
    """All threads of the load on one server.

    Args:
        bootstrap: host:port of the server.
        prefix: of all topics' and groups' names.
        seed: what each thread does follows from it.
    """

    def __init__(self, bootstrap: str, prefix: str, seed: int) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        admin = AdminClient({**PATIENT, "bootstrap.servers": bootstrap})
        sizes = {f"{prefix}-few": 2, f"{prefix}-some": 8, f"{prefix}-many": 40}
        for future in admin.create_topics([NewTopic(t, n, 1) for t, n in sizes.items()]).values():
            future.result(60)
        self.topics = list(sizes)
        self.places = [(topic, p) for topic, count in sizes.items() for p in range(count)]
        few, some = self.places[:2], self.places[2:10]
        names = {
            "idempotent-few": few,
            "idempotent-some": some,
            "idempotent-all": self.places,
            "plain-some": some,
            "plain-all": self.places,
            # With these there are enough connections for requests to be gathered.
            **{f"idempotent-small-{number}": some for number in range(5)},
        }
        self.producers = [
            ProducerThread(bootstrap, name, places, seed=seed + index)
            for index, (name, places) in enumerate(names.items())
        ]
        self.commits = [CommitThread(bootstrap, f"{prefix}-commits", some)]
        self.readers = [
            ReaderThread(bootstrap, f"{prefix}-readers", self.topics, f"reader-{n}")
            for n in range(2)
        ]
        self.admin = AdminThread(bootstrap, f"{prefix}-made", seed)

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads():
            thread.start()

    def _threads(self) -> list[Any]:
        return [*self.producers, *self.commits, *self.readers, self.admin]

    def acknowledged(self) -> int:
        """How many records were acknowledged so far."""
        return sum(len(producer.offsets) for producer in self.producers)

    def stop(self) -> None:
        """Let all threads end; the server must be up. Raises AssertionError when one does not."""
        for thread in self._threads():
            thread.ending.set()
        for thread in self._threads():
            thread.join(DELIVERY_SECONDS_MAX + 30)
            assert not thread.is_alive(), f"{thread.name} did not end"

    def history(self) -> History:
        """What was tried and seen, with a last read of all partitions."""
        history = History()
        for producer in self.producers:
            history.sends += producer.sends()
        for reader in self.readers:
            history.polls += reader.readings()
        for commits in self.commits:
            eventually(partial(commits.read_back, timeout_seconds=20))
            history.group_events += commits.events
        history.topic_events = self.admin.events
        found = AdminClient({**PATIENT, "bootstrap.servers": self.bootstrap}).list_topics(
            timeout=60
        )
        history.topics_found = {t for t in found.topics if t.startswith(self.prefix)}
        history.final, history.log_start = self.read_all()
        return history

    def read_all(self) -> tuple[dict[Place, list[tuple[int, str]]], dict[Place, int]]:
        """Every record of every partition, from its start to its end."""
        consumer = Consumer(
            {
                **PATIENT,
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{self.prefix}-final",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
            }
        )
        final: dict[Place, list[tuple[int, str]]] = {place: [] for place in self.places}
        start, end = {}, {}
        for place in self.places:
            start[place], end[place] = self._watermarks(consumer, place)
        consumer.assign([TopicPartition(*place, start[place]) for place in self.places])
        unfinished = {place for place in self.places if end[place] > start[place]}
        deadline = time.monotonic() + 180
        while unfinished:
            assert time.monotonic() < deadline, f"no end of {sorted(unfinished)[:5]}"
            for message in consumer.consume(2000, timeout=0.2):
                record = received(message)
                place = (record.topic, record.partition)
                final[place].append((record.offset, value_of(record.value)))
                if record.offset + 1 >= end[place]:
                    unfinished.discard(place)
        consumer.close()
        return final, start

    @staticmethod
    def _watermarks(consumer: Consumer, place: Place) -> tuple[int, int]:
        """Start and end of a partition; a broker that has just started may not lead it yet."""
        deadline = time.monotonic() + 60
        while True:
            try:
                low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=20)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return int(low), int(high)


def value_of(body: bytes) -> str:
    """The unique part of a record's value; the rest is padding."""
    return body.split(b"|", 1)[0].decode()
