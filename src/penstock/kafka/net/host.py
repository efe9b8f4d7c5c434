"""All connections of a server share this: broker, limits, and log lines about closed peers."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from penstock.kafka.broker import Broker
from penstock.kafka.net.accepting import AcceptedPositions
from penstock.kafka.net.admission import Admission, Admitted
from penstock.kafka.net.lanes import Lanes
from penstock.kafka.net.movement import Ending
from penstock.kafka.net.watch import Watch
from penstock.kafka.net.waves import ProduceWaves
from penstock.kafka.wire.framing import STAGING_BYTES, Advances
from penstock.system.peer_ends import PeerEnds
from penstock.system.seldom import Seldom

logger = logging.getLogger(__name__)

DRAINING: Final = "draining"
_ENDINGS: Final = {
    Ending.IDLE: "connections_max_idle_ms is over",
    Ending.ROOM: "connections_max is reached, and another client wants the place",
    Ending.STALLED: "stall_timeout_ms is over",
    Ending.LATE_REQUEST: "request_receive_timeout_ms is over",
    Ending.SLOW_REQUEST: "inflight_bytes_max is reached, and it is the slowest sender",
    Ending.UNAUTHENTICATED: "authentication_timeout_ms is over",
    Ending.REVOKED: "its user's credential was deleted",
    Ending.CONNECTION_RATE: "its address is above its quota of connection_creation_rate",
    Ending.SLOW_REPLY: "inflight_bytes_max is reached, and it is the slowest reader",
}


class HostedConnection(Admitted, Protocol):
    """A connection, as its server ends it: `penstock.kafka.net.connection` imports this module."""

    peer: str

    def drain(self) -> None:
        """Answer what was started, then close."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...

    def end_revoked(self) -> None:
        """Close at once if the credential is gone by which the client has authenticated."""
        ...


ClientNames: TypeAlias = Callable[[bytes], str]
"""The principal of a certificate in DER. Raises: PenstockError: it names none."""


@dataclass(slots=True, kw_only=True)
class ConnectionHost:
    """Event loop only."""

    broker: Broker
    data: Lanes
    """Before inflight_bytes_max."""
    groups: Lanes
    """Before group_inflight_bytes_max: the reserve of group calls."""
    waves: ProduceWaves
    admission: Admission[HostedConnection]
    watch: Watch
    seldom: Seldom
    accepted: AcceptedPositions
    staging: memoryview = field(default_factory=lambda: memoryview(bytearray(STAGING_BYTES)))
    advances: Advances = field(default_factory=Advances)
    ends: PeerEnds = field(default_factory=PeerEnds)
    """Notices the end of connections that are not being read."""
    next_connection_id: int = 1
    draining: bool = False
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last connection has gone. A caller clears it before it waits."""

    @property
    def connections(self) -> Collection[HostedConnection]:
        """The open ones."""
        return self.admission.open.keys()

    def refusal(self, connection: HostedConnection, now_s: float) -> str:
        """Admit a new connection, or count and log that it must be closed.

        Returns:
            Why it is refused; "": it is admitted.
        """
        reason = DRAINING if self.draining else self.admission.refusal(connection, now_s)
        if not reason:
            return ""
        self.broker.instruments.count(f"refused:{reason}")
        count = 0 if reason is DRAINING else self.seldom.due(reason)
        if count:
            logger.warning(
                "refused %s: %d connections are open, and %s allows no more; %d refused since the "
                "last such line",
                connection.peer,
                len(self.connections),
                reason,
                count,
            )
        return reason

    def note_ended(self, peer: str, ending: Ending, detail: str) -> None:
        """Count and log that a connection is closed for something that no request did."""
        self.broker.instruments.count(f"ended:{ending.value}")
        count = self.seldom.due(ending.value)
        if count:
            logger.warning(
                "closed %s: %s: %s; %d closed so since the last such line",
                peer,
                _ENDINGS[ending],
                detail,
                count,
            )
