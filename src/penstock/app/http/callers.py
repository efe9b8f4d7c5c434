"""Callers of the HTTP port are principals, under the rules of the Kafka port.

A caller shows `Authorization: Bearer CREDENTIAL`: the cluster's secret, an API key, or a token of
OAUTHBEARER. docs/security.md, "The HTTP port". Event loop only.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from penstock.kafka.access import OPEN, REFUSED, Access, Authority, refusal_text
from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.security import principals
from penstock.security.acl import CLUSTER_NAME, Operation, ResourceType
from penstock.security.api_key import ApiKey, parse_key
from penstock.security.audit import Audit
from penstock.security.errors import AuthenticationFailedError
from penstock.security.sasl.oauthbearer import TOKEN_BYTES_MAX

if TYPE_CHECKING:
    from penstock.security.sasl.oauthbearer import CheckToken

CLUSTER: Final = "Cluster:secret"
"""The principal of who holds the cluster's secret. No rule is asked about it."""
_SCHEME: Final = b"bearer "
_JWT_DOTS: Final = 2


class DeniedError(InvalidRequestError):
    """The rules don't let the caller do it: answered 403."""


class Accepting(Protocol):
    """Secrets, as `penstock.peers.secret` has them."""

    def accepts(self, header: str | bytes | None) -> bool:
        """Whether an Authorization header holds a secret."""
        ...


class Caller:
    """One request's caller.

    Args:
        principal: who it is; "": a caller whom nothing asks.
        shown: what it has shown, for people and logs: never the credential itself.
        is_live: whether the credential still is what it was.
        audit, host: where what it does is entered, and its address.
    """

    __slots__ = (
        "_access",
        "_audit",
        "_host",
        "_is_live",
        "call",
        "has_asked",
        "principal",
        "shown",
    )

    def __init__(
        self,
        principal: str,
        access: Access,
        shown: str,
        is_live: Callable[[], bool] = lambda: True,
        *,
        audit: Audit | None = None,
        host: str = "",
    ) -> None:
        self.principal = principal
        self.call = ""
        """The request's method and path, for the audit log."""
        self._audit = audit
        self._host = host
        self.shown = shown
        self._access = access
        self._is_live = is_live
        self.has_asked = access.is_unbounded
        """Whether a rule was asked, or none needs to be."""

    @property
    def is_unbounded(self) -> bool:
        """Whether it may do everything."""
        return self._access.is_unbounded

    @property
    def is_live(self) -> bool:
        """Whether it may go on: its key is not revoked, its key or token has not expired."""
        return self._is_live()

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether an operation on a resource is allowed.

        Raises:
            RetryableError: this agent hasn't reached the journal for too long to know.
        """
        self.has_asked = True
        error = self._access.error(operation, kind, name)
        if self._audit is not None:
            self._audit.decided(
                "http",
                self.principal,
                self._host,
                self.call,
                "",
                operation,
                kind,
                name,
                allowed=not error,
            )
        if not error:
            return True
        if error is REFUSED[kind]:
            return False
        raise RetryableError("authorize", f"{kind.name} {name}", refusal_text(error))

    def need(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raises: DeniedError: the operation isn't allowed; RetryableError: see `may`."""
        if not self.may(operation, kind, name):
            raise self._denied(operation, kind, name)

    def need_topic(self, name: str | None, *operations: Operation) -> None:
        """The same of a topic. None: a topic that is gone, of which no rule can be asked: it takes
        a caller who may do everything."""
        for operation in operations:
            if name is not None:
                self.need(operation, ResourceType.TOPIC, name)
            elif not self.is_unbounded:
                self.has_asked = True
                raise self._denied(operation, ResourceType.TOPIC, "(deleted)")

    def need_cluster(self, operation: Operation) -> None:
        """The same of the cluster."""
        self.need(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def need_some_topic(self, *operations: Operation) -> None:
        """Raises: DeniedError: there can be no topic on which one of these is allowed."""
        self.has_asked = True
        if all(self._access.some_topic(operation) for operation in operations):
            raise self._denied(operations[0], ResourceType.TOPIC, "(any)")

    def ask_nothing(self) -> None:
        """Say that this request names nothing that a rule could be about."""
        self.has_asked = True

    def _denied(self, operation: Operation, kind: ResourceType, name: str) -> DeniedError:
        what = operation.name.lower().replace("_", "-")
        return DeniedError(
            "authorize",
            self.principal,
            f"it may not {what} {kind.name.lower()} {name[:200]!r}",
            "an access rule must allow it: penstock acl add",
        )


EVERYONE: Final = Caller("", OPEN, "nothing")
"""Every caller of a port that asks for nothing."""


class Callers:
    """Tells callers from their credentials.

    Args:
        secret: the cluster's; None: there is none.
        own: a secret that this process alone knows, for calls of itself.
        authority: None: there is no authorizer, so that each caller may do everything.
        keys: returns the API keys by id.
        check_token: None: tokens are not taken.
        now_ms: returns the time of the wall clock.
        audit: None: there is no audit log.
    """

    def __init__(
        self,
        *,
        secret: Accepting | None = None,
        own: Accepting | None = None,
        authority: Authority | None = None,
        keys: Callable[[], Mapping[str, ApiKey]] = dict,
        check_token: "CheckToken | None" = None,
        now_ms: Callable[[], int] = lambda: 0,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit
        self._secret = secret
        self._own = own
        self._authority = authority
        self._keys = keys
        self._check_token = check_token
        self._now_ms = now_ms

    @property
    def asks(self) -> bool:
        """Whether callers must show something, or rules say what they may do."""
        return self._secret is not None or self._authority is not None

    @property
    def has_authorizer(self) -> bool:
        """Whether rules say what callers may do."""
        return self._authority is not None

    @property
    def takes_anyone(self) -> bool:
        """Whether a caller who shows nothing is served, as far as rules let it."""
        return self._secret is None

    def identify(self, header: bytes | None, host: str) -> Caller:
        """Return who sends a request.

        Args:
            header: of Authorization; None: there is none.
            host: the caller's address.

        Raises:
            AuthenticationFailedError: it shows nothing, or nothing that is taken.
        """
        if header is None:
            if not self.takes_anyone:
                raise AuthenticationFailedError("no Authorization header")
            return self._caller(principals.ANONYMOUS, host, "nothing")
        for secret in (self._secret, self._own):
            if secret is not None and secret.accepts(header):
                shown = "the cluster's secret"
                return Caller(CLUSTER, OPEN, shown, audit=self._audit, host=host)
        try:
            return self._by_bearer(header, host)
        except AuthenticationFailedError:
            if self.asks:
                raise
            # A program that knows a secret also calls servers that ask for none.
            return self._caller(principals.ANONYMOUS, host, "nothing that is asked for")

    def _by_bearer(self, header: bytes, host: str) -> Caller:
        if header[: len(_SCHEME)].lower() != _SCHEME or len(header) > TOKEN_BYTES_MAX:
            raise AuthenticationFailedError("the Authorization header is not of scheme Bearer")
        text = header[len(_SCHEME) :].decode("latin-1").strip()
        parsed = parse_key(text)
        if parsed is not None:
            return self._by_key(*parsed, host)
        if self._check_token is None or text.count(".") != _JWT_DOTS:
            raise AuthenticationFailedError("neither a secret, a key nor a token that is taken")
        token = self._check_token(text)
        return self._caller(
            principals.of_user(token.user),
            host,
            "a token",
            lambda: self._now_ms() < token.expires_ms,
        )

    def _by_key(self, key_id: str, secret: str, host: str) -> Caller:
        key = self._keys().get(key_id)
        # One text for all: who guesses ids learns nothing.
        if key is None or not key.fits(secret) or key.is_over(self._now_ms()):
            raise AuthenticationFailedError("the API key is unknown, revoked or over")
        return self._caller(
            key.principal,
            host,
            f"key {key_id}",
            lambda: self._keys().get(key_id) is key and not key.is_over(self._now_ms()),
        )

    def _caller(
        self, principal: str, host: str, shown: str, is_live: Callable[[], bool] = lambda: True
    ) -> Caller:
        authority = self._authority
        access = OPEN if authority is None else Access(authority, principal, host)
        return Caller(principal, access, shown, is_live, audit=self._audit, host=host)

    def note_stranger(self, host: str, call: str) -> None:
        """Enter a caller that is refused into the audit log."""
        if self._audit is not None:
            self._audit.refused("http", host, call)
