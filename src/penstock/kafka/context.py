"""A handler gets a context with each request: the client, the version, and the broker."""

import asyncio
from typing import TYPE_CHECKING

from penstock.kafka.access import OPEN, Access, AuditedAccess
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.registry import APIS
from penstock.kafka.replies import SMALL_ANSWER_BYTES

if TYPE_CHECKING:
    from penstock.kafka.access import Authority
    from penstock.kafka.broker import Broker
    from penstock.kafka.nodes import Nodes
    from penstock.security.audit import Audit


class RequestContext:
    """One request's header, its connection and the broker. Made for every request: no dataclass,
    since a plain `__init__` over slots is the cheapest that Python has."""

    __slots__ = (
        "api_key",
        "api_version",
        "broker",
        "client_host",
        "client_id",
        "connection",
        "correlation_id",
        "reserved_bytes",
        "throttle_s",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str,
        broker: "Broker",
        connection: ConnectionState,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.broker = broker
        self.connection = connection
        self.reserved_bytes = 0
        """The bytes that were reserved last."""
        self.throttle_s = 0.0
        """For how long its handler asks the client to wait, in seconds."""

    @property
    def access(self) -> Access:
        """Return what says what the client may do."""
        broker = self.broker
        if broker.audit is not None:
            return self._audited(broker.audit)
        return OPEN if broker.authority is None else self._kept_access(broker.authority)

    def _audited(self, audit: "Audit") -> Access:
        authority = self.broker.authority
        inner = OPEN if authority is None else self._kept_access(authority)
        principal = self.connection.principal
        call = APIS[self.api_key].name
        return AuditedAccess(inner, audit, principal, self.client_host, call, self.client_id or "")

    def _kept_access(self, authority: "Authority") -> Access:
        connection = self.connection
        known = connection.access
        if known is None or known.principal != connection.principal:
            known = Access(authority, connection.principal, self.client_host)
            connection.access = known
        return known

    @property
    def nodes(self) -> "Nodes":
        """The brokers that the client is sent to: their addresses are of the listener by which it
        came."""
        return self.broker.nodes_of(self.connection.listener)

    def reserve_answer(self, byte_count: int) -> "asyncio.Future[None] | None":
        """Reserve the answer's bytes by `ReplySink.reserve_answer`, unless the answer is small.

        A handler that gets a future returns it in place of its answer, and is called again.
        """
        if byte_count <= SMALL_ANSWER_BYTES:
            return None
        self.reserved_bytes = byte_count
        return self.connection.reserve_answer(byte_count)

    async def wait_for_room(self, byte_count: int) -> None:
        """Reserve an answer that is known only once its request's work is done: of what the
        server has in memory anyway, so that waiting for room holds little."""
        waiting = self.reserve_answer(byte_count)
        if waiting is not None:
            await waiting
