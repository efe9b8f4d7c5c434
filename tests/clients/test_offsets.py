"""Where a reader starts: committed offsets, times, ends, and offsets that are not there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from support.adapters import ADAPTERS
from support.records import NewRecord

BASE_MS = 1_700_000_000_000
STEP_MS = 1000
WAIT_SECONDS_MAX = 90.0


def fill(bootstrap: str, topic: str, count: int = 20) -> None:
    """Write count records to partition 0, one second apart."""
    records = [
        NewRecord(0, None, str(index).encode(), BASE_MS + index * STEP_MS) for index in range(count)
    ]
    ADAPTERS[0].write(bootstrap, topic, records)


# One function per client: the first offset that a reader gets who seeks to a time.


def confluent_seek(bootstrap: str, topic: str, at_ms: int) -> int | None:
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        found = consumer.offsets_for_times([TopicPartition(topic, 0, at_ms)], timeout=60)[0]
        assert found.error is None, found.error
        if found.offset == OFFSET_END:
            return None
        consumer.assign([TopicPartition(topic, 0, found.offset)])
        message = consumer.poll(90)
        assert message is not None
        assert message.error() is None
        return int(message.offset())
    finally:
        consumer.close()


def aiokafka_seek(bootstrap: str, topic: str, at_ms: int) -> int | None:
    async def run() -> int | None:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            found = (await consumer.offsets_for_times({place: at_ms}))[place]
            if found is None:
                return None
            consumer.seek(place, found.offset)
            message = await asyncio.wait_for(consumer.getone(), 90)
            return int(message.offset)
        finally:
            await consumer.stop()

    return asyncio.run(run())


def kafka_python_seek(bootstrap: str, topic: str, at_ms: int) -> int | None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        found = consumer.offsets_for_times({place: at_ms})[place]
        if found is None:
            return None
        consumer.seek(place, found.offset)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=200, max_records=1).values():
                return int(messages[0].offset)
        raise AssertionError("nothing came")
    finally:
        consumer.close()


SEEKS = {
    "confluent-kafka": confluent_seek,
    "aiokafka": aiokafka_seek,
    "kafka-python": kafka_python_seek,
}


@pytest.mark.parametrize("client", SEEKS)
def test_seeking_by_time_finds_the_record_inside_its_batch(
    bootstrap: str, new_topic: Callable[..., str], client: str
) -> None:
    """The first record at or after the time is found, though all lie in one batch; a time past
    the last one finds nothing."""
    topic = new_topic(1)
    fill(bootstrap, topic)
    seek = SEEKS[client]
    assert seek(bootstrap, topic, BASE_MS + 7 * STEP_MS) == 7
    assert seek(bootstrap, topic, BASE_MS + 7 * STEP_MS + 1) == 8
    assert seek(bootstrap, topic, 0) == 0
    assert seek(bootstrap, topic, BASE_MS + 999 * STEP_MS) is None


# One function per client: what a reader gets who starts at an offset that is not there. A number is
# the first record's offset, "end" means that it waits at the end, "out of range" that it was told.


def confluent_from(bootstrap: str, topic: str, offset: int, reset: str) -> int | str:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": {"none": "error"}.get(reset, reset),
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        message = consumer.poll(90)
        assert message is not None
        error = message.error()
        if error is None:
            return int(message.offset())
        if error.code() == KafkaError._PARTITION_EOF:
            return "end"
        assert error.code() == KafkaError._AUTO_OFFSET_RESET, error
        assert "out of range" in error.str().lower(), error
        return "out of range"
    finally:
        consumer.close()


def aiokafka_from(bootstrap: str, topic: str, offset: int, reset: str) -> int | str:
    async def run() -> int | str:
        from aiokafka import AIOKafkaConsumer, TopicPartition
        from aiokafka.errors import OffsetOutOfRangeError

        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset=reset
        )
        await consumer.start()
        try:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, offset)
            end = (await consumer.end_offsets([place]))[place]
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while time.monotonic() < deadline:
                try:
                    found = (await consumer.getmany(timeout_ms=200, max_records=1)).get(place)
                except OffsetOutOfRangeError:
                    return "out of range"
                if found:
                    return int(found[0].offset)
                if await consumer.position(place) == end:
                    return "end"
            raise AssertionError("nothing came")
        finally:
            await consumer.stop()

    return asyncio.run(run())


def kafka_python_from(bootstrap: str, topic: str, offset: int, reset: str) -> int | str:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import OffsetOutOfRangeError

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset=reset
    )
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, offset)
        end = consumer.end_offsets([place])[place]
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                for messages in consumer.poll(timeout_ms=200, max_records=1).values():
                    return int(messages[0].offset)
            except OffsetOutOfRangeError:
                return "out of range"
            if consumer.position(place) == end:
                return "end"
        raise AssertionError("nothing came")
    finally:
        consumer.close()


STARTS = {
    "confluent-kafka": confluent_from,
    "aiokafka": aiokafka_from,
    "kafka-python": kafka_python_from,
}


@pytest.mark.parametrize(
    ("reset", "expected"), [("none", "out of range"), ("earliest", 0), ("latest", "end")]
)
@pytest.mark.parametrize("client", STARTS)
def test_an_offset_past_the_end_is_out_of_range(
    bootstrap: str, new_topic: Callable[..., str], client: str, reset: str, expected: int | str
) -> None:
    """The reader's own reset decides: an error, the start, or the end."""
    topic = new_topic(1)
    fill(bootstrap, topic, 5)
    assert STARTS[client](bootstrap, topic, 1_000_000, reset) == expected


@pytest.mark.parametrize("client", STARTS)
def test_an_offset_below_the_start_is_out_of_range(
    bootstrap: str, new_topic: Callable[..., str], client: str
) -> None:
    """After DeleteRecords a reader that starts below is moved to the first record that is left."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = new_topic(1)
    fill(bootstrap, topic, 10)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        assert future.result(60).low_watermark == 6
    assert STARTS[client](bootstrap, topic, 2, "earliest") == 6
    assert STARTS[client](bootstrap, topic, 2, "none") == "out of range"


def test_watermarks_and_lists_of_offsets(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Earliest, latest, by timestamp and of the maximal timestamp, by ListOffsets."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    topic = new_topic(1)
    times = [BASE_MS, BASE_MS + 9000, BASE_MS + 5000]
    for at_ms in times:
        ADAPTERS[0].write(bootstrap, topic, [NewRecord(0, None, b"v", at_ms)])
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def offset_of(spec: OffsetSpec) -> tuple[int, int]:
        asked = {TopicPartition(topic, 0): spec}
        futures = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        result = next(iter(futures.values())).result(60)
        return result.offset, result.timestamp

    assert offset_of(OffsetSpec.earliest())[0] == 0
    assert offset_of(OffsetSpec.latest())[0] == 3
    assert offset_of(OffsetSpec.for_timestamp(BASE_MS + 4000)) == (1, BASE_MS + 9000)
    assert offset_of(OffsetSpec.max_timestamp()) == (1, BASE_MS + 9000)


def test_committed_offsets_keep_their_metadata(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str]
) -> None:
    """An offset committed with a text comes back with it; an unknown partition's is absent."""
    from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

    topic, group = new_topic(2), name("group")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        place = TopicPartition(topic, 0, 42, metadata="a note")
        consumer.commit(offsets=[place], asynchronous=False)
        first, second = consumer.committed([TopicPartition(topic, p) for p in (0, 1)], timeout=60)
        assert (first.offset, first.metadata) == (42, "a note")
        assert second.offset == OFFSET_INVALID
    finally:
        consumer.close()
