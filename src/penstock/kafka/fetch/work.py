"""All fetches find their partitions, read within the budgets, and answer in the same way.

They wait in different ways: by callbacks (`kafka.handlers.fetch`), or, for a fetch of many
partitions, as a coroutine that takes turns of the loop (`kafka.fetch.long_fetch`).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from typing_extensions import Buffer

from penstock.kafka import confirmed as fresh
from penstock.kafka.alarm import Alarm
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.fetch.committed import below
from penstock.kafka.fetch.damaged_batch import damaged_batch, wants_damaged_batch
from penstock.kafka.fetch.targets import Target, find_targets
from penstock.kafka.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchSession, FetchSessions
from penstock.kafka.replies import JOIN_BYTES_MAX, Reply
from penstock.kafka.shown_replicas import replicas_of
from penstock.kafka.wire.fetch_codec import (
    ITEM_COST,
    STEP_ITEMS,
    TOPIC_IDS_FROM,
    FetchPartition,
    FetchRequest,
    PartitionData,
    answer_steps,
)
from penstock.log.fetch.reader import Missing
from penstock.log.fetch.regions import FileRegion, PartsRead
from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.steps import Steps, at_once
from penstock.placement.leaders import Leaders
from penstock.placement.zones import zone_of
from penstock.state.read.view import Head

READ_COMMITTED: Final = 1
RESPONSE_BYTES_MAX: Final = 55 << 20
"""Kafka's `fetch.max.bytes` of a broker: however much a client asks for."""
LOADS_MAX: Final = 1000
"""How often one fetch may wait for loads before it answers with what it has."""
PREFERRED_REPLICA_FROM: Final = 11
_UNREADABLE: Final = ErrorCode.KAFKA_STORAGE_ERROR
"""The error of a partition that can't be read now. Java's consumer retries a fetch after this error
and few others; REQUEST_TIMED_OUT ends it with an IllegalStateException
(FetchCollector.handleInitializeErrors)."""
_DAMAGED: Final = ErrorCode.CORRUPT_MESSAGE
"""Java's consumer raises a KafkaException at poll, librdkafka and kafka-python an error of that
name; what each client does with other codes is in docs/kafka-apis.md."""


class FetchWork:
    """One request under way."""

    # What most requests leave as it is costs nothing to set.
    _targets: list[Target] = []  # noqa: RUF012 - replaced, never changed
    _session: FetchSession | None = None
    _loads = 0
    _bytes_max = 0
    _cuts = False
    """Whether what is read of a partition is cut at its last stable offset: then in memory."""
    _end_offset = 0
    """The end of what was read last."""

    def __init__(self, context: RequestContext) -> None:
        broker = context.broker
        self._context = context
        self._version = context.api_version
        self._view = broker.view
        self._log = broker.log
        self._connection = context.connection
        self._authority = broker.authority
        self._access = None if broker.authority is None else context.access
        self._certainty = fresh.first(context)
        self._touched: list[Target] = []
        """The targets whose data holds something found for this request."""
        self._wanted: list[FetchPartition]
        self._request: FetchRequest

    def _session_steps(self) -> Steps[int]:
        """Begin, end or go on with a session, which then says what is wanted; an error code."""
        request, context = self._request, self._context
        self._bytes_max = min(request.bytes_max, RESPONSE_BYTES_MAX)
        sessions = context.broker.fetch_sessions
        if request.session_epoch == FINAL_EPOCH:
            sessions.end(request.session_id)
            return 0
        now_s = context.broker.clock.monotonic_s()
        uses_ids = self._version >= TOPIC_IDS_FROM
        if request.session_epoch == INITIAL_EPOCH:
            session_id = self._new_session_id(sessions)
            begun = yield from sessions.begin_steps(
                request, session_id, uses_ids=uses_ids, now_s=now_s
            )
            # Without one the answer's session id is 0, and the client names all each time.
            if begun is not None:
                self._session = begun
                self._wanted = begun.wanted()
            return 0
        found = yield from sessions.resume_steps(request, uses_ids=uses_ids, now_s=now_s)
        if isinstance(found, int):
            return found
        self._session = found
        self._wanted = found.wanted()
        return 0

    def _new_session_id(self, sessions: FetchSessions) -> int:
        while True:
            session_id = 1 + self._context.broker.random.below(2**31 - 1)
            if session_id not in sessions:
                return session_id

    def _now(self) -> int:
        """A number that is another one once partitions may be elsewhere, or not the client's to
        read any more."""
        authority = self._authority
        return self._view.generation if authority is None else authority.generation()

    def _find(self, wanted: Sequence[FetchPartition]) -> list[Target]:
        """Find partitions as of now."""
        return find_targets(
            wanted, self._view, self._certainty, version=self._version, access=self._access
        )

    # -- in a cluster ---------------------------------------------------------------------------

    def _must_confirm(self) -> bool:
        """Whether what was collected denies what may be there."""
        return self._certainty.doubted and not self._certainty.away

    def _nearer_leaders(self) -> Leaders | None:
        """The agents of the client's zone that it should ask where they are replicas, if this one
        isn't in the zone."""
        context = self._context
        if context.broker.cluster is None:
            return None
        zone = zone_of(context.client_id, self._request.rack)
        nodes = context.nodes
        if not zone or self._version < PREFERRED_REPLICA_FROM or not nodes.is_far(zone):
            return None
        return nodes.leaders(zone)

    def _find_nearer(self, wanted: Sequence[FetchPartition], leaders: Leaders) -> list[Target]:
        """Partitions, each with the agent that the client should ask for it, if Metadata shows it
        that agent as a replica."""
        view, replicas = self._view, replicas_of(self._context)
        targets = self._find(wanted)
        for target in targets:
            data = target.data
            name = data.topic
            topic = view.topic_by_id(name) if isinstance(name, bytes) else view.topic(name)
            if data.error_code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                continue
            if target.head is None or topic is None:
                # The agent that it is sent to with the others will know.
                data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                near = leaders.leader(topic.topic_id, data.partition)
                count = replicas.count(topic.replication_factor)
                if replicas.shows(topic.topic_id, data.partition, count, near):
                    data.preferred_read_replica = near
        return targets

    # -- collecting ------------------------------------------------------------------------------

    def _collect_from(
        self, targets: Sequence[Target], length: int, missing: asyncio.Task[None] | None
    ) -> tuple[int, asyncio.Task[None] | None, bool]:
        """Read what is in memory of each partition, in turn, within the byte limits.

        Args:
            length: of what was found of partitions before these.
            missing: the load that one of those wants.

        Returns:
            The bytes of records found, a load under way that would give the first one more, and
            whether a partition has an error to tell.
        """
        failed = False
        budget = room = loads_left = -1
        committed = self._request.isolation_level == READ_COMMITTED
        for target in targets:
            head = target.head
            if head is None:
                failed = True
                if not self._certainty.final:
                    # Also where it was looked up for an earlier request.
                    self._certainty.doubted = True
                continue
            offset, end = target.offset, head.next_offset
            if offset == end:  # true of most partitions for which a consumer waits
                continue
            if committed:
                self._cuts = head.first_open >= 0
                if self._cuts and head.last_stable <= offset < end:
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
                loads_left = self._log.loads_max if missing is None else 0
            try:
                found = self._read(
                    target,
                    room - length,
                    first=length == 0 and budget > 0,
                    may_load=loads_left > 0,
                )
                if committed and data.length:
                    found = self._leave_committed(target, head)
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

    def _read(self, target: Target, room: int, *, first: bool, may_load: bool) -> Missing | None:
        data = target.data
        if room <= 0 and not first:
            return None
        # KIP-74: the response's first batch is given whole, whatever the limits.
        limit = min(target.bytes_max, room)
        log = self._log
        takes_files = self._connection.takes_files and not self._cuts
        read = log.read_parts if takes_files else log.read
        found = read(target.key, target.offset, max(limit, 0), may_load=may_load)
        if isinstance(found, Missing):
            return found
        if found is not None and (first or found.length <= limit):
            data.views = found.parts if isinstance(found, PartsRead) else found.views
            data.length = found.length
            self._end_offset = found.end_offset
        return None

    def _leave_committed(self, target: Target, head: Head) -> Missing | None:
        """Leave what a reader of committed records may have, and name what was aborted there."""
        data, offset, end = target.data, target.offset, self._end_offset
        if self._cuts and end > head.last_stable:
            end = head.last_stable
            data.views = below(cast("Sequence[memoryview]", data.views), end)
            data.length = sum(map(len, data.views))
        if head.last_aborted < offset:
            return None
        found = self._log.aborted(target.key, offset, end, last_aborted=head.last_aborted)
        if isinstance(found, Missing):
            data.views, data.length = (), 0
            return found
        data.aborted = [(each.producer_id, each.first_offset) for each in found]
        return None

    def _is_enough(self, length: int, *, failed: bool) -> bool:
        return failed or length >= self._request.bytes_min or not self._wanted

    def _is_pressed(self) -> bool:
        """Whether one that waited and was woken is answered with what there is."""
        return self._context.broker.nodes.is_alone()

    def _set_alarm(self, due_s: float, ring: Callable[[], None]) -> None:
        connection = self._connection
        if connection.fetch_alarm is None:
            connection.fetch_alarm = Alarm(asyncio.get_running_loop())
        connection.fetch_alarm.set(due_s, ring)

    def _clear_alarm(self) -> None:
        if self._connection.fetch_alarm is not None:
            self._connection.fetch_alarm.clear()

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

    # -- answering -------------------------------------------------------------------------------

    def _encode(self) -> Reply:
        return at_once(self._answer_steps())

    def _answer_steps(self) -> Steps[Reply]:
        session = self._session
        session_id = 0 if session is None else session.session_id
        answers: list[PartitionData] = []
        is_alone = self._context.broker.nodes.is_alone()
        for start in range(0, len(self._targets), STEP_ITEMS):
            some = []
            for target in self._targets[start : start + STEP_ITEMS]:
                head, data = target.head, target.data
                if head is not None:
                    data.high_watermark = data.last_stable_offset = head.next_offset
                    if head.first_open >= 0:
                        data.last_stable_offset = head.last_stable
                    data.log_start_offset = head.log_start
                    if is_alone and not data.error_code and target.offset >= head.next_offset:
                        # Others may have more; the client's metadata may be minutes old.
                        self._touched.append(target)
                        data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                some.append(data)
            if session is not None:
                if self._request.session_epoch != INITIAL_EPOCH:
                    some = session.news(some)
                session.sent(some)
            answers += some
            if start:
                yield STEP_ITEMS // ITEM_COST
        reply: list[Buffer | FileRegion] = yield from answer_steps(
            answers,
            self._version,
            session_id=session_id,
            read_committed=self._request.isolation_level == READ_COMMITTED,
        )
        self._clean()
        if sum(map(len, reply)) <= JOIN_BYTES_MAX:  # type: ignore[arg-type]
            # Joined once for all that share it, and no less cheap for one.
            return [b"".join(cast("list[bytes]", reply))]
        return reply

    def _clean(self) -> None:
        """Forget what was found: what is remembered for the next request must not hold records."""
        for target in self._touched:
            data = target.data
            data.views, data.length, data.error_code = (), 0, target.place_error
            data.aborted = ()
        self._touched = []


def _read_error_code(error: BaseException) -> ErrorCode:
    if isinstance(error, CorruptDataError):
        return _DAMAGED
    return _UNREADABLE if isinstance(error, PenstockError) else error_code(error)
