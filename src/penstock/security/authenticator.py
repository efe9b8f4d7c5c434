"""Authenticates clients by SASL with the credentials of the state: what connections share.

Event loop only. Passwords are checked in threads (`passwords`); all else takes microseconds.
"""

import base64
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.security.errors import AuthenticationFailedError
from penstock.security.passwords import PasswordChecks
from penstock.security.sasl.exchanges import (
    OAUTHBEARER,
    PLAIN,
    Challenge,
    CheckPassword,
    PlainExchange,
    Proven,
    SaslExchange,
    ScramExchange,
)
from penstock.security.sasl.oauthbearer import CheckToken, OauthBearerExchange
from penstock.security.sasl.session import NewExchange, SaslSession
from penstock.security.scram.credential import BY_SASL_NAME, ScramCredential, ScramMechanism
from penstock.security.scram.server import ScramServer

Credentials = Mapping[str, Mapping[ScramMechanism, ScramCredential]]
NONCE_BYTES: Final = 24
PEPPER_BYTES: Final = 32


class Authenticated(NamedTuple):
    """The answer to a client's message. `lifetime_ms`: see `SaslSession.prove`."""

    answer: bytes
    lifetime_ms: int = 0


class Authenticator:
    """Makes sessions and takes their steps."""

    def __init__(
        self,
        mechanisms: tuple[str, ...],
        *,
        credentials: Callable[[], Credentials],
        passwords: PasswordChecks,
        check_token: CheckToken | None,
        clock: Clock,
        random: Random,
        failure_delay_s: float = 0.1,
        reauthenticate_ms: int = 0,
    ) -> None:
        """
        Args:
            mechanisms: the names of those that are enabled.
            credentials: returns all credentials by user.
            check_token: checks tokens; needed if OAUTHBEARER is enabled.
        """
        self._credentials = credentials
        self._passwords = passwords
        self._clock = clock
        self._random = random
        self._reauthenticate_ms = reauthenticate_ms
        self._pepper = random.token_bytes(PEPPER_BYTES)
        self.failure_delay_s = failure_delay_s
        self._exchanges: dict[str, NewExchange] = {
            name: self._new_exchange(name, check_token) for name in mechanisms
        }

    def new_session(self) -> SaslSession:
        """Return the session of a new connection."""
        return SaslSession(self._exchanges, reauthenticate_ms=self._reauthenticate_ms)

    def is_revoked(self, session: SaslSession) -> bool:
        """Whether the credential is gone by which a session's client has authenticated. One that
        has been changed is there."""
        user = session.user
        if user is None or session.mechanism == OAUTHBEARER:
            return False
        known = self._credentials().get(user, {})
        return (
            not known
            if session.mechanism == PLAIN
            else (BY_SASL_NAME[session.mechanism] not in known)
        )

    async def take(self, session: SaslSession, message: bytes, address: str) -> Authenticated:
        """Take a client's message.

        Args:
            address: the client's, for the bound of passwords that are checked at a time.

        Raises:
            AuthenticationFailedError: the connection must end.
            OverloadedError: too many passwords of this address are being checked.
        """
        step = session.evaluate(message)
        if isinstance(step, Challenge):
            return Authenticated(step.answer)
        if isinstance(step, CheckPassword):
            try:
                step = await self._check_password(step, address)
            except BaseException:
                session.fail()
                raise
        lifetime_ms = session.prove(
            step, now_s=self._clock.monotonic_s(), now_ms=self._clock.now_ms()
        )
        return Authenticated(step.answer, lifetime_ms)

    async def _check_password(self, step: CheckPassword, address: str) -> Proven:
        known = self._credentials().get(step.user, {})
        # The stronger hash where both are there: a password is one for both.
        credential = known.get(ScramMechanism.SHA_512) or known.get(ScramMechanism.SHA_256)
        if not await self._passwords.check(credential, step.password, address):
            raise AuthenticationFailedError("invalid credentials")
        return Proven(step.user)

    def _new_exchange(self, name: str, check_token: CheckToken | None) -> NewExchange:
        if name == PLAIN:
            return PlainExchange
        if name == OAUTHBEARER:
            assert check_token is not None
            return partial(OauthBearerExchange, check_token)
        return partial(self._new_scram, BY_SASL_NAME[name])

    def _new_scram(self, mechanism: ScramMechanism) -> SaslExchange:
        nonce = base64.b64encode(self._random.token_bytes(NONCE_BYTES)).decode()
        return ScramExchange(
            ScramServer(
                mechanism,
                nonce=nonce,
                find=lambda user: self._credentials().get(user, {}).get(mechanism),
                pepper=self._pepper,
            )
        )
