"""Produce, versions 3 to 13 (KIP-896 floor; 13 by topic id, KIP-516).

Raw: the records stay where the socket put them. Batches are checked here, at the border, then
handed to the log; the answer is made when the commit's answer is known. Requests of one
connection may overlap here; the connection answers them in order. One that names more than
STEP_ITEMS topics and partitions is read, checked, appended and answered in turns of the loop.

Order: a request takes its place in its connection's queue when it arrives, and is handed to the
log once its batches are checked and nothing of that connection is ahead. So a batch whose records
are checked in a thread is not overtaken by a later one of its producer.

An agent that is being drained refuses with NOT_LEADER_OR_FOLLOWER once others lead all partitions:
producers ask for metadata then, where they would otherwise stay for minutes.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import explanation_bytes, produce_bound
from penstock.kafka.batch_limits import batch_limits
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code, refusal_code
from penstock.kafka.replies import SMALL_ANSWER_BYTES, LateReply, Reply, ReplyFuture
from penstock.kafka.wire.produce_codec import (
    ANSWER_BYTES,
    ITEM_COST,
    LONG_ANSWER_BYTES,
    STEP_ITEMS,
    TEXTS_BYTES_MAX,
    TOPIC_IDS_FROM,
    PartitionAnswer,
    PartitionData,
    ProduceRequest,
    TopicData,
    acks_of,
    answer_steps,
    encode_produce,
    produce_steps,
)
from penstock.kafka.wire.produce_repeat import KnownProduce, known_produce
from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import partition_key
from penstock.model.steps import at_once, if_short
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
from penstock.state.answers import BatchStatus, Refusal
from penstock.state.read.view import Topic
from penstock.system import background

API_KEY: Final = 0
VERSIONS: Final = (3, 13)
RAW: Final = True
CHECKED_AT_ONCE: Final = 100
"""Partitions of a long request that are checked, or handed to the log, at a time; 5 us each."""
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


def serve(context: RequestContext, body: memoryview) -> ReplyFuture:
    """Check the request's batches and hand them to the log; the future is the answer."""
    broker = context.broker
    started_s = broker.clock.monotonic_s()
    request = _parse(context.connection, body, context.api_version)
    broker.instruments.observe("parse:Produce", broker.clock.monotonic_s() - started_s)
    if request is None:
        return _LongProduce(context, acks_of(body, context.api_version)).begin(body)
    operation = _Produce(context)
    operation.start(request)
    return operation.reply


class _Produce:
    """One request under way. Calls to the log are split where the WAL's frames would be too big.

    First its batches are checked, then it is handed to the log, then it is answered.
    """

    __slots__ = (
        "_acks",
        "_appends",
        "_broker",
        "_checking",
        "_confirmation",
        "_context",
        "_items",
        "_pending",
        "_source",
        "_texts_left",
        "_timeout_ms",
        "_topics",
        "_unchecked",
        "_unknown",
        "_version",
        "_was_checked_late",
        "reply",
    )

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._broker = context.broker
        self._source = context.connection.id
        self._version = context.api_version
        self._acks = self._timeout_ms = 0
        self._texts_left = TEXTS_BYTES_MAX
        self._topics: list[tuple[TopicData, list[PartitionAnswer]]] = []
        self._appends: list[tuple[PartitionAppend, PartitionAnswer]] = []
        self._pending = 1  # until it is handed over
        self._checking = 0
        self._items = 0
        self._was_checked_late = False
        self._unchecked: list[RecordCheck] = []
        """Those that were queued."""
        self._unknown: list[tuple[TopicData, PartitionAnswer]] = []
        self._confirmation: asyncio.Task[None] | None = None
        self.reply = LateReply(loop=asyncio.get_running_loop())

    def start(self, request: ProduceRequest) -> None:
        self._acks, self._timeout_ms = request.acks, request.timeout_ms
        items = 0
        for topic in request.topics:
            items += 1 + len(topic.partitions)
            self._topics.append((topic, self._check_topic(topic, topic.partitions)))
        self._items = items
        self._context.connection.items += items
        self._doubt()
        produces = self._context.connection.produces
        if self._checking or produces:
            produces.append(self)
        else:
            self._append_all()

    def _doubt(self) -> None:
        """Let what is not there be confirmed, where it may be there by now."""
        if self._unknown and self._broker.heads is not None and self._acks != 0:
            # What is known goes on at once: requests of a connection are appended as they came.
            self._pending += 1
            self._confirmation = background.start(background.CONFIRM_ANSWER, self._confirm)

    def append_if_checked(self) -> bool:
        """Whether all batches are checked; if so, they are handed to the log."""
        if not self._checking:
            self._append_all()
        return not self._checking

    def forget(self) -> bool:
        """See `Unhanded`. One with acks=0 goes on: a producer may close once it has sent it."""
        if self._acks == 0:
            return False
        self._let_go()
        self.reply.give(None)
        return True

    def _let_go(self) -> None:
        self._broker.record_checks.forget(self._unchecked)
        self._unchecked, self._appends, self._topics = [], [], []

    def _append_all(self) -> None:
        self._append()
        self._one_is_over()

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

    def _check_topic(
        self, data: TopicData, partitions: Sequence[PartitionData]
    ) -> list[PartitionAnswer]:
        topic = self._topic(data)
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
            checks = self._broker.record_checks
            check = checks.check_of(batch, limits, now_ms) if limits.validates else None
        except BatchError as error:
            self._refuse(answer, error)
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
        self._appends.append((PartitionAppend(key, batch), answer))
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
        """Give an answer its texts, as far as they go: a request of 200,000 partitions that are
        refused for the same reason is not told so 200,000 times."""
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
        self._pending -= 1
        if not self._pending:
            self._finish()

    def _take(self, append: PartitionAppend, answer: PartitionAnswer) -> None:
        if append.status is BatchStatus.REFUSED:
            refusal = Refusal(append.base_offset)
            answer.error_code = refusal_code(refusal)
            self._explain(answer, _refusal_text(refusal, append))
        else:
            answer.base_offset = append.base_offset
            answer.log_append_time = append.batch.log_append_time
        head = self._broker.view.head(append.partition_key)
        if head is not None:
            answer.log_start_offset = head.log_start

    def _finish(self) -> None:
        self._context.connection.items -= self._items
        if self.reply.done():  # the connection is gone; what was stored stays stored
            return
        if self._acks != 0:
            self.reply.give([encode_produce(self._topics, self._version)])
            return
        self._end_if_failed()
        self.reply.give(None)

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


class _LongProduce(_Produce):
    """One of many partitions, which gives way to others between some of them and the next.

    It has its place among its connection's requests from the start, and keeps it until the last of
    its batches is handed to the log. It begins once those before it are handed over, so that one of
    a connection waits for room. One of all connections at a time is read and checked: what is read
    of a request takes many times the request's bytes.
    """

    __slots__ = (
        "_answered",
        "_handing_over",
        "_is_first",
        "_is_handed_over",
        "_may_append",
        "_task",
    )

    def __init__(self, context: RequestContext, acks: int) -> None:
        super().__init__(context)
        self._acks = acks
        self._handing_over = False
        self._is_handed_over = False
        self._is_first = asyncio.Event()
        self._may_append = asyncio.Event()
        self._answered = asyncio.Event()

    def begin(self, body: memoryview) -> ReplyFuture:
        self._checking = 1
        produces = self._context.connection.produces
        produces.append(self)
        if produces[0] is self:
            self._is_first.set()
        task = asyncio.get_running_loop().create_task(self._serve(body), name="long produce")
        self._task = task
        self._context.connection.items += STEP_ITEMS
        task.add_done_callback(self._ended)
        return task

    def _ended(self, _: "asyncio.Task[Reply]") -> None:
        self._context.connection.items -= STEP_ITEMS

    def append_if_checked(self) -> bool:
        """See `_Produce`; true once all is handed over."""
        self._is_first.set()
        if not self._checking:
            self._may_append.set()
        return self._is_handed_over

    def forget(self) -> bool:
        """See `_Produce`. What the log has a part of is handed to it whole."""
        if self._acks == 0 or self._handing_over:
            return False
        self._let_go()
        # Kept by this, it would make a cycle with the error that ends it.
        self._task.cancel()
        del self._task
        return True

    async def _serve(self, body: memoryview) -> Reply:
        try:
            await self._is_first.wait()
            waiting = await self._work(body, reserves=True)
            if waiting is not None:
                # Many may wait, and hold their frames alone.
                await waiting
                await self._work(body, reserves=False)
        finally:
            # Also of one that is malformed, so that those that came later go on.
            self._checking = 0
            self._is_handed_over = True
            self._go_on()
        return await self._answer()

    async def _work(self, body: memoryview, *, reserves: bool) -> asyncio.Future[None] | None:
        """Read, check and hand over; or what to wait for before it is read once more."""
        turns = self._broker.turns
        async with self._broker.long_produces:
            request = await turns.run(produce_steps(body, self._version))
            if reserves and request.acks != 0:
                bound = await turns.run(produce_bound(request, LONG_ANSWER_BYTES))
                waiting = self._context.reserve_answer(bound)
                if waiting is not None:
                    return waiting
            await self._check_in_turns(request)
            await self._may_append.wait()
            self._handing_over = True
            await self._hand_over(self._appends)
        return None

    async def _check_in_turns(self, request: ProduceRequest) -> None:
        turns = self._broker.turns
        self._acks, self._timeout_ms = request.acks, request.timeout_ms
        for topic in request.topics:
            answers: list[PartitionAnswer] = []
            self._topics.append((topic, answers))
            # Topics without partitions count, too.
            for start in range(0, len(topic.partitions) or 1, CHECKED_AT_ONCE):
                some = topic.partitions[start : start + CHECKED_AT_ONCE]
                answers += self._check_topic(topic, some)
                byte_count = sum(len(part.records or _NO_RECORDS) for part in some)
                if turns.spend(len(some) or 1, byte_count):
                    await turns.wait()
        self._doubt()
        self._checking -= 1
        if not self._checking:
            self._go_on()

    async def _hand_over(self, appends: Sequence[tuple[PartitionAppend, PartitionAnswer]]) -> None:
        turns = self._broker.turns
        for start in range(0, len(appends), CHECKED_AT_ONCE):
            self._appends = list(appends[start : start + CHECKED_AT_ONCE])
            self._append()
            if turns.spend(len(self._appends)):
                await turns.wait()
        self._pending -= 1
        if not self._pending:
            self._finish()

    def _finish(self) -> None:
        self._answered.set()

    async def _answer(self) -> Reply:
        await self._answered.wait()
        if self._acks != 0:
            return [await self._broker.turns.run(answer_steps(self._topics, self._version))]
        self._end_if_failed()
        return None


def _parse(connection: ConnectionState, body: memoryview, version: int) -> ProduceRequest | None:
    """The request; where it begins as the connection's last one, only what differs is parsed. None:
    it is a long one, or may have a long answer."""
    known = connection.last_produce
    request = known.parse(body, version) if isinstance(known, KnownProduce) else None
    if request is None:
        # Of a long one what was read is let go: many may wait, and it takes thirteen times the
        # bytes.
        request = if_short(produce_steps(body, version))
        if request is None or at_once(produce_bound(request, ANSWER_BYTES)) > SMALL_ANSWER_BYTES:
            return None
        connection.last_produce = known_produce(body, version, request)
    return request


def _refusal_text(refusal: Refusal, append: PartitionAppend) -> str:
    batch = append.batch
    return (
        f"{refusal.name}: producer {batch.producer_id} epoch {batch.producer_epoch} "
        f"sequence {batch.base_sequence}, {batch.record_count} records"
    )
