"""Records are produced by librdkafka, idempotently and with acks=all.

A thread of librdkafka's sends a record until it is acknowledged or the deadline has passed; the
producer id and its sequences keep the record from being stored twice (KIP-98). After a batch that
fails, no later batch is sent, so that the stored records have no gap.

An idempotent producer of librdkafka 2.16 has one request in flight for each partition, and up to
five in all (its pull request 4989). So if an acknowledgement takes long, the size of a batch and
the number of partitions decide the rate.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from penstock.cli.client.errors import translated
from penstock.cli.client.librdkafka import Log, confluent_kafka
from penstock.kafka.errors import ErrorCode
from penstock.model.errors import InvalidRequestError, PenstockError, RetryableError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from penstock.cli.client.cluster import Client

LINGER_MS: Final = 20
"""With this linger, a line that is typed or comes through a pipe is sent within a tenth of a
second."""
BUFFER_KIB: Final = 256 << 10
BUFFER_COUNT: Final = 200_000
"""At most this many records wait for acknowledgement; then the caller of `add` waits."""
RECORD_BYTES_MAX: Final = 1_000_000_000
"""librdkafka's greatest limit. The topic's own limit counts, which the server checks."""
ACK_TIMEOUT_MS_MAX: Final = 900_000
INT32_MAX: Final = 2_147_483_647
BATCH_RECORDS_MAX: Final = 1_000_000
"""librdkafka's greatest limit, and a server's default. librdkafka's default would cut batches of
short lines."""
NO_TIMESTAMP: Final = 0
"""With this timestamp a record gets the time at which librdkafka takes it."""
CAUSE_WAIT_S: Final = 1.0
"""The longest wait, in seconds, for the report of the first failure after its consequences."""
_PURGED: Final = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})
_BY_KEY: Final = -1
_LOOK_S: Final = 0.005
"""A waiting caller looks this often, in seconds: acknowledgements wake no caller, since librdkafka
reports only errors."""

BATCH_BYTES: Final = 1_000_000
"""The size of a batch, as librdkafka and kcat have it. A topic accepts 1,048,588 bytes by
default."""

Headers = list[tuple[str, bytes | None]]


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record to produce. `timestamp`: ms since the epoch, None: the time of sending; `partition`:
    None: chosen by the key."""

    key: bytes | None
    value: bytes | None
    headers: Headers = []
    timestamp: int | None = None
    partition: int | None = None


class Producer:
    """Sends records to one topic, which is created if the server's settings allow that. Not for
    several threads.

    Records are kept until they are acknowledged, even if Ctrl-C interrupted the wait: another
    `flush` waits for the same records.

    Args:
        codec: none, gzip, snappy, lz4 or zstd.
        batch_bytes: a batch is sent before its records have more than this size; a larger record
            has a batch of its own.
        deadline_s: the longest time that one record may take, with all attempts.

    Raises:
        RetryableError: no server can be reached.
        RefusedError: there is no such topic.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        codec: str,
        batch_bytes: int,
        deadline_s: float,
    ) -> None:
        self._kafka = confluent_kafka()
        self._name = name
        self._batch_bytes = batch_bytes
        self._deadline_s = deadline_s
        self._log = Log()
        self._given = self._failed = 0
        self._error: PenstockError | None = None
        self._purged: PenstockError | None = None
        """The error of a record that librdkafka gave up since another record failed. The other
        record's error says more."""
        # librdkafka begins half a second after its start: the topic is looked up meanwhile.
        timeout_ms = int(deadline_s * 1000)
        self._producer = self._kafka.Producer(
            {
                **client.settings(self._log),
                "queue.buffering.max.messages": BUFFER_COUNT,
                "enable.idempotence": True,
                # After a batch that fails, no later batch is stored, so there is no gap.
                "enable.gapless.guarantee": True,
                "compression.type": codec,
                "batch.size": min(batch_bytes, INT32_MAX),
                "batch.num.messages": BATCH_RECORDS_MAX,
                "linger.ms": LINGER_MS,
                # As in Java's clients: murmur2 of the key, and without a key a random partition.
                "partitioner": "murmur2_random",
                "message.max.bytes": RECORD_BYTES_MAX,
                "queue.buffering.max.kbytes": BUFFER_KIB,
                "request.timeout.ms": min(timeout_ms, ACK_TIMEOUT_MS_MAX),
                "delivery.timeout.ms": min(max(timeout_ms, LINGER_MS + 1), INT32_MAX),
                # Calling Python for each record would take longer than everything else.
                "delivery.report.only.error": True,
                "on_delivery": self._on_failed,
            }
        )

        self._partition_count = len(client.topic(name, create=True).leaders)

    @property
    def sent_count(self) -> int:
        """The number of records that were acknowledged."""
        return self._given - self._failed - self.unsent_count

    @property
    def unsent_count(self) -> int:
        """The number of records that were given and are neither acknowledged nor refused."""
        return len(self._producer)

    def add(self, record: NewRecord) -> None:
        """Take a record; waits while the buffer is full.

        Raises:
            InvalidRequestError: the topic has no such partition.
            PenstockError: an earlier record failed.
        """
        partition = _BY_KEY
        if record.partition is not None:
            partition = record.partition
            self._check_partition(partition)
        while True:
            # The record is counted before the call: Ctrl-C is raised right after the call, and the
            # record would not be counted then.
            self._given += 1
            try:
                self._producer.produce(
                    self._name,
                    record.value,
                    record.key,
                    partition,
                    timestamp=record.timestamp or NO_TIMESTAMP,
                    headers=record.headers,
                )
            except BufferError:
                self._given -= 1
                self._make_room()
            except self._kafka.KafkaException as error:
                self._given -= 1
                self._raise(error.args[0])
            else:
                return

    def add_values(
        self, values: Sequence[bytes], *, headers: Headers, partition: int | None
    ) -> None:
        """Take many values without keys. Waits and raises like `add`."""
        if partition is not None:
            self._check_partition(partition)
        options: dict[str, Any] = {"headers": headers} if headers else {}
        if partition is not None:
            options["partition"] = partition
        send = functools.partial(self._producer.produce, self._name, **options)
        while values:
            rest, is_full = iter(values), 0
            try:
                deque(map(send, rest), maxlen=0)
            except BufferError:
                is_full = 1
            except self._kafka.KafkaException as error:
                is_full = 1
                self._raise(error.args[0])
            finally:
                # Ctrl-C, too, is raised only after the iterator has stopped.
                taken = len(values) - length_hint(rest) - is_full
                self._given += taken
            values = values[taken:]
            if is_full:
                self._make_room()

    def serve(self) -> None:
        """Take librdkafka's reports. Raises: PenstockError: a record failed."""
        self._poll(0)

    def flush(self) -> None:
        """Wait until all records are acknowledged. Raises: PenstockError: a record failed."""
        self._poll(0)
        while len(self._producer):
            self._poll(_LOOK_S)

    def close(self) -> None:
        """Give up records that aren't acknowledged."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _make_room(self) -> None:
        if len(self._producer) == 0:
            raise InvalidRequestError(
                "produce", self._name, f"a record is larger than {BUFFER_KIB >> 10} MiB"
            )
        self._poll(_LOOK_S)

    def _poll(self, wait_s: float) -> None:
        try:
            self._producer.poll(wait_s)
        except self._kafka.KafkaException as error:
            self._raise(error.args[0])
        if self._error is None and self._purged is not None:
            self._wait_for_the_cause()
        if found := self._error or self._purged:
            raise found

    def _raise(self, error: KafkaError) -> NoReturn:
        """Raise the first record's error, which librdkafka may report after the fatal error that
        follows from it, and after the records that were purged for that."""
        self._wait_for_the_cause()
        raise self._error or self._purged or self._translated(error, self._name)

    def _wait_for_the_cause(self) -> None:
        until_s = time.monotonic() + CAUSE_WAIT_S
        while self._error is None and time.monotonic() < until_s:
            with contextlib.suppress(self._kafka.KafkaException):
                self._producer.poll(_LOOK_S)

    def _on_failed(self, error: KafkaError, message: Message) -> None:
        self._failed += 1
        if self._error is not None:
            return
        partition = message.partition()
        name = self._name
        failure = self._translated(error, name if partition is None else f"{name}-{partition}")
        if error.name() in _PURGED:
            self._purged = failure
        else:
            self._error = failure

    def _translated(self, error: KafkaError, subject: str) -> PenstockError:
        if error.code() == ErrorCode.MESSAGE_TOO_LARGE:
            return InvalidRequestError(
                "produce",
                subject,
                f"a record, or a batch of up to {self._batch_bytes:,} bytes, is larger than the "
                "topic takes",
                "MESSAGE_TOO_LARGE: give a smaller --batch-bytes, or raise max.message.bytes",
            )
        if error.name() == "_MSG_TIMED_OUT":
            why = self._log.failure or "no acknowledgement"
            return RetryableError("produce", subject, f"{why}; tried for {self._deadline_s:g} s")
        return translated(error, "produce", subject, failure=self._log.failure)

    def _check_partition(self, partition: int) -> None:
        count = self._partition_count
        if not 0 <= partition < count:
            raise InvalidRequestError(
                "produce", f"{self._name}-{partition}", f"the topic has {count} partitions"
            )
