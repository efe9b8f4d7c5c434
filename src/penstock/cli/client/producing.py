"""Producing: batches per partition, sent idempotently with acks=all.

A batch is sent again until it is acknowledged or the deadline has passed, each time to the node
that leads the partition by then; the producer id and its sequences keep a record from being stored
twice (KIP-98).
"""

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from penstock.cli.client.cluster import Client, TopicInfo
from penstock.cli.client.errors import RETRIABLE, check, code_name
from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire.schema import build
from penstock.model.errors import CorruptDataError, InvalidRequestError, RetryableError
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.murmur import partition_of_key

ACKS_ALL: Final = -1
VERSION: Final = 7
"""Of Produce: the newest without record errors, which no caller looks at. zstd needs it."""
RETRY_PAUSE_S: Final = 0.2
SEQUENCE_MODULUS: Final = 1 << 31
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_PARTITION_ANSWER: Final = struct.Struct(">ihqqq")
_RECORD_OVERHEAD_BYTES: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """What is to be produced. `timestamp` in ms since the epoch; `partition` None: by the key."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int
    partition: int | None = None


@dataclass(slots=True)
class _Batch:
    """A partition's records that are not acknowledged; `before` counts those that are."""

    before: int = 0
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0


class Producer:
    """Collects records of one topic and sends them in batches. Not for several threads.

    A batch is kept until it is acknowledged: where its sending was interrupted (Ctrl-C), `flush`
    sends it again, under the same sequence.

    Args:
        codec: none, gzip, snappy, lz4 or zstd.
        batch_bytes: a batch is sent before its records have more than about this size; a record
            that is larger has a batch of its own.
        deadline_s: longest that one batch may take, attempts included.
    """

    def __init__(
        self,
        client: Client,
        topic: TopicInfo,
        *,
        codec: str,
        batch_bytes: int,
        deadline_s: float,
    ) -> None:
        self._client = client
        self._topic = topic
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._deadline_s = deadline_s
        self._leaders = {row.partition: row.leader for row in topic.partitions}
        self._batches: dict[int, _Batch] = {}
        self._sticky = 0
        self._producer_id, self._epoch = self._initialize()

    @property
    def sent_count(self) -> int:
        """Records that were acknowledged."""
        return sum(batch.before for batch in self._batches.values())

    @property
    def unsent_count(self) -> int:
        """Records that were taken and not acknowledged."""
        return sum(len(batch.records) for batch in self._batches.values())

    def add(self, record: NewRecord) -> None:
        """Take a record, sending its partition's batch when it is full.

        Raises:
            InvalidRequestError: the topic has no such partition.
        """
        partition = self._partition(record)
        size_bytes = _size(record)
        batch = self._batches.setdefault(partition, _Batch())
        if batch.records and batch.size_bytes + size_bytes > self._batch_bytes:
            # Two records that a topic takes may be more than it takes in one batch.
            self._send(partition)
            batch = self._batches[partition]
        batch.records.append(
            Record(
                offset_delta=len(batch.records),
                timestamp=record.timestamp,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
        )
        batch.size_bytes += size_bytes
        if batch.size_bytes >= self._batch_bytes:
            self._send(partition)
            if partition == self._sticky:
                # Keyless records fill one partition's batch after another (KIP-480).
                self._sticky = (self._sticky + 1) % len(self._leaders)

    def flush(self) -> None:
        """Send what is left."""
        for partition, batch in list(self._batches.items()):
            if batch.records:
                self._send(partition)

    def _partition(self, record: NewRecord) -> int:
        if record.partition is not None:
            if record.partition not in self._leaders:
                raise InvalidRequestError(
                    "produce",
                    f"{self._topic.name}-{record.partition}",
                    f"the topic has {len(self._leaders)} partitions",
                )
            return record.partition
        if record.key is None:
            return self._sticky
        return partition_of_key(record.key, len(self._leaders))

    def _initialize(self) -> tuple[int, int]:
        response = self._client.any().request(
            "init_producer_id",
            lambda types: build(
                types.InitProducerIdRequest,
                transactional_id=None,
                transaction_timeout=timedelta(0),
            ),
        )
        check("get a producer id for", self._topic.name, response.error_code)
        return response.producer_id, response.producer_epoch

    def _send(self, partition: int) -> None:
        batch = self._batches[partition]
        data = encode_batch(
            batch.records,
            codec=self._codec,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=batch.before % SEQUENCE_MODULUS,
        )
        body = _request(self._topic.name, partition, data, timeout_ms=int(self._deadline_s * 1000))
        self._send_until_acknowledged(partition, body)
        # One assignment: an interrupt finds the batch before it or after it, never its sequence
        # used and its records still here.
        self._batches[partition] = _Batch(before=batch.before + len(batch.records))

    def _send_until_acknowledged(self, partition: int, body: bytes) -> None:
        subject = f"{self._topic.name}-{partition}"
        end_s = time.monotonic() + self._deadline_s
        is_again = False
        while True:
            try:
                if is_again:
                    self._find_leaders()
                answer = self._client.node(self._leaders[partition]).exchange(
                    "produce", VERSION, body
                )
                code = _answer_code(answer, subject)
                # A duplicate that is older than what the server remembers was stored, too.
                if code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
                    return
                if code not in RETRIABLE:
                    check("produce", subject, code)
                failure = RetryableError("produce", subject, "try again", code_name(code))
            except RetryableError as error:
                failure = error
            if time.monotonic() + RETRY_PAUSE_S >= end_s:
                raise failure
            time.sleep(RETRY_PAUSE_S)
            is_again = True

    def _find_leaders(self) -> None:
        """Ask who leads by now: an agent that is drained or away hands its partitions over."""
        topic = self._client.metadata([self._topic.name]).topics[self._topic.name]
        self._leaders.update({row.partition: row.leader for row in topic.partitions})


def _size(record: NewRecord) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD_BYTES


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _request(topic: str, partition: int, batch: bytearray, *, timeout_ms: int) -> bytes:
    """Produce version 7: transactional id, acks, timeout, topics of partitions of records."""
    return b"".join(
        (
            _INT16.pack(-1),
            _INT16.pack(ACKS_ALL),
            _INT32.pack(timeout_ms),
            _INT32.pack(1),
            _text(topic),
            _INT32.pack(1),
            _INT32.pack(partition),
            _INT32.pack(len(batch)),
            batch,
        )
    )


def _answer_code(answer: memoryview, subject: str) -> int:
    try:
        name_bytes = _INT16.unpack_from(answer, 4)[0]
        # After the topic's name and the number of its partitions, which is one.
        row = _PARTITION_ANSWER.unpack_from(answer, 4 + 2 + name_bytes + 4)
    except struct.error as error:
        raise CorruptDataError("produce", subject, f"answer of {len(answer)} bytes") from error
    code: int = row[1]
    return code


def text_headers(pairs: Mapping[str, str]) -> tuple[tuple[str, bytes | None], ...]:
    """Headers of text."""
    return tuple((name, value.encode()) for name, value in pairs.items())
