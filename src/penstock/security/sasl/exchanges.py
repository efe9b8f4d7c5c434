"""A mechanism's exchange with one client, and what its steps come to. Pure.

A step's outcome is a value: the caller checks passwords, which takes milliseconds, where that holds
nothing up.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.security.errors import AuthenticationFailedError
from penstock.security.scram.server import ScramServer

PLAIN: str = "PLAIN"
OAUTHBEARER: str = "OAUTHBEARER"
TEXT_LENGTH_MAX = 1024
"""Bytes of a username, or of a password, that PLAIN sends."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange goes on with these bytes to the client."""

    answer: bytes


@dataclass(frozen=True, slots=True)
class Proven:
    """The client is this user. `expires_ms`: when what it showed expires, by the wall clock."""

    user: str
    answer: bytes = b""
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CheckPassword:
    """The caller is to find out whether the user has the password. No repr: it would show it."""

    user: str
    password: bytes


Step: TypeAlias = Challenge | Proven | CheckPassword


class SaslExchange(Protocol):
    """One exchange of one mechanism."""

    def evaluate(self, message: bytes) -> Step:
        """Take the client's next message.

        Raises:
            AuthenticationFailedError: the client isn't who it says, or its message is malformed.
        """
        ...


class ScramExchange:
    """SCRAM-SHA-256 and SCRAM-SHA-512."""

    def __init__(self, server: ScramServer) -> None:
        self._server = server

    def evaluate(self, message: bytes) -> Step:
        """See `SaslExchange`."""
        answer = self._server.evaluate(message)
        if self._server.complete:
            return Proven(self._server.username, answer)
        return Challenge(answer)


class PlainExchange:
    """PLAIN (RFC 4616): one message of three texts, with a NUL between them."""

    def evaluate(self, message: bytes) -> Step:
        """See `SaslExchange`."""
        parts = message.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailedError(
                f"malformed PLAIN message: {len(parts)} parts, it has three"
            )
        authzid, name, password = parts
        if not name:
            raise AuthenticationFailedError("malformed PLAIN message: the username is empty")
        if not password:
            raise AuthenticationFailedError("malformed PLAIN message: the password is empty")
        if max(len(name), len(password)) > TEXT_LENGTH_MAX:
            raise AuthenticationFailedError(
                f"malformed PLAIN message: a text of more than {TEXT_LENGTH_MAX} bytes"
            )
        try:
            user = name.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailedError(
                "malformed PLAIN message: the username is not UTF-8"
            ) from None
        if authzid and authzid != name:
            raise AuthenticationFailedError(
                "the client asks for another authorization id than its username"
            )
        return CheckPassword(user, password)
