"""SASL on one connection: what is taken in which state, and the limits until it is over.

Before its client has authenticated, a connection takes small frames alone, and for a short time.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.net.exchange import Exchange
from penstock.kafka.registry import SASL_TOKEN
from penstock.kafka.wire.framing import Framer
from penstock.model.errors import PenstockError
from penstock.security.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    SessionExpiredError,
)
from penstock.security.sasl.session import AUTHENTICATE_KEY, SaslSession

OF_AUTHENTICATION: Final = (AuthenticationFailedError, IllegalSaslStateError, SessionExpiredError)
"""Errors of clients, which say them as often as they try again."""


class Authenticating:
    """The authentication of one connection. Event loop only; `close` it with the connection.

    Args:
        late: called with the seconds that have passed once the client has taken too long.
    """

    __slots__ = ("_broker", "_framer", "_late", "_timer", "session")

    def __init__(self, broker: Broker, framer: Framer, late: Callable[[float], None]) -> None:
        assert broker.authenticator is not None
        self._broker = broker
        self._framer = framer
        self._late = late
        self._timer: asyncio.TimerHandle | None = None
        self.session: SaslSession = broker.authenticator.new_session()
        framer.frame_bytes_max = broker.settings.authentication_bytes_max

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """The client is connected: its time begins."""
        timeout_s = self._broker.settings.authentication_timeout_s
        self._timer = loop.call_later(timeout_s, self._late, timeout_s)

    def is_admitted(self, exchange: Exchange, now_s: float) -> bool:
        """Whether a request is taken in the state that the connection is in; else its error is set,
        which ends the connection."""
        try:
            self.session.admit(exchange.context.api_key, exchange.api.name, now_s)
        except PenstockError as error:
            exchange.error = error
            exchange.ready = True
            return False
        if exchange.body is None:
            self.session.versions_refused()
        return True

    def token(
        self, frame: memoryview, state: ConnectionState, client_host: str, arrived_s: float
    ) -> Exchange:
        """Return the exchange of a message without a header, after SaslHandshake 0."""
        context = RequestContext(AUTHENTICATE_KEY, 0, 0, None, client_host, self._broker, state)
        return Exchange(SASL_TOKEN, context, frame, len(frame), arrived_s)

    def is_revoked(self) -> bool:
        """Whether the credential is gone by which the client has authenticated."""
        authenticator = self._broker.authenticator
        assert authenticator is not None
        return authenticator.is_revoked(self.session)

    def succeeded(self) -> None:
        """The client has authenticated: the limits before that are lifted."""
        self._framer.frame_bytes_max = self._broker.settings.request_bytes_max
        self.close()

    def close(self) -> None:
        """Stop the clock. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
