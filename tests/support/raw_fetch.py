"""One Fetch or Produce to one agent, without a client's retries: what exactly it answers."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.client.connection import Connection
from penstock.cli.client.errors import code_name
from penstock.cli.client.fetching import VERSION, read_batches
from penstock.cli.client.offsets import TopicPartition
from penstock.config.addresses import parse_address
from penstock.kafka.wire.schema import build
from penstock.model.errors import PenstockError
from penstock.records.decode import Record
from penstock.records.encode import encode_batch

_HEAD = struct.Struct(">ihii")
_PARTITION = struct.Struct(">ihqqqi")
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
    records, _ = read_batches(TopicPartition(topic, number), data, offset)
    return Fetched(
        number,
        code_name(code),
        [record.offset for record in records],
        [record.value or b"" for record in records],
    )


def fetch_bytes(
    address: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    wait_ms: int = 200,
    leader_epoch: int = -1,
) -> tuple[int, int, bytes]:
    """The same as it comes: partition, code of the error, batches."""
    name = topic.encode()
    body = struct.pack(">iiiibii", -1, wait_ms, 1, 1 << 20, 0, 0, -1)
    body += struct.pack(f">ih{len(name)}si", 1, len(name), name, 1)
    body += struct.pack(">iiqqi", partition, leader_epoch, offset, -1, 1 << 20)
    body += struct.pack(">ih", 0, 0)
    connection = Connection(parse_address(address, setting="agent"), timeout_s=ANSWER_S)
    try:
        answer = connection.exchange("fetch", VERSION, body, wait_s=wait_ms / 1000)
    finally:
        connection.close()
    _, code, _, topics = _HEAD.unpack_from(answer)
    if code or not topics:
        return partition, code, b""
    at = _HEAD.size
    at += 2 + struct.unpack_from(">h", answer, at)[0] + 4
    number, code, _, _, _, aborted = _PARTITION.unpack_from(answer, at)
    at += _PARTITION.size + max(0, aborted) * 16 + 4
    length = max(0, struct.unpack_from(">i", answer, at)[0])
    data = answer[at + 4 : at + 4 + length]
    return number, code, data


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
        name = topic.encode()
        body = struct.pack(f">hhiih{len(name)}s", -1, -1, timeout_ms, 1, len(name), name)
        body += struct.pack(">iii", 1, partition, len(batch)) + bytes(batch)
        try:
            answer = self._connection.exchange("produce", 7, body)
        except PenstockError as error:
            return f"no answer: {error.detail}", -1
        code, offset = struct.unpack_from(">hq", answer, 4 + 2 + len(name) + 4 + 4)
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
