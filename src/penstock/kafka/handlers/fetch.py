"""Fetch, versions 4 to 18: sessions (KIP-227), topic ids (KIP-516), waiting by notification.

Raw: records go out as views of the caches. The whole of a fetch runs on the event loop without a
task: it answers at once, or parks until a commit, a load or its deadline wakes it. In a cluster
that a topic isn't there, or an offset out of range, is said of the present alone (`kafka.fresh`);
and a client of another zone is told of an agent in its own (KIP-392).
"""

import asyncio
from collections.abc import Hashable
from typing import Final, cast

from penstock.kafka import fresh
from penstock.kafka.alarm import Alarm
from penstock.kafka.context import JOIN_BYTES_MAX, LateReply, Reply, ReplyFuture, RequestContext
from penstock.kafka.damaged_batch import damaged_batch, wants_damaged_batch
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.fetch_codec import (
    TOPIC_IDS_FROM,
    FetchPartition,
    FetchRequest,
    encode_fetch,
    parse_fetch,
)
from penstock.kafka.fetch_repeat import Repetition
from penstock.kafka.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    FetchSessions,
)
from penstock.kafka.fetch_targets import LastFetch, Target, find_targets
from penstock.log.fetch.reader import Missing
from penstock.log.fetch.regions import PartsRead
from penstock.log.fetch.waiters import Waiter
from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.placement.zones import zone_of

API_KEY: Final = 1
VERSIONS: Final = (4, 18)
RAW: Final = True

READ_COMMITTED: Final = 1
_RESPONSE_BYTES_MAX: Final = 55 << 20
"""Kafka's `fetch.max.bytes` of a broker: however much a client asks for."""
_UNREADABLE: Final = ErrorCode.KAFKA_STORAGE_ERROR
"""Of a fetch, Java's consumer retries this and few others; REQUEST_TIMED_OUT ends it with an
IllegalStateException (FetchCollector.handleInitializeErrors)."""
_DAMAGED: Final = ErrorCode.CORRUPT_MESSAGE
"""Java's consumer raises a KafkaException at poll, librdkafka and kafka-python an error of that
name; what each client does with other codes is in docs/kafka-apis.md."""
PREFERRED_REPLICA_FROM: Final = 11
_LOADS_MAX: Final = 1000
"""How often one fetch may wait for loads before it answers with what it has."""


def serve(context: RequestContext, body: memoryview) -> Reply | ReplyFuture:
    """Answer at once when there is enough; else a future."""
    broker = context.broker
    started_s = broker.clock.monotonic_s()
    fetch = _Fetch(context, body)
    broker.instruments.observe("parse:Fetch", broker.clock.monotonic_s() - started_s)
    return fetch.start()


_SHARED_TARGETS_MAX: Final = 16
"""Fetches of more partitions share no answers: who waits for many seldom waits for the same."""

_REMEMBERED_MAX: Final = 1000
"""Partitions of a request that is remembered: what a connection may cost in memory is bounded."""


class _Fetch:
    """One request under way."""

    # What most requests leave as it is costs nothing to set.
    _generation = -1
    _targets: list[Target] = []  # noqa: RUF012 - replaced, never changed
    _session: FetchSession | None = None
    _waiter: Waiter | None = None
    _deadline_s = 0.0
    _loads = 0
    _bytes_max = 0
    _confirming: asyncio.Task[None] | None = None
    _last: LastFetch | None = None
    """What the connection remembers, if this request is it."""
    reply: LateReply | None = None
    """Set while an answer is waited for."""

    def __init__(self, context: RequestContext, body: memoryview) -> None:
        broker = context.broker
        self._context = context
        self._version = context.api_version
        self._view = broker.view
        self._log = broker.log
        self._connection = context.connection
        self._certainty = fresh.first(context)
        self._touched: list[Target] = []
        """Whose data holds something found for this request."""
        self._wanted: list[FetchPartition]
        self._request = self._parse(body)

    def _parse(self, body: memoryview) -> FetchRequest:
        """The request; where the connection's last one asked the same, its places are known."""
        last = self._connection.last_fetch
        if isinstance(last, LastFetch) and last.version == self._version:
            repetition = last.known.repetition(body)
            if repetition is not None:
                self._repeat(last, repetition)
                return last.request
        request = parse_fetch(body, self._version)
        self._wanted = request.partitions
        # Sessions have a memory of their own.
        if request.session_epoch == FINAL_EPOCH and 0 < len(request.partitions) <= _REMEMBERED_MAX:
            self._last = LastFetch(self._version, bytes(body), request)
        self._forget_last(last)
        self._connection.last_fetch = self._last
        return request

    def _repeat(self, last: LastFetch, repetition: Repetition) -> None:
        first, offsets = repetition.first, repetition.offsets
        self._last = last
        wanted = last.request.partitions
        self._wanted = wanted[first:] + wanted[:first] if first else wanted
        if last.generation != self._view.generation:
            for partition, offset in zip(self._wanted, offsets, strict=True):
                partition.fetch_offset = offset
            return
        self._generation = last.generation
        targets = last.targets
        self._targets = targets = targets[first:] + targets[:first] if first else targets
        for target, offset in zip(targets, offsets, strict=True):
            target.offset = target.wanted.fetch_offset = offset

    def _forget_last(self, last: object) -> None:
        if isinstance(last, LastFetch) and last.waiter is not None:
            self._log.waiters.remove(last.waiter)

    def start(self) -> Reply | ReplyFuture:
        request = self._request
        sessions = _sessions(self._context)
        uses_ids = self._version >= TOPIC_IDS_FROM
        if request.session_epoch == FINAL_EPOCH:
            sessions.end(request.session_id)
        elif request.session_epoch == INITIAL_EPOCH:
            begun = sessions.begin(
                request,
                self._new_session_id(sessions),
                uses_ids=uses_ids,
                now_s=self._context.broker.clock.monotonic_s(),
            )
            # Without one the answer's session id is 0, and the client names all each time.
            if begun is not None:
                self._session = begun
                self._wanted = begun.wanted()
        else:
            found = sessions.resume(
                request, uses_ids=uses_ids, now_s=self._context.broker.clock.monotonic_s()
            )
            if isinstance(found, int):
                return encode_fetch([], self._version, error_code=found)
            self._session = found
            self._wanted = found.wanted()
        self._bytes_max = min(request.bytes_max, _RESPONSE_BYTES_MAX)
        if self._context.broker.cluster is not None and self._send_nearer():
            return self._encode()
        length, missing, failed = self._collect()
        must_confirm = self._must_confirm()
        if not must_confirm and (
            self._is_enough(length, failed=failed) or (request.wait_ms_max <= 0 and missing is None)
        ):
            return self._encode()
        loop = asyncio.get_running_loop()
        self.reply = reply = LateReply(loop=loop)
        # Of one that is cancelled; whoever is answered is out by then.
        reply.add_done_callback(self._stop_waiting)
        self._deadline_s = loop.time() + max(request.wait_ms_max, 0) / 1000
        if must_confirm:
            self._confirm()
        else:
            self._park(length, missing)
        return reply

    # -- in a cluster ---------------------------------------------------------------------------

    def _must_confirm(self) -> bool:
        """Whether what was collected denies what may be there."""
        return self._certainty.doubted and not self._certainty.away

    def _confirm(self) -> None:
        """Find out how it is at present, then answer or wait as of that."""
        if self._confirming is None:
            self._confirming = asyncio.get_running_loop().create_task(self._confirmed())

    async def _confirmed(self) -> None:
        self._certainty = await fresh.second(self._context)
        self._confirming = None
        if self.reply is None or self.reply.done():
            return
        self._generation = -1
        length, missing, failed = self._collect()
        if self._is_enough(length, failed=failed):
            self._answer()
        else:
            self._park(length, missing)

    def _send_nearer(self) -> bool:
        """Name an agent in the client's zone for each partition, if this one isn't in it."""
        context = self._context
        zone = zone_of(context.client_id, self._request.rack)
        nodes = context.broker.nodes
        if not zone or self._version < PREFERRED_REPLICA_FROM or not nodes.is_far(zone):
            return False
        leaders = nodes.leaders(zone)
        view = self._view
        targets = find_targets(self._wanted, self._view, self._certainty)
        for target in targets:
            data = target.data
            name = data.topic
            topic = view.topic_by_id(name) if isinstance(name, bytes) else view.topic(name)
            if target.head is None or topic is None:
                # The agent that it is sent to with the others will know.
                data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                data.preferred_read_replica = leaders.leader(topic.topic_id, data.partition)
        self._targets = targets
        self._connection.last_fetch = self._last = None
        return bool(targets)

    # -- collecting ------------------------------------------------------------------------------

    def _collect(self) -> tuple[int, asyncio.Task[None] | None, bool]:
        """Read what is in memory of each partition, in turn, within the byte limits.

        Returns:
            The bytes of records found, a load under way that would give the first one more, and
            whether a partition has an error to tell.
        """
        if self._touched:
            self._clean()
        if self._generation != self._view.generation:
            self._find_targets()
        length = 0
        missing: asyncio.Task[None] | None = None
        failed = False
        budget = room = loads_left = -1
        for target in self._targets:
            head = target.head
            if head is None:
                failed = True
                if not self._certainty.final:
                    # Also where it was looked up for an earlier request.
                    self._certainty.doubted = True
                continue
            offset, end = target.offset, head.next_offset
            if offset == end:  # of most partitions that somebody waits for
                continue
            if offset > end and not self._certainty.final:
                # Perhaps it is there and not known here yet: until then it's as the end.
                self._certainty.doubted = not self._certainty.away
                continue
            data = target.data
            self._touched.append(target)
            if not head.log_start <= offset < end:
                # Errors carry the real offsets too: -1 makes some clients loop.
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                data.length = 0
                failed = True
                continue
            if budget < 0:
                # The connection's and server's budgets count: readers that do not read cost no
                # more. With a budget used up not even one batch is given; the client asks again.
                budget = self._connection.reply_room_bytes
                room = min(self._bytes_max, budget)
                loads_left = self._log.loads_max
            try:
                found = self._read(
                    target,
                    room - length,
                    first=length == 0 and budget > 0,
                    may_load=loads_left > 0,
                )
            except PenstockError as error:
                # It is damaged, or can't be served here now (another agent's WAL is away, say).
                # Of this partition alone: the others give what they have.
                self._fail(target, error)
                failed = True
                continue
            if found is not None:
                loads_left -= 1
                if missing is None:
                    missing = found.load
            length += data.length
        return length, missing, failed

    def _find_targets(self) -> None:
        self._generation = self._view.generation
        self._targets = find_targets(self._wanted, self._view, self._certainty)
        last = self._last
        if last is not None:
            if last.waiter is not None:
                self._log.waiters.remove(last.waiter)
                last.waiter = None
            by_wanted = {id(target.wanted): target for target in self._targets}
            last.targets = [by_wanted[id(wanted)] for wanted in last.request.partitions]
            last.generation = self._generation

    def _read(self, target: Target, room: int, *, first: bool, may_load: bool) -> Missing | None:
        data = target.data
        if room <= 0 and not first:
            return None
        # KIP-74: the response's first batch is given whole, whatever the limits.
        limit = min(target.bytes_max, room)
        log = self._log
        read = log.read_parts if self._connection.takes_files else log.read
        found = read(target.key, target.offset, max(limit, 0), may_load=may_load)
        if isinstance(found, Missing):
            return found
        if found is not None and (first or found.length <= limit):
            data.views = found.parts if isinstance(found, PartsRead) else found.views
            data.length = found.length
        return None

    def _is_enough(self, length: int, *, failed: bool) -> bool:
        return failed or length >= self._request.bytes_min or not self._wanted

    # -- waiting ---------------------------------------------------------------------------------

    def _park(self, length: int, missing: asyncio.Task[None] | None) -> None:
        if missing is not None and length == 0 and self._loads < _LOADS_MAX:
            # There are records, only not in memory: not the client's max_wait counts but the disk.
            self._loads += 1
            missing.add_done_callback(self._loaded)
            return
        if self._deadline_s <= asyncio.get_running_loop().time():
            self._answer()
        elif self._waiter is None:
            self._wait()

    def _wait(self) -> None:
        last, connection = self._last, self._connection
        waiter = None if last is None else last.waiter
        if waiter is None:
            keys = [target.key for target in self._targets if target.head is not None]
            waiter = Waiter(keys, self._wake)
            if last is not None:
                last.waiter = waiter
        waiter.wake = self._wake
        self._waiter = waiter
        self._log.waiters.add(waiter)
        if connection.fetch_alarm is None:
            connection.fetch_alarm = Alarm(asyncio.get_running_loop())
        connection.fetch_alarm.set(self._deadline_s, self._expire)

    def _make_share_key(self) -> Hashable:
        """All on which the answer depends, beside what is stored and the budgets."""
        request = self._request
        return (
            self._version,
            self._generation,
            request.isolation_level,
            request.bytes_min,
            self._bytes_max,
            self._connection.takes_files,
            *((t.data.topic, t.key, t.offset, t.bytes_max, t.leader_epoch) for t in self._targets),
        )

    def _wake(self) -> None:
        if self.reply is None or self.reply.done():
            return
        share_key: Hashable = None
        if (
            self._log.waiters.are_many
            and self._generation == self._view.generation
            and self._session is None
            and len(self._targets) <= _SHARED_TARGETS_MAX
        ):
            share_key = self._make_share_key()
            known = self._log.waiters.shared.get(share_key)
            if known is not None and known[1] <= self._connection.reply_room_bytes:
                self._clean()
                self._give(known[0])
                return
        room = 0 if share_key is None else self._connection.reply_room_bytes
        length, missing, failed = self._collect()
        if self._must_confirm():
            self._confirm()
        elif self._is_enough(length, failed=failed):
            reply = self._encode()
            if share_key is not None and length and not failed and room >= self._bytes_max:
                self._log.waiters.shared[share_key] = (reply, length)
            self._give(reply)
        elif missing is not None and length == 0:
            self._park(length, missing)

    def _expire(self) -> None:
        if self.reply is not None and not self.reply.done():
            length, missing, _ = self._collect()
            if self._must_confirm():
                self._confirm()
            elif missing is not None and length == 0:
                self._park(length, missing)
            else:
                self._answer()

    def _loaded(self, load: asyncio.Task[None]) -> None:
        if self.reply is None or self.reply.done():
            return
        error = None if load.cancelled() else load.exception()
        if load.cancelled():
            error = RetryableError("read", "segment", "the server is shutting down")
        if isinstance(error, (NotFoundError, RetryableError)):
            # Moved between the look-up and the read: look it up again. `_loads` bounds this.
            for target in self._targets:
                self._log.reader.forget_places(target.key)
        if isinstance(error, PenstockError) and self._loads < _LOADS_MAX and not load.cancelled():
            # Damage is raised by the next read of that partition; the load may have been for
            # several, of which the others are looked at for themselves.
            error = None
        length, missing, failed = self._collect()
        if error is not None and length == 0:
            self._tell(error)
            self._answer()
        elif self._is_enough(length, failed=failed):
            self._answer()
        else:
            self._park(length, missing)

    def _tell(self, error: BaseException) -> None:
        """A damaged or unreachable object fails the partitions that have nothing else to give,
        never the whole request."""
        for target in self._targets:
            head, data = target.head, target.data
            if head is None or data.error_code or data.length:
                continue
            if target.offset < head.next_offset:
                self._touched.append(target)
                self._fail(target, error)

    def _fail(self, target: Target, error: BaseException) -> None:
        """Nothing of a partition can be served."""
        data = target.data
        self._log.read_failed(target.key, error)
        data.error_code = _read_error_code(error)
        if data.error_code is _DAMAGED and wants_damaged_batch(
            self._context.client_id, self._version
        ):
            batch = damaged_batch(target.offset)
            data.error_code, data.views, data.length = ErrorCode.NONE, (batch,), len(batch)

    def _answer(self) -> None:
        self._give(self._encode())

    def _give(self, reply: Reply) -> None:
        late, self.reply = self.reply, None
        assert late is not None
        self._stop_waiting(late)
        late.give(reply)

    def _stop_waiting(self, _: ReplyFuture) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            is_remembered = self._last is not None and self._last.waiter is waiter
            self._log.waiters.remove(waiter, again=is_remembered)
            self._connection.fetch_alarm.clear()

    # -- answering -------------------------------------------------------------------------------

    def _encode(self) -> Reply:
        session = self._session
        answers = []
        for target in self._targets:
            head, data = target.head, target.data
            if head is not None:
                data.high_watermark = data.last_stable_offset = head.next_offset
                data.log_start_offset = head.log_start
            answers.append(data)
        session_id = 0
        if session is not None:
            session_id = session.session_id
            if self._request.session_epoch != INITIAL_EPOCH:
                answers = session.news(answers)
            session.sent(answers)
        reply = encode_fetch(
            answers,
            self._version,
            session_id=session_id,
            read_committed=self._request.isolation_level == READ_COMMITTED,
        )
        if sum(map(len, reply)) <= JOIN_BYTES_MAX:  # type: ignore[arg-type]
            # Joined once for all that share it, and no less cheap for one.
            reply = [b"".join(cast("list[bytes]", reply))]
        self._clean()
        return reply

    def _clean(self) -> None:
        """Forget what was found: what is remembered for the next request must not hold records."""
        for target in self._touched:
            data = target.data
            data.views, data.length, data.error_code = (), 0, target.place_error
        self._touched = []

    def _new_session_id(self, sessions: FetchSessions) -> int:
        while True:
            session_id = 1 + self._context.broker.random.below(2**31 - 1)
            if session_id not in sessions:
                return session_id


def _read_error_code(error: BaseException) -> ErrorCode:
    if isinstance(error, CorruptDataError):
        return _DAMAGED
    return _UNREADABLE if isinstance(error, PenstockError) else error_code(error)


def _sessions(context: RequestContext) -> FetchSessions:
    return context.broker.fetch_sessions
