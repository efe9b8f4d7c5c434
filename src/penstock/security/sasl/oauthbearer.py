"""OAUTHBEARER (RFC 7628): one message with a token; a refusal is answered in JSON first. Pure."""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.security.errors import AuthenticationFailedError
from penstock.security.sasl.exchanges import Challenge, Proven, Step

SEPARATOR: Final = b"\x01"
TOKEN_BYTES_MAX: Final = 64 << 10
_REFUSED: Final = b'{"status":"invalid_token"}'
_BEARER: Final = "bearer "


class Token(NamedTuple):
    """A token that is right: its user, and when it expires by the wall clock."""

    user: str
    expires_ms: int


CheckToken = Callable[[str], Token]
"""Checks a token. Raises: AuthenticationFailedError: it isn't right, and why, for the log."""


class OauthBearerExchange:
    """One exchange."""

    def __init__(self, check_token: CheckToken) -> None:
        self._check_token = check_token
        self._refusal: AuthenticationFailedError | None = None

    def evaluate(self, message: bytes) -> Step:
        """See `SaslExchange`."""
        if self._refusal is not None:
            # The client has read the refusal, and says so with a separator.
            raise self._refusal
        authzid, token = parse_client_message(message)
        try:
            found = self._check_token(token)
            if authzid and authzid != found.user:
                raise AuthenticationFailedError(
                    "the client asks for another authorization id than its token's user"
                )
        except AuthenticationFailedError as refusal:
            self._refusal = refusal
            return Challenge(_REFUSED)
        return Proven(found.user, expires_ms=found.expires_ms)


def parse_client_message(message: bytes) -> tuple[str, str]:
    """Return the authorization id, or "", and the token.

    Raises:
        AuthenticationFailedError: the message is malformed.
    """
    if len(message) > TOKEN_BYTES_MAX:
        raise _malformed(f"{len(message)} bytes, allowed are {TOKEN_BYTES_MAX}")
    try:
        header, *pairs = message.decode().split("\x01")
    except UnicodeDecodeError:
        raise _malformed("it is not UTF-8") from None
    flag, comma, rest = header.partition(",")
    authzid, second, after = rest.partition(",")
    if not comma or not second or after or flag not in {"n", "y"}:
        raise _malformed("it has no GS2 header")
    if authzid and not authzid.startswith("a="):
        raise _malformed("the GS2 header has another attribute than a")
    if len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise _malformed("it doesn't end in two separators")
    values = dict(pair.partition("=")[::2] for pair in pairs[:-2])
    authorization = values.get("auth", "")
    if not authorization.lower().startswith(_BEARER):
        raise _malformed("it holds no bearer token")
    name = authzid[2:].replace("=2C", ",").replace("=3D", "=")
    return name, authorization[len(_BEARER) :].strip()


def _malformed(detail: str) -> AuthenticationFailedError:
    return AuthenticationFailedError(f"malformed OAUTHBEARER message: {detail}")
