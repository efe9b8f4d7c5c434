"""Producers that wait for no answer go on by themselves after one of their requests failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

VALUE = b"v"


def confluent(bootstrap: str, topic: str, may_stop: Callable[[], bool]) -> None:
    from confluent_kafka import KafkaException, Producer

    producer = Producer({"bootstrap.servers": bootstrap, "acks": 0, "linger.ms": 0})
    while not may_stop():
        try:
            producer.produce(topic, VALUE, partition=0)
        except KafkaException:  # it has heard that there is no such topic now
            pass
        producer.flush(0.1)


def aiokafka(bootstrap: str, topic: str, may_stop: Callable[[], bool]) -> None:
    async def run() -> None:
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks=0)
        await producer.start()
        try:
            while not await asyncio.to_thread(may_stop):
                try:
                    sent = await producer.send(topic, VALUE, partition=0)
                    await asyncio.wait([sent], timeout=0.1)
                except KafkaError:  # as above
                    pass
        finally:
            await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("produce", [confluent, aiokafka])
def test_a_producer_without_acknowledgements_finds_a_topic_that_was_made_anew(
    bootstrap: str,
    new_topic: Callable[..., str],
    produce: Callable[[str, str, Callable[[], bool]], None],
) -> None:
    """Its connection ends with a request to what is gone; the next ones come over another."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = new_topic()
    turns = iter(range(3000))
    is_gone = is_anew = False

    def has_records() -> bool:
        asked = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
        return all(future.result(60).offset > 0 for future in asked.values())

    def may_stop() -> bool:
        nonlocal is_gone, is_anew
        turn = next(turns, None)
        assert turn is not None, "nothing arrives"
        if is_anew:
            return has_records()
        if not is_gone and has_records():
            admin.delete_topics([topic])[topic].result(60)
            is_gone = True
        elif is_gone:
            # What was sent meanwhile went nowhere, or the client's question has made the topic.
            try:
                admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
            except KafkaException as error:
                assert error.args[0].name() == "TOPIC_ALREADY_EXISTS"
            is_anew = True
        return False

    produce(bootstrap, topic, may_stop)
