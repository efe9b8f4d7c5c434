"""Fetch sessions: a consumer names its partitions once, then sends only what changed (KIP-227).

Pure: ids and time come from outside. Sessions are bounded in number and size. While all of them are
in use, further clients are served without a session and name all partitions each time. If the
oldest session were evicted instead, 1,001 consumers would take one another's session at every
fetch. Only a session that was not used for a while is evicted; its client gets an error if it comes
back.
Source: KIP-227, "Fetch Session Caching".
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.kafka.wire.fetch_codec import (
    ITEM_COST,
    STEP_ITEMS,
    FetchPartition,
    FetchRequest,
    PartitionData,
)
from penstock.model.steps import Steps, at_once

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
EPOCH_MAX: Final = 2**31 - 1

SESSION_ID_NOT_FOUND: Final = 70
INVALID_SESSION_EPOCH: Final = 71
SESSION_TOPIC_ID_ERROR: Final = 106

SESSIONS_MAX: Final = 1000
"""The default of Kafka's max.incremental.fetch.session.cache.slots."""
EVICTABLE_AFTER_S: Final = 120.0
"""The default of Kafka's min.incremental.fetch.session.eviction.ms."""
PARTITIONS_MAX: Final = 20_000
"""Partitions of one session, at some 400 bytes each."""
PARTITIONS_TOTAL_MAX: Final = 250_000
"""Partitions of all sessions together: some 100 MB, whatever clients name."""

_Key = tuple[str | bytes, int]


@dataclass(slots=True)
class _Sent:
    """The client's knowledge of a partition, so that an answer has only what is new to it."""

    wanted: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """Partitions in the order in which they are served: one that gave records goes to the end."""

    session_id: int
    uses_ids: bool
    epoch: int = 1
    used_s: float = 0.0
    """When it was used last, by a monotonic clock."""
    partitions: OrderedDict[_Key, _Sent] = field(default_factory=OrderedDict)

    def wanted(self) -> list[FetchPartition]:
        """All partitions of the session, in turn."""
        return [sent.wanted for sent in self.partitions.values()]

    def forget(self, keys: Sequence[_Key]) -> None:
        """Take out partitions."""
        for key in keys:
            self.partitions.pop(key, None)

    def add(self, partitions: Sequence[FetchPartition]) -> None:
        """Take in partitions, or what has changed of them."""
        for wanted in partitions:
            key = (wanted.topic, wanted.partition)
            sent = self.partitions.get(key)
            if sent is None:
                self.partitions[key] = _Sent(wanted)
            else:
                sent.wanted = wanted

    def news(self, answers: list[PartitionData]) -> list[PartitionData]:
        """Return the answers that tell the client something: records, an error, moved offsets."""
        told = []
        for data in answers:
            sent = self.partitions.get((data.topic, data.partition))
            if sent is None:
                continue
            if (
                data.length
                or data.error_code
                or data.preferred_read_replica >= 0
                or data.high_watermark != sent.high_watermark
                or data.log_start_offset != sent.log_start_offset
            ):
                told.append(data)
        return told

    def sent(self, answers: list[PartitionData]) -> None:
        """Remember what was answered; partitions that were served go to the end of the turn."""
        for data in answers:
            key = (data.topic, data.partition)
            sent = self.partitions.get(key)
            if sent is None:
                continue
            # After an error the client knows nothing, so that the partition's recovery is news.
            sent.high_watermark = -1 if data.error_code else data.high_watermark
            sent.log_start_offset = -1 if data.error_code else data.log_start_offset
            if data.length:
                self.partitions.move_to_end(key)


class FetchSessions:
    """The sessions of one agent, the least recently used first."""

    def __init__(
        self,
        sessions_max: int = SESSIONS_MAX,
        partitions_max: int = PARTITIONS_MAX,
        partitions_total_max: int = PARTITIONS_TOTAL_MAX,
    ) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._partitions_total_max = partitions_total_max
        self.partition_count = 0
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def begin(
        self, request: FetchRequest, session_id: int, *, uses_ids: bool, now_s: float
    ) -> FetchSession | None:
        """`begin_steps` at once."""
        return at_once(self.begin_steps(request, session_id, uses_ids=uses_ids, now_s=now_s))

    def begin_steps(
        self, request: FetchRequest, session_id: int, *, uses_ids: bool, now_s: float
    ) -> Steps[FetchSession | None]:
        """A new session for a full request (epoch 0); one it names is ended.

        Args:
            now_s: seconds of a monotonic clock.

        Returns:
            The session; None where the request must be served without one: there are as many as
            may be and all are in use, or it names too many partitions.
        """
        self.end(request.session_id)
        wanted = len(request.partitions)
        if wanted > self._partitions_max or not self._make_room(wanted, now_s):
            return None
        session = FetchSession(session_id, uses_ids, used_s=now_s)
        self._sessions[session_id] = session
        return session if (yield from self._update(session, request)) else None

    def resume(self, request: FetchRequest, *, uses_ids: bool, now_s: float) -> FetchSession | int:
        """`resume_steps` at once."""
        return at_once(self.resume_steps(request, uses_ids=uses_ids, now_s=now_s))

    def resume_steps(
        self, request: FetchRequest, *, uses_ids: bool, now_s: float
    ) -> Steps[FetchSession | int]:
        """Return the updated session of an incremental request, or a Kafka error code.

        A session that would grow too large is ended: its client learns that there is no such
        session, and sends a full request next.
        """
        session = self._sessions.get(request.session_id)
        if session is None:
            return SESSION_ID_NOT_FOUND
        if request.session_epoch != session.epoch:
            return INVALID_SESSION_EPOCH
        if session.uses_ids != uses_ids:
            return SESSION_TOPIC_ID_ERROR
        self._sessions.move_to_end(session.session_id)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_s = now_s
        return session if (yield from self._update(session, request)) else SESSION_ID_NOT_FOUND

    def _update(self, session: FetchSession, request: FetchRequest) -> Steps[bool]:
        """Take in a request's changes, some at a time; false: the session is over."""
        forgotten, partitions = request.forgotten, request.partitions
        for start in range(0, len(forgotten), STEP_ITEMS):
            if not self._change(session, forgotten[start : start + STEP_ITEMS], ()):
                return False
            if start:
                yield STEP_ITEMS // ITEM_COST
        for start in range(0, len(partitions), STEP_ITEMS):
            if not self._change(session, (), partitions[start : start + STEP_ITEMS]):
                return False
            if start:
                yield STEP_ITEMS // ITEM_COST
        return True

    def _change(
        self,
        session: FetchSession,
        forgotten: Sequence[_Key],
        partitions: Sequence[FetchPartition],
    ) -> bool:
        if self._sessions.get(session.session_id) is not session:
            return False  # another request has ended it meanwhile
        before = len(session.partitions)
        session.forget(forgotten)
        session.add(partitions)
        self.partition_count += len(session.partitions) - before
        is_small = len(session.partitions) <= self._partitions_max
        if not is_small or self.partition_count > self._partitions_total_max:
            self.end(session.session_id)
            return False
        return True

    def end(self, session_id: int) -> None:
        """Forget a session."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)

    def _make_room(self, wanted: int, now_s: float) -> bool:
        """Whether a session of `wanted` partitions may be, after evicting those that may go."""
        while (
            len(self._sessions) >= self._sessions_max
            or self.partition_count + wanted > self._partitions_total_max
        ):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_s - oldest.used_s < EVICTABLE_AFTER_S:
                return False
            self.end(oldest.session_id)
        return True

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)
