"""What a Produce request is told that isn't appended, and how one with acks=0 hears of it."""

import asyncio
import logging
import struct
from typing import Any

import pytest

from penstock.kafka.broker import Broker
from penstock.kafka.errors import ErrorCode
from penstock.log.append.plan import PartitionAppend
from penstock.metadata.answers import BatchStatus
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from support.loopback import API_VERSIONS, PRODUCE, api_versions, reply, request, serving, turns

NOBODY = bytes(range(16))


class Appended:
    """What the log got, which stores all of it."""

    def __init__(self, broker: Any) -> None:
        self.batches: list[bytes] = []
        broker.log.append = self.append
        broker.log.append_bytes_max = 1 << 20

    def append(self, appends: list[PartitionAppend], *, done: Any, **_: Any) -> None:
        for append in appends:
            self.batches.append(bytes(append.batch.view))
            append.status = BatchStatus.STORED
            append.base_offset = len(self.batches)
        asyncio.get_running_loop().call_soon(done, None)


@pytest.fixture
def appended(broker: Broker) -> Appended:
    return Appended(broker)


def batch(value: bytes = b"v", codec: str = "none") -> bytes:
    record = Record(offset_delta=0, timestamp=0, key=None, value=value, headers=())
    return bytes(encode_batch([record], codec=codec))


def by_name(topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0) -> bytes:
    """The body of a request of versions 3 to 8."""
    name = topic.encode()
    body = struct.pack(f">hhiih{len(name)}s", -1, acks, 30_000, 1, len(name), name)
    body += struct.pack(">iii", 1, partition, -1 if records is None else len(records))
    return body + (records or b"")


def by_id(topic_id: bytes, records: bytes, *, acks: int) -> bytes:
    """The same of version 13, for less than 126 bytes of records."""
    head = struct.pack(">bhib16sbi", 0, acks, 30_000, 2, topic_id, 2, 0)
    return head + bytes([len(records) + 1]) + records + b"\0\0\0"


async def told(broker: Broker, version: int, body: bytes, topic: str) -> int:
    """The error code that a request of one partition is answered with."""
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, version, 1, body))
        _, answer = await reply(reader)
    return int(struct.unpack_from(">h", answer, 4 + 2 + len(topic) + 4 + 4)[0])


@pytest.mark.parametrize(
    ("version", "codec", "code"),
    [
        (3, "zstd", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (6, "zstd", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (7, "zstd", ErrorCode.NONE),
        (3, "lz4", ErrorCode.NONE),
        (6, "none", ErrorCode.NONE),
    ],
)
def test_zstd_is_taken_from_those_versions_on_whose_clients_know_it(
    broker: Broker, add_topic: Any, appended: Appended, version: int, codec: str, code: ErrorCode
) -> None:
    """KIP-110."""
    add_topic("flights")
    body = by_name("flights", batch(b"v" * 100, codec))
    assert asyncio.run(told(broker, version, body, "flights")) == code
    assert len(appended.batches) == (code is ErrorCode.NONE)


@pytest.mark.parametrize("records", [None, b"", b"\0" * 16, batch()[:-1], batch()[:40]])
@pytest.mark.usefixtures("appended")
def test_records_without_a_whole_batch_are_invalid_and_not_worth_another_try(
    broker: Broker, add_topic: Any, records: bytes | None
) -> None:
    add_topic("flights")
    body = by_name("flights", records)
    assert asyncio.run(told(broker, 7, body, "flights")) == ErrorCode.INVALID_RECORD


@pytest.mark.usefixtures("either_loop")
@pytest.mark.parametrize(
    ("version", "failing"),
    [
        (7, by_name("nobody's", batch(), acks=0)),
        (7, by_name("flights", batch(), acks=0, partition=1)),
        (7, by_name("flights", batch()[:-1], acks=0)),
        (13, by_id(NOBODY, batch(), acks=0)),
    ],
)
def test_the_connection_of_a_produce_without_an_answer_ends_when_it_fails(
    broker: Broker,
    add_topic: Any,
    appended: Appended,
    caplog: pytest.LogCaptureFixture,
    version: int,
    failing: bytes,
) -> None:
    """As in Kafka: the producer then looks at the metadata again. What came along is served."""
    add_topic("flights")
    good = by_name("flights", batch(), acks=0)

    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(
                api_versions(1)
                + request(PRODUCE, 7, 2, by_name("flights", batch()))
                + request(PRODUCE, version, 3, failing, flexible=version >= 9)
                + request(PRODUCE, version, 4, failing, flexible=version >= 9)
                + request(PRODUCE, 7, 5, good)
            )
            assert [(await reply(reader))[0] for _ in range(2)] == [1, 2]
            assert await reader.read() == b""

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert len(appended.batches) == 2
    (line,) = caplog.messages
    assert "Produce: append with acks=0 to partition" in line


@pytest.mark.usefixtures("either_loop")
def test_a_produce_without_an_answer_that_succeeds_leaves_the_connection_open(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    topic = add_topic("flights")

    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(request(PRODUCE, 7, 1, by_name("flights", batch(), acks=0)))
            writer.write(
                request(PRODUCE, 13, 2, by_id(topic.topic_id, batch(), acks=0), flexible=True)
            )
            await turns()
            writer.write(request(API_VERSIONS, 0, 3, b""))
            assert (await reply(reader))[0] == 3

    asyncio.run(run())
    assert len(appended.batches) == 2
