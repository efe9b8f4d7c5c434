"""The Kafka listeners of a server: their addresses, their TLS, and who authenticates clients."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.agent.jobs import Job
from penstock.config.addresses import Address
from penstock.config.listeners import ListenerSettings
from penstock.config.security_checks import algorithms, audiences, mechanisms
from penstock.config.settings import ServerSettings
from penstock.kafka.net.host import ClientNames
from penstock.model.errors import InvalidRequestError
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.security import principals
from penstock.security.listener import Listener, Protocol
from penstock.security.tls.distinguished_name import subject
from penstock.security.tls.principal_rules import Rule, map_name, parse_rules

if TYPE_CHECKING:
    from penstock.security.authenticator import Authenticator, Credentials
    from penstock.security.passwords import PasswordChecks
    from penstock.security.sasl.oauthbearer import CheckToken

LOOK_S: Final = 1.0
"""How often files are looked at for changes."""
_OAUTHBEARER: Final = "OAUTHBEARER"


def as_listener(settings: ListenerSettings, bound: Address) -> Listener:
    """Return a listener as clients know it.

    Args:
        bound: has the port that was chosen, where the settings leave it open.
    """
    advertised = settings.advertised
    return Listener(
        settings.name, settings.protocol, advertised.host, advertised.port or bound.port
    )


class Listening:
    """Contexts of TLS and keys of tokens: loaded from files, and kept up to date.

    Modules of TLS and SASL are imported only where a listener needs them.
    """

    def __init__(self, settings: ServerSettings, listeners: Sequence[Listener]) -> None:
        """
        Raises:
            PenstockError: a file isn't there, isn't what it should be, or may be read by others.
        """
        self._settings = settings
        self._looks: list[Callable[[], None]] = []
        self._check_token: CheckToken | None = None
        protocols = {listener.protocol for listener in listeners}
        self._contexts = {
            protocol: self._open_context(protocol) for protocol in protocols if protocol.has_tls
        }
        self.name_client: ClientNames | None = None
        """Names clients of SSL by their certificates; None: they show none."""
        if Protocol.SSL in protocols and settings.ssl_client_auth != "none":
            rules = parse_rules(settings.ssl_principal_mapping_rules)
            self.name_client = partial(name_client, rules)
        self._has_sasl = any(protocol.has_sasl for protocol in protocols)

    def context(self, listener: Listener) -> Callable[[], ssl.SSLContext] | None:
        """Return what gives the newest context of a listener; None: it has no TLS."""
        return self._contexts.get(listener.protocol)

    def authenticator(
        self,
        credentials: "Callable[[], Credentials]",
        passwords: "PasswordChecks",
        *,
        clock: Clock,
        random: Random,
    ) -> "Authenticator | None":
        """Return what authenticates clients by SASL; None: no listener asks for it.

        Raises:
            PenstockError: the keys of tokens can't be loaded.
        """
        if not self._has_sasl:
            return None
        from penstock.security.authenticator import Authenticator

        settings = self._settings
        enabled = mechanisms(settings)
        return Authenticator(
            enabled,
            credentials=credentials,
            passwords=passwords,
            check_token=self.token_check(clock),
            clock=clock,
            random=random,
            failure_delay_s=settings.connection_failed_authentication_delay_ms / 1000,
            reauthenticate_ms=settings.connections_max_reauth_ms,
        )

    def token_check(self, clock: Clock) -> "CheckToken | None":
        """Return what checks tokens; None: none are taken.

        Raises:
            PenstockError: the keys of tokens can't be loaded.
        """
        settings = self._settings
        is_wanted = self._has_sasl or bool(settings.http and settings.sasl_oauthbearer_jwks)
        if self._check_token is None and is_wanted and _OAUTHBEARER in mechanisms(settings):
            self._check_token = self._open_tokens(clock)
        return self._check_token

    def add_look(self, look: Callable[[], None]) -> None:
        """Have one more file looked at, by a call in a thread."""
        self._looks.append(look)

    def jobs(self, pool: Executor) -> Sequence[Job]:
        """Return the work that follows the files; none where there are none.

        Args:
            pool: reads them.
        """
        if not self._looks:
            return ()
        return (Job(name="files of listeners", interval_s=LOOK_S, run=partial(self._look, pool)),)

    async def _look(self, pool: Executor) -> None:
        loop = asyncio.get_running_loop()
        for look in self._looks:
            await loop.run_in_executor(pool, look)

    def _open_context(self, protocol: Protocol) -> Callable[[], ssl.SSLContext]:
        from penstock.security.tls.contexts import TlsContexts, TlsSettings

        settings = self._settings
        # As in Kafka, clients of SASL show who they are by SASL alone.
        asks = protocol is Protocol.SSL and settings.ssl_client_auth != "none"
        contexts = TlsContexts(
            TlsSettings(
                certificate=Path(settings.ssl_certificate),
                key=Path(settings.ssl_key) if settings.ssl_key else None,
                ca=Path(settings.ssl_ca) if asks else None,
                client_auth=settings.ssl_client_auth if asks else "none",
                version_min=settings.ssl_protocol_min,
            )
        )
        self._looks.append(contexts.look)
        return lambda: contexts.current

    def _open_tokens(self, clock: Clock) -> "CheckToken":
        from penstock.security.tokens import TokenRules, Tokens

        settings = self._settings
        tokens = Tokens(
            Path(settings.sasl_oauthbearer_jwks),
            TokenRules(
                issuer=settings.sasl_oauthbearer_expected_issuer,
                audiences=audiences(settings),
                algorithms=algorithms(settings),
                user_claim=settings.sasl_oauthbearer_sub_claim_name,
                skew_s=settings.sasl_oauthbearer_clock_skew_ms / 1000,
            ),
            now_ms=clock.now_ms,
        )
        self._looks.append(tokens.look)
        return tokens.check


def name_client(rules: Sequence[Rule], certificate: bytes) -> str:
    """Return the principal of a client's certificate, which its authority vouches for.

    Args:
        certificate: DER.

    Raises:
        PenstockError: the certificate can't be read, or no rule matches its subject.
    """
    name = subject(certificate)
    user = map_name(rules, name)
    if user is None:
        raise InvalidRequestError(
            "name client",
            repr(name),
            "no rule of ssl_principal_mapping_rules matches",
            "add DEFAULT, or a rule for it",
        )
    return principals.of_user(user)
