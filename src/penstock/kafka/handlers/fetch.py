"""Fetch, versions 4 to 18: sessions (KIP-227), topic ids (KIP-516), waiting by notification.

Raw: records go out as views of the caches. The whole of a fetch runs on the event loop without a
task: it answers at once, or parks until a commit, a load or its deadline wakes it.
"""

import asyncio
from typing import Final

from penstock.kafka.context import Reply, ReplyFuture, RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.fetch_codec import (
    TOPIC_IDS_FROM,
    FetchPartition,
    PartitionData,
    encode_fetch,
    parse_fetch,
)
from penstock.kafka.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    FetchSessions,
)
from penstock.log.fetch.reader import Missing
from penstock.model.errors import NotFoundError, RetryableError
from penstock.model.ids import PartitionKey, partition_key

API_KEY: Final = 1
VERSIONS: Final = (4, 18)
RAW: Final = True

LEADER_EPOCH: Final = 0
READ_COMMITTED: Final = 1
_RESPONSE_BYTES_MAX: Final = 55 << 20
"""Kafka's `fetch.max.bytes` of a broker: however much a client asks for."""
_LOADS_MAX: Final = 1000
"""How often one fetch may wait for loads before it answers with what it has."""


def serve(context: RequestContext, body: memoryview) -> Reply | ReplyFuture:
    """Answer at once when there is enough; else a future."""
    return _Fetch(context, body).start()


class _Fetch:
    """One request under way."""

    __slots__ = (
        "_bytes_max",
        "_connection",
        "_context",
        "_deadline",
        "_keys",
        "_loads",
        "_log",
        "_loop",
        "_request",
        "_session",
        "_timer",
        "_version",
        "_view",
        "_waited",
        "_wanted",
        "reply",
    )

    def __init__(self, context: RequestContext, body: memoryview) -> None:
        self._context = context
        self._version = context.api_version
        self._view = context.broker.view
        self._log = context.broker.log
        self._connection = context.connection
        self._request = parse_fetch(body, context.api_version)
        self._session: FetchSession | None = None
        self._wanted: list[FetchPartition] = []
        self._keys: list[PartitionKey] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._loads = 0
        self._waited = False
        self._bytes_max = 0
        self.reply: ReplyFuture | None = None

    def start(self) -> Reply | ReplyFuture:
        request = self._request
        sessions = _sessions(self._context)
        uses_ids = self._version >= TOPIC_IDS_FROM
        if request.session_epoch == FINAL_EPOCH:
            sessions.end(request.session_id)
            self._wanted = request.partitions
        elif request.session_epoch == INITIAL_EPOCH:
            self._session = sessions.begin(
                request, self._new_session_id(sessions), uses_ids=uses_ids
            )
            self._wanted = self._session.wanted()
        else:
            found = sessions.resume(request, uses_ids=uses_ids)
            if isinstance(found, int):
                return encode_fetch([], self._version, error_code=found)
            self._session = found
            self._wanted = found.wanted()
        self._bytes_max = min(request.bytes_max, _RESPONSE_BYTES_MAX)
        answers, length, missing, failed = self._collect()
        wait_ms = request.wait_ms_max
        if self._is_enough(length, failed=failed) or (wait_ms <= 0 and missing is None):
            return self._encode(answers)
        self.reply = self._loop.create_future()
        self.reply.add_done_callback(self._stop_waiting)
        self._deadline = self._loop.time() + max(wait_ms, 0) / 1000
        self._park(answers, length, missing)
        return self.reply

    # -- collecting ------------------------------------------------------------------------------

    def _collect(self) -> tuple[list[PartitionData], int, asyncio.Task[None] | None, bool]:
        """Read what is in memory of each partition, in turn, within the byte limits.

        Returns:
            The answers, the bytes of records in them, a load under way that would give the
            first one more, and whether a partition has an error to tell.
        """
        # The connection's and server's budgets count: readers that do not read cost no more. With
        # a budget used up not even one batch is given; the client asks again.
        budget = self._connection.reply_room_bytes
        room = min(self._bytes_max, budget)
        answers: list[PartitionData] = []
        length = 0
        missing: asyncio.Task[None] | None = None
        failed = False
        for wanted in self._wanted:
            data, found = self._read(wanted, room - length, first=length == 0 and budget > 0)
            answers.append(data)
            length += data.length
            failed = failed or data.error_code != 0
            if found is not None and missing is None:
                missing = found.load
        return answers, length, missing, failed

    def _read(
        self, wanted: FetchPartition, room: int, *, first: bool
    ) -> tuple[PartitionData, Missing | None]:
        data = PartitionData(wanted.topic, wanted.partition, 0)
        if isinstance(wanted.topic, bytes):
            topic = self._view.topic_by_id(wanted.topic)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic = self._view.topic(wanted.topic)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None:
            data.error_code = unknown
            return data, None
        if not 0 <= wanted.partition < topic.partitions:
            data.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return data, None
        key = partition_key(topic.topic_key, wanted.partition)
        head = self._view.head(key)
        if head is None:
            data.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return data, None
        end = head.next_offset
        # Errors carry the real offsets too: -1 makes some clients loop.
        data.high_watermark = data.last_stable_offset = end
        data.log_start_offset = head.log_start
        if wanted.leader_epoch > LEADER_EPOCH:
            data.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
            return data, None
        offset = wanted.fetch_offset
        if not head.log_start <= offset <= end:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return data, None
        if offset == end or (room <= 0 and not first):
            return data, None
        # KIP-74: the response's first batch is given whole, whatever the limits.
        limit = min(wanted.bytes_max, room)
        found = self._log.read(key, offset, max(limit, 0))
        if isinstance(found, Missing):
            return data, found
        if found is not None and (first or found.length <= limit):
            data.views = found.views
            data.length = found.length
        return data, None

    def _is_enough(self, length: int, *, failed: bool) -> bool:
        return failed or length >= self._request.bytes_min or not self._wanted

    # -- waiting ---------------------------------------------------------------------------------

    def _park(
        self, answers: list[PartitionData], length: int, missing: asyncio.Task[None] | None
    ) -> None:
        if missing is not None and length == 0 and self._loads < _LOADS_MAX:
            # There are records, only not in memory: not the client's max_wait counts but the disk.
            self._loads += 1
            missing.add_done_callback(self._loaded)
            return
        left_s = self._deadline - self._loop.time()
        if left_s <= 0:
            self._answer(answers)
            return
        if not self._waited:
            self._waited = True
            self._keys = self._partition_keys()
            self._log.waiters.add(self._keys, self._wake)
            self._timer = self._loop.call_later(left_s, self._expire)

    def _partition_keys(self) -> list[PartitionKey]:
        keys = []
        for wanted in self._wanted:
            topic = (
                self._view.topic_by_id(wanted.topic)
                if isinstance(wanted.topic, bytes)
                else self._view.topic(wanted.topic)
            )
            if topic is not None:
                keys.append(partition_key(topic.topic_key, wanted.partition))
        return keys

    def _wake(self) -> None:
        if self.reply is None or self.reply.done():
            return
        answers, length, missing, failed = self._collect()
        if self._is_enough(length, failed=failed):
            self._answer(answers)
        elif missing is not None and length == 0:
            self._park(answers, length, missing)

    def _expire(self) -> None:
        if self.reply is not None and not self.reply.done():
            answers, length, missing, _ = self._collect()
            if missing is not None and length == 0:
                self._park(answers, length, missing)
            else:
                self._answer(answers)

    def _loaded(self, load: asyncio.Task[None]) -> None:
        if self.reply is None or self.reply.done():
            return
        error = None if load.cancelled() else load.exception()
        if load.cancelled():
            error = RetryableError("read", "segment", "the server is shutting down")
        if isinstance(error, (NotFoundError, RetryableError)):
            # Moved between the look-up and the read: look it up again. `_loads` bounds this.
            for key in self._partition_keys():
                self._log.reader.forget_places(key)
            if self._loads < _LOADS_MAX and not load.cancelled():
                error = None
        answers, length, missing, failed = self._collect()
        if error is not None and length == 0:
            self._answer(self._with_error(answers, error))
        elif self._is_enough(length, failed=failed):
            self._answer(answers)
        else:
            self._park(answers, length, missing)

    def _with_error(
        self, answers: list[PartitionData], error: BaseException
    ) -> list[PartitionData]:
        """A damaged or unreachable object fails the partitions that have nothing else to give,
        never the whole request."""
        offsets = {(wanted.topic, wanted.partition): wanted.fetch_offset for wanted in self._wanted}
        for data in answers:
            offset = offsets[data.topic, data.partition]
            if not data.error_code and not data.length and offset < data.high_watermark:
                data.error_code = error_code(error)
        return answers

    def _answer(self, answers: list[PartitionData]) -> None:
        assert self.reply is not None
        self.reply.set_result(self._encode(answers))

    def _stop_waiting(self, _: ReplyFuture) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._waited:
            self._log.waiters.remove(self._keys, self._wake)

    # -- answering -------------------------------------------------------------------------------

    def _encode(self, answers: list[PartitionData]) -> Reply:
        session = self._session
        session_id = 0
        if session is not None:
            session_id = session.session_id
            if self._request.session_epoch != INITIAL_EPOCH:
                answers = session.news(answers)
            session.sent(answers)
        return encode_fetch(
            answers,
            self._version,
            session_id=session_id,
            read_committed=self._request.isolation_level == READ_COMMITTED,
        )

    def _new_session_id(self, sessions: FetchSessions) -> int:
        while True:
            session_id = 1 + self._context.broker.random.below(2**31 - 1)
            if session_id not in sessions:
                return session_id


def _sessions(context: RequestContext) -> FetchSessions:
    return context.broker.fetch_sessions
