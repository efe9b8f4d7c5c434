"""One Fetch or Produce to one agent, without a client's retries: what exactly it answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.client.errors import code_name
from penstock.config.addresses import parse_address
from penstock.kafka.wire.schema import build
from penstock.model.errors import PenstockError
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from support import raw_wire
from support.connection import Connection

ANSWER_S = 60.0
"""Only an agent that hangs takes so long."""


@dataclass(frozen=True)
class Fetched:
    """The answer for one partition; `error` is the protocol's name of the code."""

    partition: int
    error: str
    offsets: list[int]
    values: list[bytes] = field(default_factory=list)


def fetch_from(
    address: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    wait_ms: int = 200,
    leader_epoch: int = -1,
) -> Fetched:
    """Fetch (version 11) one partition from an offset on, from exactly this agent."""
    number, code, data = fetch_bytes(
        address, topic, partition, offset, wait_ms=wait_ms, leader_epoch=leader_epoch
    )
    records, _ = raw_wire.read_batches(data, offset)
    return Fetched(
        number,
        code_name(code),
        [place for place, _ in records],
        [record.value or b"" for _, record in records],
    )


def fetch_bytes(
    address: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    wait_ms: int = 200,
    leader_epoch: int = -1,
) -> tuple[int, int, memoryview | bytes]:
    """The same as it comes: partition, code of the error, batches."""
    body = raw_wire.fetch_request(
        topic, partition, offset, wait_ms=wait_ms, leader_epoch=leader_epoch
    )
    connection = Connection(parse_address(address, setting="agent"), timeout_s=ANSWER_S)
    try:
        answer = connection.exchange("fetch", raw_wire.FETCH_VERSION, body, wait_s=wait_ms / 1000)
    finally:
        connection.close()
    found = raw_wire.fetch_answer(answer, partition)
    return found.partition, found.code, found.batches


class RawProducer:
    """Produces (version 7) to exactly one agent, over one connection that is open at once."""

    def __init__(self, address: str, *, timeout_s: float = ANSWER_S) -> None:
        self._connection = Connection(parse_address(address, setting="agent"), timeout_s=timeout_s)

    def send(self, topic: str, partition: int, value: bytes, *, timeout_ms: int = 30_000) -> str:
        """The answer's error by its protocol's name, or that none came."""
        return self.send_for_offset(topic, partition, value, timeout_ms=timeout_ms)[0]

    def send_for_offset(
        self, topic: str, partition: int, value: bytes, *, timeout_ms: int = 30_000
    ) -> tuple[str, int]:
        """The same, and the record's offset."""
        record = Record(offset_delta=0, timestamp=0, key=None, value=value, headers=())
        batch = encode_batch([record])
        body = raw_wire.produce_request(topic, partition, batch, timeout_ms=timeout_ms)
        try:
            answer = self._connection.exchange("produce", raw_wire.PRODUCE_VERSION, body)
        except PenstockError as error:
            return f"no answer: {error.detail}", -1
        code, offset = raw_wire.produce_answer(answer)
        return code_name(code), offset

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def raw_producer(address: str) -> Iterator[RawProducer]:
    """One that is closed afterwards."""
    producer = RawProducer(address)
    try:
        yield producer
    finally:
        producer.close()


def end_of(address: str, topic: str, partition: int) -> tuple[str, int]:
    """ListOffsets (latest) of exactly this agent: error and offset."""

    def make(types: Any) -> Any:
        wanted = build(types.ListOffsetsPartition, partition_index=partition, timestamp=-1)
        named = build(types.ListOffsetsTopic, name=topic, partitions=(wanted,))
        return build(types.ListOffsetsRequest, replica_id=-1, isolation_level=0, topics=(named,))

    connection = Connection(parse_address(address, setting="agent"), timeout_s=ANSWER_S)
    try:
        answer = connection.request("list_offsets", make)
    finally:
        connection.close()
    found = answer.topics[0].partitions[0]
    return code_name(int(found.error_code)), found.offset
