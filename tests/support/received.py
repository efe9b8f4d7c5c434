"""Messages of librdkafka that are records: its types say that any part may be missing."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Message


class Received(NamedTuple):
    """A record that a consumer was given."""

    topic: str
    partition: int
    offset: int
    value: bytes


def received(message: Message) -> Received:
    """The record of a message without an error."""
    assert message.error() is None, message.error()
    found = (message.topic(), message.partition(), message.offset(), message.value())
    topic, partition, offset, value = found
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Received(topic, partition, offset, value or b"")
