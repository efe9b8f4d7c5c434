"""What a Produce request is told that isn't appended, and how one with acks=0 hears of it."""

import asyncio
import logging
import struct
from typing import Any

import pytest

from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.errors import ErrorCode
from penstock.kafka.handlers import produce
from penstock.kafka.record_checks import RecordChecks
from penstock.log.append.plan import PartitionAppend
from penstock.records.batch import crc_is_right, stored_header
from penstock.state.answers import BatchStatus
from penstock.state.commands import CreateTopic
from support.batches import make_batch
from support.by_hand import ByHand
from support.loopback import API_VERSIONS, PRODUCE, api_versions, reply, request, serving
from support.raw_batches import PACKERS, field, good, record, uneven, varint
from support.raw_batches import batch as raw_batch
from support.waiting import turns

NOBODY = bytes(range(16))


class Appended:
    """What the log got, which stores all of it."""

    def __init__(self, broker: Any) -> None:
        self.batches: list[bytes] = []
        self.refused: list[bytes] = []
        broker.log.append = self.append
        broker.log.refuse = self.refuse
        broker.log.append_bytes_max = 1 << 20

    def append(self, appends: list[PartitionAppend], *, done: Any, **_: Any) -> None:
        for append in appends:
            self.batches.append(bytes(append.batch.view))
            append.status = BatchStatus.STORED
            append.base_offset = len(self.batches)
        asyncio.get_running_loop().call_soon(done, None)

    def refuse(self, appends: list[PartitionAppend], *, source: int) -> None:
        assert source
        self.refused += [bytes(append.batch.view) for append in appends]


@pytest.fixture
def appended(broker: Broker) -> Appended:
    return Appended(broker)


def batch(value: bytes = b"v", codec: str = "none") -> bytes:
    return bytes(make_batch(value, time=0, codec=codec))


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
async def test_zstd_is_taken_from_those_versions_on_whose_clients_know_it(
    broker: Broker, add_topic: Any, appended: Appended, version: int, codec: str, code: ErrorCode
) -> None:
    """KIP-110."""
    add_topic("flights")
    body = by_name("flights", batch(b"v" * 100, codec))
    assert await told(broker, version, body, "flights") == code
    assert len(appended.batches) == (code is ErrorCode.NONE)


@pytest.mark.parametrize("records", [None, b"", b"\0" * 16, batch()[:-1], batch()[:40]])
@pytest.mark.usefixtures("appended")
async def test_records_without_a_whole_batch_are_invalid_and_not_worth_another_try(
    broker: Broker, add_topic: Any, records: bytes | None
) -> None:
    add_topic("flights")
    body = by_name("flights", records)
    assert await told(broker, 7, body, "flights") == ErrorCode.INVALID_RECORD


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
async def test_a_produce_without_an_answer_that_succeeds_leaves_the_connection_open(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    topic = add_topic("flights")
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, 7, 1, by_name("flights", batch(), acks=0)))
        writer.write(request(PRODUCE, 13, 2, by_id(topic.topic_id, batch(), acks=0), flexible=True))
        await turns()
        writer.write(request(API_VERSIONS, 0, 3, b""))
        assert (await reply(reader))[0] == 3
    assert len(appended.batches) == 2


# -- validation of records -------------------------------------------------------------------------


def raw(block: bytes, count: int, **fields: Any) -> bytes:
    """A batch of the test clock's time."""
    return bytes(raw_batch(block, count, base_timestamp=0, **({"max_timestamp": 0} | fields)))


@pytest.mark.parametrize("codec", list(PACKERS))
@pytest.mark.parametrize("acks", [-1, 1, 0])
async def test_a_poison_batch_is_refused_in_every_codec(
    broker: Broker,
    add_topic: Any,
    appended: Appended,
    codec: str,
    acks: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_topic("flights")
    poison = raw(b"garbage" * 20, 3, codec=codec, packed=True)
    body = by_name("flights", poison, acks=acks)
    counted: list[str] = []
    broker.instruments.count = lambda event, amount=1: counted.append(event)  # type: ignore[method-assign]

    async def unanswered() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(request(PRODUCE, 7, 1, body))
            assert await reader.read() == b""

    if acks:
        assert await told(broker, 7, body, "flights") == ErrorCode.INVALID_RECORD
    else:
        await unanswered()
        assert "INVALID_RECORD" in caplog.text
    assert not appended.batches
    assert counted.count("refused_batches") == 1


def refused_with(version: int, answer: bytes, topic: str) -> tuple[int, list[tuple[int, str]], str]:
    """Error, record errors and message of an answer of one partition, version 8."""
    assert version == 8
    at = 4 + 2 + len(topic) + 4
    _, code, _, _, _ = struct.unpack_from(">ihqqq", answer, at)
    at += 30
    (count,) = struct.unpack_from(">i", answer, at)
    at += 4
    errors = []

    def text() -> str:
        nonlocal at
        (length,) = struct.unpack_from(">h", answer, at)
        at += 2 + length
        return answer[at - length : at].decode()

    for _ in range(count):
        (index,) = struct.unpack_from(">i", answer, at)
        at += 4
        errors.append((index, text()))
    return code, errors, text()


async def test_the_records_at_fault_are_named_to_the_producer(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    """KIP-467."""
    add_topic("flights", cleanup_policy="compact")
    key = field(b"k")
    block = record(0, key=key) + record(1) + record(2, key=key) + record(3)

    async def ask(records: bytes) -> bytes:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(request(PRODUCE, 8, 1, by_name("flights", records)))
            return (await reply(reader))[1]

    code, errors, message = refused_with(8, await ask(raw(block, 4)), "flights")
    assert code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in errors] == [1, 3]
    assert message.startswith("record 1: no key")
    late = record(0, key=key, time_delta=varint(10**10))
    code, errors, _ = refused_with(8, await ask(raw(late, 1)), "flights")
    assert (code, len(errors)) == (ErrorCode.INVALID_TIMESTAMP, 1)
    code, errors, _ = refused_with(8, await ask(raw(record(0, key=key) * 2, 2)), "flights")
    assert code == ErrorCode.INVALID_RECORD
    assert errors == [(1, "offset delta 0; it must be 1")]
    assert not appended.batches


async def test_a_topic_config_turns_the_validation_of_records_off(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    add_topic("flights", penstock_validate_records="false", cleanup_policy="compact")
    poison = raw(b"garbage" * 20, 3, codec="zstd", packed=True)
    assert await told(broker, 7, by_name("flights", poison), "flights") == ErrorCode.NONE
    assert appended.batches == [poison]
    late = raw(good(1), 1, max_timestamp=10**10)
    body = by_name("flights", late)
    assert await told(broker, 7, body, "flights") == ErrorCode.INVALID_TIMESTAMP


async def test_a_header_s_false_timestamp_is_set_right_before_it_is_stored(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    add_topic("flights")
    false = raw(good(2), 2, max_timestamp=2**62)
    assert await told(broker, 7, by_name("flights", false), "flights") == ErrorCode.NONE
    (stored,) = appended.batches
    assert stored_header(stored, 0).max_timestamp == 0
    assert crc_is_right(memoryview(stored))


async def test_limits_of_records_and_bytes_are_the_server_s(broker_with: Any) -> None:
    broker = broker_with(batch_records_max=50, batch_decoded_bytes_max=100_000)
    appended = Appended(broker)
    broker.committer.apply(CreateTopic(name="flights", topic_id=NOBODY, partitions=1, configs={}))
    for block, count, code in (
        (good(50), 50, ErrorCode.NONE),
        (good(51), 51, ErrorCode.MESSAGE_TOO_LARGE),
        (record(0, value=field(bytes(99_000))), 1, ErrorCode.NONE),
        (record(0, value=field(bytes(101_000))), 1, ErrorCode.MESSAGE_TOO_LARGE),
    ):
        body = by_name("flights", raw(block, count, codec="zstd"))
        assert await told(broker, 7, body, "flights") == code
    assert len(appended.batches) == 2


@pytest.mark.parametrize("attributes", [0x20, 0x30, 0x40, 0x08])
async def test_what_only_brokers_write_is_refused(
    broker: Broker, add_topic: Any, appended: Appended, attributes: int
) -> None:
    """Control batches, delete horizons, log append time."""
    add_topic("flights")
    body = by_name("flights", raw(good(1), 1, attributes=attributes))
    assert await told(broker, 7, body, "flights") == ErrorCode.INVALID_RECORD
    assert not appended.batches


@pytest.mark.parametrize("acks", [-1, 0])
async def test_batches_of_a_connection_are_appended_as_they_came(
    broker: Broker, add_topic: Any, appended: Appended, acks: int
) -> None:
    """A place is taken at arrival and filled when checked; other connections go on."""
    add_topic("flights")
    pool = ByHand()
    broker.record_checks = RecordChecks(pool)
    long = raw(uneven(3000), 3000)
    broken = raw(uneven(3000), 3001)
    short = raw(good(1), 1)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        for number, records in enumerate((short, long, short, broken, short)):
            # A failing produce without an answer ends its connection, which is tested above.
            its_acks = acks if records is not broken else -1
            writer.write(request(PRODUCE, 7, number, by_name("flights", records, acks=its_acks)))
        other_reader, other = await connect()
        while not pool.jobs:
            await asyncio.sleep(0)
        other.write(request(PRODUCE, 7, 9, by_name("flights", short)))
        assert (await reply(other_reader))[0] == 9
        assert appended.batches == [short, short]
        while pool.jobs:
            pool.run()
            await turns()
        answered = [0, 1, 2, 3, 4] if acks else [3]
        assert [(await reply(reader))[0] for _ in answered] == answered
    assert appended.batches == [short, short, long, short, short]


def test_partitions_of_one_request_are_refused_one_by_one(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    add_topic("flights", 3)
    pool = ByHand()
    broker.record_checks = RecordChecks(pool)
    blocks = [raw(uneven(3000), 3000), raw(uneven(3000), 3001), raw(good(2), 2)]
    body = struct.pack(">hhiih7s", -1, -1, 30_000, 1, 7, b"flights") + struct.pack(">i", 3)
    for partition, records in enumerate(blocks):
        body += struct.pack(">ii", partition, len(records)) + records

    async def run() -> list[int]:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(request(PRODUCE, 7, 1, body))
            while not pool.jobs:
                await asyncio.sleep(0)
            assert not appended.batches
            while pool.jobs:
                pool.run()
                await turns()
            _, answer = await reply(reader)
            at = 4 + 2 + 7 + 4
            return [struct.unpack_from(">ih", answer, at + 30 * row)[1] for row in range(3)]

    assert asyncio.run(run()) == [0, ErrorCode.INVALID_RECORD, 0]
    assert appended.batches == [blocks[0], blocks[2]]


async def test_of_a_connection_that_is_gone_only_what_wants_no_answer_is_appended(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    """A producer may close once it has sent it. Until it is appended its bytes count."""
    add_topic("flights")
    pool = ByHand()
    broker.record_checks = RecordChecks(pool)
    long, short = raw(uneven(3000), 3000), raw(good(1), 1)
    one, other = raw(uneven(3001), 3001), raw(good(2), 2)
    sent = [(long, 0), (one, -1), (short, 0), (other, 1)]
    async with serving(broker) as (server, connect):
        _, writer = await connect()
        for batch, acks in sent:
            writer.write(request(PRODUCE, 7, 1, by_name("flights", batch, acks=acks)))
        while not pool.jobs:
            await asyncio.sleep(0)
        writer.close()
        while server.connection_count:
            await asyncio.sleep(0.001)
        kept = [request(PRODUCE, 7, 1, by_name("flights", batch)) for batch in (long, short)]
        assert server.data.used_bytes == sum(map(len, kept)) - 4 * len(kept)
        assert broker.record_checks.waiting_count == 1
        while pool.jobs:
            pool.run()
            await turns()
    assert appended.batches == [long, short]


async def test_what_waited_behind_a_produce_that_is_forgotten_is_appended(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    add_topic("flights")
    pool = ByHand()
    broker.record_checks = RecordChecks(pool)
    short = raw(good(1), 1)
    async with serving(broker) as (server, connect):
        _, writer = await connect()
        writer.write(request(PRODUCE, 7, 1, by_name("flights", raw(uneven(3000), 3000))))
        while not pool.jobs:
            await asyncio.sleep(0)
        await turns()  # of which each checks so much at once
        writer.write(request(PRODUCE, 7, 1, by_name("flights", short, acks=0)))
        await turns()
        writer.close()
        while server.connection_count:
            await asyncio.sleep(0.001)
        await turns()
        assert server.data.used_bytes == 0
    assert appended.batches == [short]


async def test_checks_end_with_the_server(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    add_topic("flights")
    pool = ByHand()
    broker.record_checks = RecordChecks(pool)
    async with serving(broker) as (_, connect):
        _, writer = await connect()
        writer.write(request(PRODUCE, 7, 1, by_name("flights", raw(uneven(3000), 3000))))
        while not pool.jobs:
            await asyncio.sleep(0)
    assert not broker.record_checks.waiting_count
    pool.run()
    await turns()
    assert not appended.batches


async def test_a_failure_that_nobody_is_left_to_hear_of_harms_nobody_else(
    broker: Broker, add_topic: Any, appended: Appended, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer with acks=0 is gone when its batch is refused; another's ends in the same job."""
    add_topic("flights")
    pool = ByHand()
    broker.record_checks = RecordChecks(pool)
    broken, long = raw(uneven(3000), 3001), raw(uneven(3000), 3000)
    async with serving(broker) as (server, connect):
        # Takes the thread, so that the other two are begun together.
        _, first = await connect()
        first.write(request(PRODUCE, 7, 1, by_name("flights", long)))
        while not pool.jobs:
            await asyncio.sleep(0)
        _, gone = await connect()
        gone.write(request(PRODUCE, 7, 1, by_name("flights", broken, acks=0)))
        await turns()
        reader, other = await connect()
        other.write(request(PRODUCE, 7, 2, by_name("flights", long)))
        while broker.record_checks.waiting_count < 3:
            await asyncio.sleep(0)
        gone.close()
        while server.connection_count > 2:
            await asyncio.sleep(0.001)
        while pool.jobs:
            pool.run()
            await turns()
        assert (await reply(reader))[0] == 2
    assert appended.batches == [long, long]
    (line,) = caplog.messages
    assert "is gone, and does not get this error: append with acks=0" in line


def drained(broker: Broker) -> list[int]:
    """Let the broker be drained while others lead; what it has counted of batches handed over."""
    counted: list[int] = []
    nodes: Any = broker.nodes
    nodes.is_leaving = lambda: True

    def count(event: str, amount: int = 1) -> None:
        if event == "handed_over_batches":
            counted.append(amount)

    broker.instruments.count = count  # type: ignore[method-assign]
    return counted


async def test_a_drained_agent_sends_producers_to_the_leaders_and_stores_nothing(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    add_topic("flights")
    counted = drained(broker)
    body = by_name("flights", batch())
    assert await told(broker, 7, body, "flights") == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert counted == [1]
    assert not appended.batches
    # What the producer has sent after it may come when this agent is drained no more.
    assert len(appended.refused) == 1


@pytest.mark.usefixtures("either_loop")
async def test_a_drained_agent_ends_the_connection_of_a_producer_that_reads_no_answers(
    broker: Broker, add_topic: Any, appended: Appended
) -> None:
    add_topic("flights")
    drained(broker)

    async def main() -> bytes:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(request(PRODUCE, 7, 1, by_name("flights", batch(), acks=0)))
            return await reader.read()

    assert await main() == b""
    assert not appended.batches


def test_a_long_request_that_waits_holds_nothing_that_was_read_of_it() -> None:
    partitions = b"\0\0\0\0\0\0" * 499
    body = memoryview(b"\0\0\1\0\0\0\0\2\2t\xf4\3" + partitions + b"\0\0")
    assert produce._parse(ConnectionState(1, None), body, 9) is None  # type: ignore[arg-type]
