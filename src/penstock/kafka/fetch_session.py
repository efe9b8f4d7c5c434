"""Fetch sessions: a consumer names its partitions once, then sends only what changed (KIP-227).

Pure: ids come from outside. Sessions are kept in a bounded LRU; a client whose session was
evicted is told so and begins a new one.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from penstock.kafka.fetch_codec import FetchPartition, FetchRequest, PartitionData

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
EPOCH_MAX: Final = 2**31 - 1

SESSION_ID_NOT_FOUND: Final = 70
INVALID_SESSION_EPOCH: Final = 71
SESSION_TOPIC_ID_ERROR: Final = 106

SESSIONS_MAX: Final = 1000

_Key = tuple[str | bytes, int]


@dataclass(slots=True)
class _Sent:
    """What the client knows of a partition, so that only news are sent."""

    wanted: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """Partitions in the order in which they are served: one that gave records goes to the end."""

    session_id: int
    uses_ids: bool
    epoch: int = 1
    partitions: OrderedDict[_Key, _Sent] = field(default_factory=OrderedDict)

    def wanted(self) -> list[FetchPartition]:
        """All partitions of the session, in turn."""
        return [sent.wanted for sent in self.partitions.values()]

    def update(self, request: FetchRequest) -> None:
        """Take in an incremental request's changes."""
        for key in request.forgotten:
            self.partitions.pop(key, None)
        for wanted in request.partitions:
            key = (wanted.topic, wanted.partition)
            sent = self.partitions.get(key)
            if sent is None:
                self.partitions[key] = _Sent(wanted)
            else:
                sent.wanted = wanted

    def news(self, answers: list[PartitionData]) -> list[PartitionData]:
        """Those answers that tell the client something: records, an error, moved offsets."""
        told = []
        for data in answers:
            sent = self.partitions.get((data.topic, data.partition))
            if sent is None:
                continue
            if (
                data.length
                or data.error_code
                or data.high_watermark != sent.high_watermark
                or data.log_start_offset != sent.log_start_offset
            ):
                told.append(data)
        return told

    def sent(self, answers: list[PartitionData]) -> None:
        """Remember what was told; served partitions go to the end of the turn."""
        for data in answers:
            key = (data.topic, data.partition)
            sent = self.partitions.get(key)
            if sent is None:
                continue
            # After an error the client knows nothing, so that recovery is told.
            sent.high_watermark = -1 if data.error_code else data.high_watermark
            sent.log_start_offset = -1 if data.error_code else data.log_start_offset
            if data.length:
                self.partitions.move_to_end(key)


class FetchSessions:
    """The sessions of one agent."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def begin(self, request: FetchRequest, session_id: int, *, uses_ids: bool) -> FetchSession:
        """A new session for a full request (epoch 0); one it names is ended."""
        self._sessions.pop(request.session_id, None)
        session = FetchSession(session_id, uses_ids)
        session.update(request)
        self._sessions[session_id] = session
        if len(self._sessions) > self._sessions_max:
            self._sessions.popitem(last=False)
        return session

    def resume(self, request: FetchRequest, *, uses_ids: bool) -> FetchSession | int:
        """The session of an incremental request, updated; or a Kafka error code."""
        session = self._sessions.get(request.session_id)
        if session is None:
            return SESSION_ID_NOT_FOUND
        if request.session_epoch != session.epoch:
            return INVALID_SESSION_EPOCH
        if session.uses_ids != uses_ids:
            return SESSION_TOPIC_ID_ERROR
        self._sessions.move_to_end(session.session_id)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.update(request)
        return session

    def end(self, session_id: int) -> None:
        """Forget a session."""
        self._sessions.pop(session_id, None)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)
