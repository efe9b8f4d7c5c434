"""Producing by librdkafka: idempotent, acks=all.

A thread of librdkafka's sends a record until it is acknowledged or the deadline has passed; the
producer id and its sequences keep it from being stored twice (KIP-98). After a batch that fails,
nothing later is sent, so that what is stored has no gap.

An idempotent producer of librdkafka 2.16 has one request in flight for each partition, and up to
five in all (its pull request 4989). So where an acknowledgement takes a while, the size of a batch
and the number of partitions say how fast this is.
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
"""A line that is typed, or trickles through a pipe, is sent within a tenth of a second."""
BUFFER_KIB: Final = 256 << 10
BUFFER_COUNT: Final = 200_000
"""Records that may wait for acknowledgement; then the caller of `add` waits."""
RECORD_BYTES_MAX: Final = 1_000_000_000
"""librdkafka's own limit. The topic's is the one that counts, and the server knows it."""
ACK_TIMEOUT_MS_MAX: Final = 900_000
INT32_MAX: Final = 2_147_483_647
BATCH_RECORDS_MAX: Final = 1_000_000
"""librdkafka's, and a server's by default; its own default would cut batches of short lines."""
NO_TIMESTAMP: Final = 0
"""librdkafka takes the time at which it gets the record."""
CAUSE_WAIT_S: Final = 1.0
"""Longest that the report of the first failure is waited for after its consequences, in seconds."""
_PURGED: Final = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})
_BY_KEY: Final = -1
_LOOK_S: Final = 0.005
"""An acknowledgement wakes no caller, since only errors are told."""

BATCH_BYTES: Final = 1_000_000
"""As librdkafka's and kcat's. A topic takes 1,048,588 by default."""

Headers = list[tuple[str, bytes | None]]


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be produced. `timestamp` in ms since the epoch, None: the time of sending;
    `partition` None: by the key."""

    key: bytes | None
    value: bytes | None
    headers: Headers = []
    timestamp: int | None = None
    partition: int | None = None


class Producer:
    """Sends records of one topic, which is created if the server's settings allow that. Not for
    several threads.

    What was given is kept until it is acknowledged, also where waiting for that was interrupted
    (Ctrl-C): `flush` waits for the same records again.

    Args:
        codec: none, gzip, snappy, lz4 or zstd.
        batch_bytes: a batch is sent before its records have more than this size; a record that is
            larger has a batch of its own.
        deadline_s: longest that one record may take, attempts included.

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
        """A record that librdkafka gave up since another failed: that one's error says more."""
        # librdkafka begins half a second after its start: the topic is looked up meanwhile.
        timeout_ms = int(deadline_s * 1000)
        self._producer = self._kafka.Producer(
            {
                **client.settings(self._log),
                "queue.buffering.max.messages": BUFFER_COUNT,
                "enable.idempotence": True,
                # A batch that fails leaves no gap behind which others are stored.
                "enable.gapless.guarantee": True,
                "compression.type": codec,
                "batch.size": min(batch_bytes, INT32_MAX),
                "batch.num.messages": BATCH_RECORDS_MAX,
                "linger.ms": LINGER_MS,
                # As Java's clients: murmur2 of a key, no key one partition after another.
                "partitioner": "murmur2_random",
                "message.max.bytes": RECORD_BYTES_MAX,
                "queue.buffering.max.kbytes": BUFFER_KIB,
                "request.timeout.ms": min(timeout_ms, ACK_TIMEOUT_MS_MAX),
                "delivery.timeout.ms": min(max(timeout_ms, LINGER_MS + 1), INT32_MAX),
                # A call of Python for each record takes longer than all else.
                "delivery.report.only.error": True,
                "on_delivery": self._on_failed,
            }
        )

        self._partition_count = len(client.topic(name, create=True).leaders)

    @property
    def sent_count(self) -> int:
        """Records that were acknowledged."""
        return self._given - self._failed - self.unsent_count

    @property
    def unsent_count(self) -> int:
        """Records that were given and are neither acknowledged nor refused."""
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
            # Counted before: Ctrl-C is seen after a call, which would not be counted then.
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
        """The same for values without keys, many at a time. Raises: as `add`."""
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
                # Ctrl-C, too, is seen only when the iterator has stopped.
                taken = len(values) - length_hint(rest) - is_full
                self._given += taken
            values = values[taken:]
            if is_full:
                self._make_room()

    def serve(self) -> None:
        """Take what librdkafka has to say. Raises: PenstockError, when a record failed."""
        self._poll(0)

    def flush(self) -> None:
        """Wait until all is acknowledged. Raises: PenstockError, when a record failed."""
        self._poll(0)
        while len(self._producer):
            self._poll(_LOOK_S)

    def close(self) -> None:
        """Give up what isn't acknowledged."""
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
        """Raise what the first record failed by, which librdkafka may report after a fatal error
        and after the records that it purged for that."""
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
            return RetryableError("produce", subject, f"{why}, for {self._deadline_s:g} s")
        return translated(error, "produce", subject, failure=self._log.failure)

    def _check_partition(self, partition: int) -> None:
        count = self._partition_count
        if not 0 <= partition < count:
            raise InvalidRequestError(
                "produce", f"{self._name}-{partition}", f"the topic has {count} partitions"
            )
