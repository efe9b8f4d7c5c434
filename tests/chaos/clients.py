"""Real clients under load, each in a thread of its own until `stop` is set.

A producer numbers its records per partition; after an error that its library calls fatal, or
that breaks its sequence, a new one goes on under a new name, as an application would.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from chaos.history import Outcome, Seen
from chaos.recording import Recorder, Sending

if TYPE_CHECKING:
    from support.connection import Connection

PAUSE_S = 0.1
"""Of a producer after a record for each partition. Ten rounds per second meet each fault, and leave
the processor to the servers."""
SILENT = logging.getLogger("rdkafka")
SILENT.addHandler(logging.NullHandler())
"""Clients tell of each refused connection, which here is what the test wants."""
for name in ("rdkafka", "aiokafka", "kafka"):
    logging.getLogger(name).propagate = False
    logging.getLogger(name).addHandler(logging.NullHandler())

SEND_TIMEOUT_S = 60
"""Longer than any fault: past it librdkafka takes a new producer id and sends again what may be
stored already, which no broker can know for a duplicate."""
MEMBER_LIFE_S = 15


@dataclass
class Load:
    """What all clients of a run share."""

    bootstrap: Callable[[], str]
    """host:port of every agent, joined by commas."""
    topic: str
    partitions: int
    recorder: Recorder
    stop: threading.Event


def confluent_producer(load: Load, name: str) -> None:
    """librdkafka, idempotent, up to five batches in flight."""
    for life in itertools.count():
        if load.stop.is_set():
            return
        _confluent_producer(load, f"{name}.{life}")


def _confluent_producer(load: Load, incarnation: str) -> None:
    from confluent_kafka import KafkaError, KafkaException, Producer

    fatal = threading.Event()
    producer = Producer(
        {
            "bootstrap.servers": load.bootstrap(),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "delivery.timeout.ms": SEND_TIMEOUT_S * 1000,
            "socket.timeout.ms": 5000,
            "reconnect.backoff.max.ms": 500,
            "logger": SILENT,
        }
    )

    def done(error: KafkaError | None, message: object, sending: Sending) -> None:
        if error is None:
            load.recorder.sent(sending, Outcome.ACKED, message.offset())  # type: ignore[attr-defined]
        else:
            load.recorder.sent(sending, Outcome.UNKNOWN)
            fatal.set()

    numbers: dict[int, int] = defaultdict(int)
    while not load.stop.is_set() and not fatal.is_set():
        for partition in range(load.partitions):
            sending = load.recorder.sending(incarnation, "confluent", partition, numbers[partition])
            numbers[partition] += 1
            try:
                producer.produce(
                    load.topic,
                    sending.value.encode(),
                    partition=partition,
                    on_delivery=lambda error, message, s=sending: done(error, message, s),
                )
            except (BufferError, KafkaException):
                load.recorder.sent(sending, Outcome.FAILED)
                fatal.set()
                break
        until = time.monotonic() + PAUSE_S
        # Each answer ends a poll.
        while (left := until - time.monotonic()) > 0:
            producer.poll(left)
    producer.flush(SEND_TIMEOUT_S + 5)


def kafka_python_producer(load: Load, name: str) -> None:
    """kafka-python, idempotent."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    for life in itertools.count():
        if load.stop.is_set():
            return
        incarnation = f"{name}.{life}"
        try:
            producer = KafkaProducer(
                bootstrap_servers=load.bootstrap().split(","),
                enable_idempotence=True,
                linger_ms=2,
                delivery_timeout_ms=SEND_TIMEOUT_S * 1000,
                request_timeout_ms=5000,
            )
        except (KafkaError, OSError):
            time.sleep(0.5)
            continue
        numbers: dict[int, int] = defaultdict(int)
        failed = False
        while not load.stop.is_set() and not failed:
            waiting = []
            for partition in range(load.partitions):
                sending = load.recorder.sending(
                    incarnation, "kafka-python", partition, numbers[partition]
                )
                numbers[partition] += 1
                try:
                    future = producer.send(load.topic, sending.value.encode(), partition=partition)
                except KafkaError:
                    load.recorder.sent(sending, Outcome.UNKNOWN)
                    failed = True
                    break
                waiting.append((sending, future))
            for sending, future in waiting:
                try:
                    offset = future.get(timeout=SEND_TIMEOUT_S + 5).offset
                    load.recorder.sent(sending, Outcome.ACKED, offset)
                except KafkaError:
                    load.recorder.sent(sending, Outcome.UNKNOWN)
                    failed = True
            time.sleep(PAUSE_S)
        with contextlib.suppress(Exception):
            producer.close(timeout=5)


def aiokafka_producer(load: Load, name: str) -> None:
    """aiokafka, idempotent, on an event loop of its own."""

    async def run() -> None:
        for life in itertools.count():
            if load.stop.is_set():
                return
            await _aiokafka_producer(load, f"{name}.{life}")

    asyncio.run(run())


async def _aiokafka_producer(load: Load, incarnation: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    producer = AIOKafkaProducer(
        bootstrap_servers=load.bootstrap().split(","),
        enable_idempotence=True,
        linger_ms=2,
        request_timeout_ms=SEND_TIMEOUT_S * 1000,
        retry_backoff_ms=100,
    )
    numbers: dict[int, int] = defaultdict(int)
    failed = False

    async def one(partition: int) -> bool:
        sending = load.recorder.sending(incarnation, "aiokafka", partition, numbers[partition])
        numbers[partition] += 1
        try:
            sent = await asyncio.wait_for(
                producer.send_and_wait(load.topic, sending.value.encode(), partition=partition),
                SEND_TIMEOUT_S + 5,
            )
        except (KafkaError, TimeoutError):
            load.recorder.sent(sending, Outcome.UNKNOWN)
            return True
        load.recorder.sent(sending, Outcome.ACKED, sent.offset)
        return False

    try:
        await asyncio.wait_for(producer.start(), 10)
        while not load.stop.is_set() and not failed:
            failed = any(await asyncio.gather(*map(one, range(load.partitions))))
            await asyncio.sleep(PAUSE_S)
    except (KafkaError, OSError, TimeoutError):
        await asyncio.sleep(0.5)
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await asyncio.wait_for(producer.stop(), 5)


def confluent_reader(load: Load, name: str) -> None:
    """librdkafka, assigned to all partitions, from the beginning again and again."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

    for life in itertools.count():
        if load.stop.is_set():
            return
        consumer = Consumer(
            {
                "bootstrap.servers": load.bootstrap(),
                "group.id": f"unused-{name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "logger": SILENT,
            }
        )
        consumer.assign(
            [
                TopicPartition(load.topic, partition, OFFSET_BEGINNING)
                for partition in range(load.partitions)
            ]
        )
        until = time.monotonic() + 10
        while not load.stop.is_set() and time.monotonic() < until:
            try:
                messages = consumer.consume(500, timeout=0.2)
            except KafkaException:
                break
            load.recorder.polled(
                name,
                "confluent",
                str(life),
                [
                    Seen(message.partition(), message.offset(), message.value().decode())
                    for message in messages
                    if message.error() is None
                ],
            )
        consumer.close()


def confluent_group_member(load: Load, name: str, group: str) -> None:
    """librdkafka in a group; commits what it has read, then reads the offset back."""
    sessions = itertools.count()
    while not load.stop.is_set():
        _confluent_group_member(load, name, group, sessions)


def _confluent_group_member(
    load: Load, name: str, group: str, sessions: itertools.count[int]
) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    session = [f"{name}.{next(sessions)}"]
    consumer = Consumer(
        {
            "bootstrap.servers": load.bootstrap(),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "logger": SILENT,
        }
    )

    def assigned(_: Consumer, __: list[TopicPartition]) -> None:
        session[0] = f"{name}.{next(sessions)}"

    consumer.subscribe([load.topic], on_assign=assigned)
    until = time.monotonic() + MEMBER_LIFE_S
    while not load.stop.is_set() and time.monotonic() < until:
        try:
            messages = consumer.consume(200, timeout=0.3)
            seen = [
                Seen(message.partition(), message.offset(), message.value().decode())
                for message in messages
                if message.error() is None
            ]
            load.recorder.polled(name, "confluent", session[0], seen)
            if not seen:
                continue
            began_s = time.monotonic()
            for done in consumer.commit(asynchronous=False) or []:
                if done.error is None and done.offset >= 0:
                    load.recorder.committed(
                        group, done.partition, done.offset, is_fetch=False, began_s=began_s
                    )
            began_s = time.monotonic()
            for found in consumer.committed(consumer.assignment(), timeout=5):
                if found.error is None and found.offset >= 0:
                    load.recorder.committed(
                        group, found.partition, found.offset, is_fetch=True, began_s=began_s
                    )
        except KafkaException:
            time.sleep(0.2)
    consumer.close()


def kafka_python_group_member(load: Load, name: str, group: str) -> None:
    """kafka-python in a group."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.errors import KafkaError

    sessions = itertools.count()
    while not load.stop.is_set():
        session = [f"{name}.{next(sessions)}"]

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: object) -> None:
                pass

            def on_partitions_assigned(self, assigned: object) -> None:
                session[0] = f"{name}.{next(sessions)}"  # noqa: B023 - this life's

        try:
            consumer = KafkaConsumer(
                bootstrap_servers=load.bootstrap().split(","),
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=6000,
                heartbeat_interval_ms=500,
                request_timeout_ms=10_000,
            )
        except (KafkaError, OSError):
            time.sleep(0.5)
            continue
        consumer.subscribe([load.topic], listener=Listener())
        until = time.monotonic() + MEMBER_LIFE_S
        with contextlib.suppress(KafkaError):
            while not load.stop.is_set() and time.monotonic() < until:
                batches = consumer.poll(timeout_ms=300)
                seen = [
                    Seen(record.partition, record.offset, record.value.decode())
                    for records in batches.values()
                    for record in records
                ]
                load.recorder.polled(name, "kafka-python", session[0], seen)
                if not seen:
                    continue
                began_s = time.monotonic()
                positions = {tp: consumer.position(tp) for tp in batches}
                consumer.commit()
                for tp, position in positions.items():
                    load.recorder.committed(
                        group, tp.partition, position, is_fetch=False, began_s=began_s
                    )
        with contextlib.suppress(Exception):
            consumer.close(timeout_ms=2000)


def aiokafka_group_member(load: Load, name: str, group: str) -> None:
    """aiokafka in a group."""

    async def run() -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.errors import KafkaError

        sessions = itertools.count()
        while not load.stop.is_set():
            session = [f"{name}.{next(sessions)}"]

            class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
                async def on_partitions_revoked(self, revoked: object) -> None:
                    pass

                async def on_partitions_assigned(self, assigned: object) -> None:
                    session[0] = f"{name}.{next(sessions)}"  # noqa: B023 - this life's

            consumer = AIOKafkaConsumer(
                bootstrap_servers=load.bootstrap().split(","),
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=6000,
                heartbeat_interval_ms=500,
                request_timeout_ms=10_000,
            )
            consumer.subscribe([load.topic], listener=Listener())
            try:
                await asyncio.wait_for(consumer.start(), 10)
                until = time.monotonic() + MEMBER_LIFE_S
                while not load.stop.is_set() and time.monotonic() < until:
                    batches = await consumer.getmany(timeout_ms=300)
                    seen = [
                        Seen(record.partition, record.offset, record.value.decode())
                        for records in batches.values()
                        for record in records
                    ]
                    load.recorder.polled(name, "aiokafka", session[0], seen)
                    if not seen:
                        continue
                    began_s = time.monotonic()
                    offsets = {
                        tp: records[-1].offset + 1 for tp, records in batches.items() if records
                    }
                    await asyncio.wait_for(consumer.commit(offsets), 10)
                    for tp, offset in offsets.items():
                        load.recorder.committed(
                            group, tp.partition, offset, is_fetch=False, began_s=began_s
                        )
            except (KafkaError, OSError, TimeoutError):
                await asyncio.sleep(0.2)
            # aiokafka lets the cancelling of its own tasks out of `stop`.
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(consumer.stop(), 5)

    asyncio.run(run())


def end_asker(load: Load, name: str) -> None:
    """Asks one agent after the other for the ends of all partitions, each by its own connection,
    as a client does that moves between agents."""
    from penstock.config.addresses import parse_address
    from penstock.model.errors import PenstockError
    from support.connection import Connection

    connections: dict[str, Connection] = {}
    while not load.stop.is_set():
        for address in load.bootstrap().split(","):
            try:
                connection = connections.get(address)
                if connection is None or connection.closed:
                    connection = connections[address] = Connection(
                        parse_address(address, setting="agent"), timeout_s=3
                    )
                _ask_ends(load, f"{name} of {address}", connection)
            except (PenstockError, OSError):
                connections.pop(address, None)
        time.sleep(PAUSE_S)


def _ask_ends(load: Load, name: str, connection: Connection) -> None:
    from penstock.kafka.wire.schema import build

    def make(types: ModuleType) -> object:
        partitions = tuple(
            build(types.ListOffsetsPartition, partition_index=number, timestamp=-1)
            for number in range(load.partitions)
        )
        topic = build(types.ListOffsetsTopic, name=load.topic, partitions=partitions)
        return build(types.ListOffsetsRequest, replica_id=-1, isolation_level=0, topics=(topic,))

    began_s = time.monotonic()
    answer = connection.request("list_offsets", make)
    for topic in answer.topics:
        for found in topic.partitions:
            if not found.error_code and found.offset >= 0:
                load.recorder.end_offset(name, found.partition_index, found.offset, began_s)
