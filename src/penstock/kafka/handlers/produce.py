"""Produce, versions 3 to 13 (KIP-896 floor; 13 by topic id, KIP-516).

Raw: the records stay where the socket put them. Batches are checked here, at the border, then
handed to the log; the answer is made when the commit's answer is known. Requests of one
connection may overlap here; the connection answers them in order.
"""

import asyncio
from functools import partial
from typing import Final

from penstock.kafka import fresh
from penstock.kafka.context import (
    ConnectionState,
    LateReply,
    ReplyFuture,
    RequestContext,
)
from penstock.kafka.errors import ErrorCode, error_code, refusal_code
from penstock.kafka.produce_codec import (
    TOPIC_IDS_FROM,
    PartitionAnswer,
    PartitionData,
    ProduceRequest,
    TopicData,
    encode_produce,
    parse_produce,
)
from penstock.kafka.produce_repeat import KnownProduce, known_produce
from penstock.log.append.plan import PartitionAppend
from penstock.metadata.answers import BatchStatus, Refusal
from penstock.metadata.view import Topic
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import partition_key
from penstock.model.topic_configs import topic_settings
from penstock.records.batch import ZSTD, BatchError, BatchFault, BatchLimits, check_batch, codec_of

API_KEY: Final = 0
VERSIONS: Final = (3, 13)
RAW: Final = True
ZSTD_FROM: Final = 7
"""KIP-110: the version of those who know zstd."""

_CODES: Final = {
    BatchFault.TRUNCATED: ErrorCode.INVALID_RECORD,
    BatchFault.LENGTH: ErrorCode.CORRUPT_MESSAGE,
    BatchFault.CRC: ErrorCode.CORRUPT_MESSAGE,
    BatchFault.MAGIC: ErrorCode.INVALID_RECORD,
    BatchFault.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
    BatchFault.INVALID: ErrorCode.INVALID_RECORD,
    BatchFault.TIMESTAMP: ErrorCode.INVALID_TIMESTAMP,
    BatchFault.NULL_KEY: ErrorCode.INVALID_RECORD,
    BatchFault.TRANSACTION: ErrorCode.INVALID_TXN_STATE,
}


def serve(context: RequestContext, body: memoryview) -> ReplyFuture:
    """Check the request's batches and hand them to the log; the future is the answer."""
    broker = context.broker
    started_s = broker.clock.monotonic_s()
    operation = _Produce(context, body)
    broker.instruments.observe("parse:Produce", broker.clock.monotonic_s() - started_s)
    operation.start()
    return operation.reply


class _Produce:
    """One request under way. Calls to the log are split where the WAL's frames would be too big."""

    __slots__ = (
        "_appends",
        "_broker",
        "_confirmation",
        "_context",
        "_length",
        "_pending",
        "_request",
        "_source",
        "_topics",
        "_unknown",
        "_version",
        "reply",
    )

    def __init__(self, context: RequestContext, body: memoryview) -> None:
        self._context = context
        self._broker = context.broker
        self._source = context.connection.id
        self._version = context.api_version
        self._request = _parse(context.connection, body, context.api_version)
        self._topics: list[tuple[TopicData, list[PartitionAnswer]]] = []
        self._appends: list[tuple[PartitionAppend, PartitionAnswer]] = []
        self._length = 0
        self._pending = 0
        self._unknown: list[tuple[TopicData, PartitionAnswer]] = []
        self._confirmation: asyncio.Task[None] | None = None
        self.reply = LateReply(loop=asyncio.get_running_loop())

    def start(self) -> None:
        for topic in self._request.topics:
            self._topics.append((topic, self._check_topic(topic)))
        if self._unknown and self._broker.heads is not None and self._request.acks != 0:
            # What is known goes on at once: requests of a connection are appended as they came.
            self._pending += 1
            self._confirmation = asyncio.get_running_loop().create_task(self._confirm())
        if not self._appends:
            if not self._pending:
                self._finish()
            return
        groups = self._split()
        self._pending += len(groups)
        timeout_ms = self._request.timeout_ms
        for group in groups:
            appends = [append for append, _ in group]
            self._broker.log.append(
                appends,
                timeout_ms=timeout_ms,
                done=partial(self._done, group),
                source=self._source,
            )

    async def _confirm(self) -> None:
        """Say that a partition does not exist only when that is so at present.

        One that does is not appended to: a later request may have overtaken this one. The
        client sends it again.
        """
        known = await fresh.confirm(self._context)
        for data, answer in self._unknown:
            if not known or self._exists(data, answer.partition):
                answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._pending -= 1
        if not self._pending:
            self._finish()

    def _topic(self, data: TopicData) -> Topic | None:
        view = self._broker.view
        if self._version >= TOPIC_IDS_FROM:
            return view.topic_by_id(data.topic_id)
        return view.topic(data.name)

    def _exists(self, data: TopicData, partition: int) -> bool:
        topic = self._topic(data)
        return topic is not None and 0 <= partition < topic.partitions

    def _check_topic(self, data: TopicData) -> list[PartitionAnswer]:
        topic = self._topic(data)
        if topic is None:
            by_id = self._version >= TOPIC_IDS_FROM
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answers = [PartitionAnswer(part.partition, unknown) for part in data.partitions]
            self._unknown += ((data, answer) for answer in answers)
            return answers
        if self._request.acks not in (-1, 0, 1):
            return [
                PartitionAnswer(part.partition, ErrorCode.INVALID_REQUIRED_ACKS)
                for part in data.partitions
            ]
        limits = batch_limits(topic, self._broker.view.cluster_configs)
        now_ms = self._broker.clock.now_ms()
        return [self._check(data, topic, limits, part, now_ms) for part in data.partitions]

    def _check(
        self,
        data: TopicData,
        topic: Topic,
        limits: BatchLimits,
        part: PartitionData,
        now_ms: int,
    ) -> PartitionAnswer:
        answer = PartitionAnswer(part.partition, 0)
        if not 0 <= part.partition < topic.partitions:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._unknown.append((data, answer))
            return answer
        try:
            batch = check_batch(part.records or _NO_RECORDS, limits, now_ms)
        except BatchError as error:
            answer.error_code = _CODES[error.fault]
            answer.message = error.detail
            return answer
        if self._version < ZSTD_FROM and codec_of(batch.view) == ZSTD:
            answer.error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            answer.message = f"zstd is allowed in Produce from version {ZSTD_FROM} on"
            return answer
        if batch.length > self._broker.log.append_bytes_max:
            answer.error_code = ErrorCode.MESSAGE_TOO_LARGE
            answer.message = (
                f"batch of {batch.length} bytes; a WAL frame holds "
                f"{self._broker.log.append_bytes_max}"
            )
            return answer
        key = partition_key(topic.topic_key, part.partition)
        self._appends.append((PartitionAppend(key, batch), answer))
        self._length += batch.length
        return answer

    def _split(self) -> list[list[tuple[PartitionAppend, PartitionAnswer]]]:
        bytes_max = self._broker.log.append_bytes_max
        if self._length <= bytes_max:
            return [self._appends]
        groups: list[list[tuple[PartitionAppend, PartitionAnswer]]] = [[]]
        length = 0
        for pair in self._appends:
            size = pair[0].batch.length
            if length + size > bytes_max:
                groups.append([])
                length = 0
            groups[-1].append(pair)
            length += size
        return groups

    def _done(
        self, group: list[tuple[PartitionAppend, PartitionAnswer]], error: PenstockError | None
    ) -> None:
        for append, answer in group:
            befell = error or append.error
            if befell is not None:
                answer.error_code = error_code(befell)
                answer.message = str(befell)
            else:
                self._take(append, answer)
        self._pending -= 1
        if not self._pending:
            self._finish()

    def _take(self, append: PartitionAppend, answer: PartitionAnswer) -> None:
        if append.status is BatchStatus.REFUSED:
            refusal = Refusal(append.base_offset)
            answer.error_code = refusal_code(refusal)
            answer.message = _refusal_text(refusal, append)
        else:
            answer.base_offset = append.base_offset
            answer.log_append_time = append.batch.log_append_time
        head = self._broker.view.head(append.partition_key)
        if head is not None:
            answer.log_start_offset = head.log_start

    def _finish(self) -> None:
        if self.reply.done():  # the connection is gone; what was stored stays stored
            return
        if self._request.acks != 0:
            self.reply.give([encode_produce(self._topics, self._version)])
            return
        failure = self._first_failure()
        if failure is not None:
            # Nobody is answered. As in Kafka the connection's end has the producer ask for the
            # metadata: else one that goes by a topic's id sends to what was deleted for minutes.
            self._context.connection.end(failure)
        self.reply.give(None)

    def _first_failure(self) -> PenstockError | None:
        for topic, answers in self._topics:
            for answer in answers:
                if answer.error_code:
                    return RetryableError(
                        "append with acks=0 to",
                        f"partition {answer.partition} of {topic.name or topic.topic_id.hex()}",
                        ErrorCode(answer.error_code).name,
                        answer.message or "",
                    )
        return None


_NO_RECORDS: Final = memoryview(b"")


def _parse(connection: ConnectionState, body: memoryview, version: int) -> ProduceRequest:
    """The request; where it begins as the connection's last one, only what differs is parsed."""
    known = connection.last_produce
    request = known.parse(body, version) if isinstance(known, KnownProduce) else None
    if request is None:
        request = parse_produce(body, version)
        connection.last_produce = known_produce(body, version, request)
    return request


def _refusal_text(refusal: Refusal, append: PartitionAppend) -> str:
    batch = append.batch
    return (
        f"{refusal.name}: producer {batch.producer_id} epoch {batch.producer_epoch} "
        f"sequence {batch.base_sequence}, {batch.record_count} records"
    )


_LIMITS: dict[int, tuple[Topic, dict[str, str], BatchLimits]] = {}
_LIMITS_MAX: Final = 10_000


def batch_limits(topic: Topic, cluster_configs: dict[str, str]) -> BatchLimits:
    """What the topic accepts; computed once per version of its configs.

    A view replaces a topic, and the cluster's configs, by new values when they change, so that
    identity tells whether the limits still hold.
    """
    known = _LIMITS.get(topic.topic_key)
    if known is not None and known[0] is topic and known[1] is cluster_configs:
        return known[2]
    settings = topic_settings(topic.configs, cluster_configs)
    limits = BatchLimits(
        message_bytes_max=settings.max_message_bytes,
        timestamp_before_max_ms=settings.timestamp_before_max_ms,
        timestamp_after_max_ms=settings.timestamp_after_max_ms,
        log_append_time=settings.log_append_time,
        compacts=settings.compacts,
    )
    if len(_LIMITS) >= _LIMITS_MAX:
        _LIMITS.clear()
    _LIMITS[topic.topic_key] = (topic, cluster_configs, limits)
    return limits
