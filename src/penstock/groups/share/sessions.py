"""Share sessions: a member names its partitions once, then sends only what changed. Pure.

A session is of one member of one group. Its epoch grows with each ShareFetch and ShareAcknowledge,
so that a request that comes twice, or late, is refused.

Source: KIP-932, "Share sessions", and ShareSessionCache of Kafka 4.3.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from penstock.groups.errors import GroupError
from penstock.groups.share.messages import Place

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
EPOCH_MAX: Final = (1 << 31) - 1
PARTITIONS_MAX: Final = 20_000
"""Partitions of one session."""

Key = tuple[str, str, str]
"""Group id, member id, and the agent that carries the member's requests ("": none does): a member
has a session by each."""


class ShareSession:
    """A member's partitions, in the order in which they are served: what gave records goes to the
    end."""

    __slots__ = ("epoch", "owner", "places")

    def __init__(self, owner: object) -> None:
        self.epoch = 1
        self.owner = owner
        """The connection that opened it."""
        self.places: OrderedDict[Place, None] = OrderedDict()


class ShareSessions:
    """All sessions of this agent.

    Args:
        sessions_max: how many there may be at one time.
    """

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[Key, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def fetch(
        self,
        key: Key,
        epoch: int,
        *,
        owner: object,
        added: Iterable[Place],
        forgotten: Iterable[Place],
        acknowledges: bool,
    ) -> ShareSession | GroupError:
        """Begin, go on with, or look up for its end the session of a ShareFetch.

        Args:
            added: partitions that the request names.
            acknowledges: the request acknowledges records, too.
        """
        if epoch == INITIAL_EPOCH:
            return self._begin(key, owner, added, acknowledges=acknowledges)
        session = self._sessions.get(key)
        if session is None:
            return GroupError.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            return GroupError.INVALID_SHARE_SESSION_EPOCH
        session.epoch = _next(epoch)
        for place in forgotten:
            session.places.pop(place, None)
        return _add(session, added)

    def acknowledge(self, key: Key, epoch: int) -> ShareSession | GroupError:
        """Go on with the session of a ShareAcknowledge, or look it up for its end."""
        if epoch == INITIAL_EPOCH:
            return GroupError.INVALID_SHARE_SESSION_EPOCH
        session = self._sessions.get(key)
        if session is None:
            return GroupError.SHARE_SESSION_NOT_FOUND
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            return GroupError.INVALID_SHARE_SESSION_EPOCH
        session.epoch = _next(epoch)
        return session

    def end(self, key: Key) -> None:
        """Forget a session."""
        self._sessions.pop(key, None)

    def end_of(self, owner: object) -> list[Key]:
        """Forget the sessions that a connection has opened; which those were."""
        keys = [key for key, session in self._sessions.items() if session.owner is owner]
        for key in keys:
            del self._sessions[key]
        return keys

    def _begin(
        self, key: Key, owner: object, added: Iterable[Place], *, acknowledges: bool
    ) -> ShareSession | GroupError:
        if acknowledges:
            return GroupError.INVALID_REQUEST
        if key not in self._sessions and len(self._sessions) >= self._sessions_max:
            return GroupError.SHARE_SESSION_LIMIT_REACHED
        session = ShareSession(owner)
        begun = _add(session, added)
        if isinstance(begun, ShareSession):
            self._sessions[key] = begun
        return begun


def _add(session: ShareSession, added: Iterable[Place]) -> ShareSession | GroupError:
    for place in added:
        session.places.setdefault(place)
    if len(session.places) > PARTITIONS_MAX:
        return GroupError.INVALID_REQUEST
    return session


def _next(epoch: int) -> int:
    return 1 if epoch == EPOCH_MAX else epoch + 1
