"""The states of a connection that authenticates by SASL. Pure; docs/security.md has the table.

What is taken when is Kafka's: ApiVersions once, SaslHandshake, then SaslAuthenticate until the
mechanism is done. After that SaslHandshake begins a re-authentication (KIP-368), during which no
other request is taken, and which may change neither mechanism nor user.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Final

from penstock.security import principals
from penstock.security.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    SessionExpiredError,
)
from penstock.security.sasl.exchanges import Proven, SaslExchange, Step

HANDSHAKE_KEY: Final = 17
AUTHENTICATE_KEY: Final = 36
API_VERSIONS_KEY: Final = 18
REAUTHENTICATE_AFTER_S: Final = 1.0
"""A connection re-authenticates at most this often, as in Kafka."""


class State(enum.StrEnum):
    """States, by what the connection waits for."""

    VERSIONS_OR_HANDSHAKE = "VERSIONS_OR_HANDSHAKE"
    HANDSHAKE = "HANDSHAKE"
    """ApiVersions was answered."""
    AUTHENTICATE = "AUTHENTICATE"
    """A mechanism was agreed on."""
    COMPLETE = "COMPLETE"
    REAUTHENTICATE = "REAUTHENTICATE"
    """The same as AUTHENTICATE, of a client that is authenticated already."""
    FAILED = "FAILED"


NewExchange = Callable[[], SaslExchange]


class SaslSession:
    """One connection's. Times are in seconds of the monotonic clock, lifetimes in ms.

    Args:
        mechanisms: what begins an exchange, by name; in the order in which clients get them.
        reauthenticate_ms: Kafka's connections.max.reauth.ms; 0: sessions have no end of their own.
    """

    __slots__ = (
        "_exchange",
        "_expires_s",
        "_mechanisms",
        "_reauthenticate_ms",
        "_reauthenticated_s",
        "_user",
        "mechanism",
        "sends_headers",
        "state",
    )

    def __init__(
        self, mechanisms: Mapping[str, NewExchange], *, reauthenticate_ms: int = 0
    ) -> None:
        self._mechanisms = mechanisms
        self._reauthenticate_ms = reauthenticate_ms
        self._exchange: SaslExchange | None = None
        self._user: str | None = None
        self._expires_s: float | None = None
        self._reauthenticated_s: float | None = None
        self.state = State.VERSIONS_OR_HANDSHAKE
        self.mechanism = ""
        """The mechanism that was agreed on last."""
        self.sends_headers = True
        """False: after version 0 of the handshake, the client's messages are bare."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The names of the mechanisms that are enabled."""
        return tuple(self._mechanisms)

    @property
    def is_authenticating(self) -> bool:
        """Whether a message of the mechanism is waited for."""
        return self.state in {State.AUTHENTICATE, State.REAUTHENTICATE}

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has proven who it is, be it about to do so again."""
        return self._user is not None and self.state is not State.FAILED

    @property
    def user(self) -> str | None:
        """The user that the client has proven to be; None: none yet."""
        return self._user

    @property
    def principal(self) -> str:
        """The client's principal; that of an anonymous client before it has proven anything."""
        return principals.ANONYMOUS if self._user is None else principals.of_user(self._user)

    def admit(self, key: int, api: str, now_s: float) -> None:
        """Take a request of an API into account, before it is served.

        Raises:
            IllegalSaslStateError: it isn't taken in this state: the connection must end.
            SessionExpiredError: the client should have re-authenticated before.
        """
        if self.state is State.COMPLETE:
            if key == HANDSHAKE_KEY and self._begins_again(now_s):
                return
            if self._expires_s is not None and now_s >= self._expires_s:
                self.state = State.FAILED
                raise SessionExpiredError(api, now_s - self._expires_s)
            return
        if key in _TAKEN[self.state]:
            if key == API_VERSIONS_KEY:
                self.state = State.HANDSHAKE
            return
        state, self.state = self.state, State.FAILED
        raise IllegalSaslStateError(api, state)

    def versions_refused(self) -> None:
        """ApiVersions was answered in another version than asked for: it is asked again."""
        if self.state is State.HANDSHAKE:
            self.state = State.VERSIONS_OR_HANDSHAKE

    def takes_handshake(self) -> bool:
        """Whether a handshake that is served now is part of an authentication; else the answer is
        ILLEGAL_SASL_STATE, and the connection goes on."""
        return self.state is not State.COMPLETE

    def begin(self, mechanism: str, *, without_headers: bool = False) -> bool:
        """Agree on a mechanism; whether it is enabled. If it isn't, the connection must end.

        A client that re-authenticates by another mechanism than before learns of its failure by
        the answer to its first message, as in Kafka.

        Args:
            without_headers: version 0 of the handshake.
        """
        new_exchange = self._mechanisms.get(mechanism)
        if new_exchange is None:
            self.state = State.FAILED
            return False
        self.sends_headers = not without_headers
        if self.state is State.REAUTHENTICATE:
            self._exchange = new_exchange() if mechanism == self.mechanism else None
            return True
        self.state = State.AUTHENTICATE
        self.mechanism = mechanism
        self._exchange = new_exchange()
        return True

    def evaluate(self, message: bytes) -> Step:
        """Take the client's next message. `Proven` is to be handed to `prove`.

        Raises:
            AuthenticationFailedError: the connection must end.
        """
        if self._exchange is None:
            self.state = State.FAILED
            raise AuthenticationFailedError("a client may not change its mechanism")
        try:
            return self._exchange.evaluate(message)
        except AuthenticationFailedError:
            self.fail()
            raise

    def prove(self, proven: Proven, *, now_s: float, now_ms: int) -> int:
        """The client has proven who it is.

        Returns:
            The session's lifetime in ms, within which the client must re-authenticate; 0: there is
            none.

        Raises:
            AuthenticationFailedError: the client is another user than before.
        """
        self._exchange = None
        if self._user is not None and proven.user != self._user:
            self.fail()
            raise AuthenticationFailedError("a client may not change its user")
        self._user = proven.user
        self.state = State.COMPLETE
        self.sends_headers = True
        lifetimes = [self._reauthenticate_ms] if self._reauthenticate_ms > 0 else []
        if proven.expires_ms is not None:
            lifetimes.append(max(0, proven.expires_ms - now_ms))
        if not lifetimes:
            self._expires_s = None
            return 0
        lifetime_ms = min(lifetimes)
        self._expires_s = now_s + lifetime_ms / 1000
        return lifetime_ms

    def fail(self) -> None:
        """The client has failed to prove who it is."""
        self._exchange = None
        self.state = State.FAILED

    def _begins_again(self, now_s: float) -> bool:
        if self._expires_s is None:
            return False
        last_s = self._reauthenticated_s
        if last_s is not None and now_s - last_s < REAUTHENTICATE_AFTER_S:
            return False
        self._reauthenticated_s = now_s
        self.state = State.REAUTHENTICATE
        return True


_TAKEN: Final[Mapping[State, frozenset[int]]] = {
    State.VERSIONS_OR_HANDSHAKE: frozenset((API_VERSIONS_KEY, HANDSHAKE_KEY)),
    State.HANDSHAKE: frozenset((HANDSHAKE_KEY,)),
    State.AUTHENTICATE: frozenset((AUTHENTICATE_KEY,)),
    State.REAUTHENTICATE: frozenset((AUTHENTICATE_KEY,)),
    State.COMPLETE: frozenset(),
    State.FAILED: frozenset(),
}
"""API keys that are taken before authentication is over."""
