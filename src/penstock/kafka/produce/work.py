"""All Produce requests check their batches, hand them to the log, and answer in the same way.

They wait in different ways: by callbacks (`kafka.handlers.produce`), or, for a request of many
partitions, as a coroutine that takes turns of the loop (`kafka.produce.long_produce`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.access import Access, refusal_text
from penstock.kafka.answer_bounds import explanation_bytes
from penstock.kafka.batch_limits import batch_limits
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.transactions import produce_bits, produce_error
from penstock.kafka.wire.produce_codec import (
    ITEM_COST,
    STEP_ITEMS,
    TEXTS_BYTES_MAX,
    TOPIC_IDS_FROM,
    PartitionAnswer,
    PartitionData,
    TopicData,
)
from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import partition_key
from penstock.records.batch import (
    ZSTD,
    BatchError,
    BatchFault,
    BatchLimits,
    RecordError,
    check_batch,
    codec_of,
)
from penstock.records.check import RecordCheck
from penstock.security.acl import Operation
from penstock.state.answers import BatchStatus, Refusal
from penstock.state.commands import TRANSACTIONAL
from penstock.state.read.view import Topic
from penstock.system import background

ZSTD_FROM: Final = 7
"""KIP-110: the version of those who know zstd."""
_NO_RECORDS: Final = memoryview(b"")

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


class ProduceWork(ABC):
    """One request under way. Calls to the log are split where the WAL's frames would be too big.

    First its batches are checked, then it is handed to the log, then it is answered.
    """

    __slots__ = (
        "_access",
        "_acks",
        "_appends",
        "_broker",
        "_checking",
        "_confirmation",
        "_context",
        "_pending",
        "_source",
        "_texts_left",
        "_timeout_ms",
        "_topics",
        "_transactional_id",
        "_unchecked",
        "_unknown",
        "_version",
        "_was_checked_late",
    )

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._broker = context.broker
        self._access = None if context.broker.authority is None else context.access
        """Says what the client may do; None: everything."""
        self._source = context.connection.id
        self._version = context.api_version
        self._acks = self._timeout_ms = 0
        self._transactional_id: str | None = None
        self._texts_left = TEXTS_BYTES_MAX
        self._topics: list[tuple[TopicData, list[PartitionAnswer]]] = []
        self._appends: list[tuple[PartitionAppend, PartitionAnswer]] = []
        self._pending = 1  # until it is handed over
        self._checking = 0
        self._was_checked_late = False
        self._unchecked: list[RecordCheck] = []
        """Checks that were queued and are not done."""
        self._unknown: list[tuple[TopicData, PartitionAnswer]] = []
        self._confirmation: asyncio.Task[None] | None = None

    def _doubt(self) -> None:
        """Let what is not there be confirmed, where it may be there by now."""
        if self._unknown and self._broker.heads is not None and self._acks != 0:
            # What is known goes on at once: requests of a connection are appended as they came.
            self._pending += 1
            self._confirmation = background.start(background.CONFIRM_ANSWER, self._confirm)

    def _let_go(self) -> None:
        self._broker.record_checks.forget(self._unchecked)
        self._unchecked, self._appends, self._topics = [], [], []

    @abstractmethod
    def append_if_checked(self) -> bool:
        """See `Unhanded`."""

    @abstractmethod
    def _finish(self) -> None:
        """Answer: every partition has its outcome."""

    def _one_is_over(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._finish()

    def _append(self) -> None:
        """Hand to the log what is right."""
        if self._was_checked_late:
            self._appends = [pair for pair in self._appends if not pair[1].error_code]
        if not self._appends:
            return
        if self._broker.nodes.is_leaving():
            self._hand_over_to_others()
            return
        groups = self._split()
        self._pending += len(groups)
        timeout_ms = self._timeout_ms
        for group in groups:
            appends = [append for append, _ in group]
            self._broker.log.append(
                appends,
                timeout_ms=timeout_ms,
                done=partial(self._done, group),
                source=self._source,
            )

    def _hand_over_to_others(self) -> None:
        """Refuse what is right. The log takes note: this agent may be drained no more before the
        producer's next batch is here, and that one must not be stored in place of these."""
        self._broker.instruments.count("handed_over_batches", len(self._appends))
        self._broker.log.refuse([append for append, _ in self._appends], source=self._source)
        for _, answer in self._appends:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._explain(answer, "this agent is being drained: others lead the partition")

    async def _confirm(self) -> None:
        """Say that a partition does not exist only when that is so at present.

        One that does is not appended to: a later request may have overtaken this one. The
        client sends it again.
        """
        known = await fresh.confirm(self._context)
        for start in range(0, len(self._unknown), STEP_ITEMS):
            for data, answer in self._unknown[start : start + STEP_ITEMS]:
                if not known or self._exists(data, answer.partition):
                    answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if start and self._broker.turns.spend(STEP_ITEMS // ITEM_COST):
                await self._broker.turns.wait()
        self._one_is_over()

    def _topic(self, data: TopicData) -> Topic | None:
        view = self._broker.view
        if self._version >= TOPIC_IDS_FROM:
            return view.topic_by_id(data.topic_id)
        return view.topic(data.name)

    def _exists(self, data: TopicData, partition: int) -> bool:
        topic = self._topic(data)
        return topic is not None and 0 <= partition < topic.partitions

    def _check_topic(
        self, data: TopicData, partitions: Sequence[PartitionData]
    ) -> list[PartitionAnswer]:
        topic = self._topic(data)
        if self._access is not None:
            refused = self._refusal(self._access, data, topic)
            if refused:
                return [self._refused(part.partition, refused) for part in partitions]
        if topic is None:
            by_id = self._version >= TOPIC_IDS_FROM
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answers = [PartitionAnswer(part.partition, unknown) for part in partitions]
            self._unknown += ((data, answer) for answer in answers)
            return answers
        if self._acks not in (-1, 0, 1):
            return [
                PartitionAnswer(part.partition, ErrorCode.INVALID_REQUIRED_ACKS)
                for part in partitions
            ]
        limits = batch_limits(topic, self._broker.view.cluster_configs, self._broker.settings)
        now_ms = self._broker.clock.now_ms()
        return [self._check(data, topic, limits, part, now_ms) for part in partitions]

    def _refusal(self, access: Access, data: TopicData, topic: Topic | None) -> ErrorCode:
        """The error of a client that may not write to a topic, or not by its transactional id."""
        if self._transactional_id is not None:
            refused = access.transaction(Operation.WRITE, self._transactional_id)
            if refused:
                return refused
        if topic is None and self._version >= TOPIC_IDS_FROM:
            return ErrorCode.NONE  # no topic has the id
        return access.topic(Operation.WRITE, data.name if topic is None else topic.name)

    def _refused(self, partition: int, error: ErrorCode) -> PartitionAnswer:
        answer = PartitionAnswer(partition, error)
        self._explain(answer, refusal_text(error))
        return answer

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
        epoch_bits = 0
        try:
            batch = check_batch(part.records or _NO_RECORDS, limits, now_ms)
            if batch.is_transactional:
                epoch_bits = produce_bits(self._context, self._transactional_id)
            checks = self._broker.record_checks
            check = checks.check_of(batch, limits, now_ms) if limits.validates else None
        except BatchError as error:
            self._refuse(answer, error)
            return answer
        if epoch_bits < 0:
            answer.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            self._explain(answer, "a request with batches of a transaction has no transactional id")
            return answer
        if self._version < ZSTD_FROM and codec_of(batch.view) == ZSTD:
            answer.error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            self._explain(answer, f"zstd is allowed in Produce from version {ZSTD_FROM} on")
            return answer
        if batch.length > self._broker.log.append_bytes_max:
            answer.error_code = ErrorCode.MESSAGE_TOO_LARGE
            self._explain(
                answer,
                f"batch of {batch.length} bytes; a WAL frame holds "
                f"{self._broker.log.append_bytes_max}",
            )
            return answer
        try:
            is_checked = check is None or checks.try_now(check)
        except BatchError as error:
            self._refuse(answer, error)
            return answer
        key = partition_key(topic.topic_key, part.partition)
        self._appends.append((PartitionAppend(key, batch, epoch_bits=epoch_bits), answer))
        if check is not None and not is_checked:
            self._checking += 1
            self._was_checked_late = True
            self._unchecked.append(check)
            checks.queue(check, partial(self._checked, answer))
        return answer

    def _refuse(self, answer: PartitionAnswer, error: BatchError) -> None:
        self._broker.instruments.count("refused_batches")
        answer.error_code = _CODES[error.fault]
        self._explain(answer, error.detail, error.record_errors)

    def _explain(
        self, answer: PartitionAnswer, message: str, record_errors: tuple[RecordError, ...] = ()
    ) -> None:
        """Give an answer its texts, as far as there is room: a request of 200,000 partitions that
        are refused for one reason does not get 200,000 texts."""
        taken = explanation_bytes(message, record_errors)
        if taken <= self._texts_left:
            self._texts_left -= taken
            answer.message = message
            answer.record_errors = record_errors

    def _checked(self, answer: PartitionAnswer, error: BaseException | None) -> None:
        """A batch's records were checked in the thread."""
        if isinstance(error, BatchError):
            self._refuse(answer, error)
        elif error is not None:  # a bug of ours, which the check has logged
            answer.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            self._explain(answer, "the records could not be checked")
        self._checking -= 1
        if not self._checking:
            self._go_on()

    def _go_on(self) -> None:
        """Append this request's batches, and those behind it, as far as they are checked."""
        produces = self._context.connection.produces
        log = self._broker.log
        # What comes free together shares a turn of the log.
        log.hold()
        try:
            while produces and produces[0].append_if_checked():
                produces.popleft()
        finally:
            log.settle()

    def _split(self) -> list[list[tuple[PartitionAppend, PartitionAnswer]]]:
        bytes_max = self._broker.log.append_bytes_max
        if sum(append.batch.length for append, _ in self._appends) <= bytes_max:
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
            failure = error or append.error
            if failure is not None:
                answer.error_code = error_code(failure)
                self._explain(answer, str(failure))
            else:
                self._take(append, answer)
        self._one_is_over()

    def _take(self, append: PartitionAppend, answer: PartitionAnswer) -> None:
        if append.status is BatchStatus.REFUSED:
            refusal = Refusal(append.base_offset)
            answer.error_code = produce_error(refusal, self._version)
            self._explain(answer, _refusal_text(refusal, append))
        else:
            answer.base_offset = append.base_offset
            answer.log_append_time = append.batch.log_append_time
            if append.epoch_bits == TRANSACTIONAL and append.status is BatchStatus.STORED:
                # Protocol V1 sends it only after it has heard that its transaction began, so what
                # comes by this connection after it is of this transaction or a later one.
                self._context.connection.saw(self._broker.position())
        head = self._broker.view.head(append.partition_key)
        if head is not None:
            answer.log_start_offset = head.log_start

    def _end_if_failed(self) -> None:
        """End the connection of a request with acks=0 that failed: nothing answers it. As in Kafka
        this has the producer ask for the metadata: else one that goes by a topic's id sends to
        what was deleted for minutes."""
        failure = self._first_failure()
        if failure is not None:
            self._context.connection.end(failure)

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


def _refusal_text(refusal: Refusal, append: PartitionAppend) -> str:
    batch = append.batch
    return (
        f"{refusal.name}: producer {batch.producer_id} epoch {batch.producer_epoch} "
        f"sequence {batch.base_sequence}, {batch.record_count} records"
    )
