"""The cluster's shared secret: how it is shown (never), sent and checked."""

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from penstock.model.errors import InvalidRequestError

SECRET_BYTES_MIN: Final = 16
SECRETS_MAX: Final = 2
"""Secrets that are taken at one time."""
_SCHEME: Final = b"bearer "


class ClusterSecret:
    """A secret that all agents of a cluster share. It is in no `repr`, text or error.

    Raises:
        InvalidRequestError: shorter than 16 bytes, or not what a header can hold.
    """

    __slots__ = ("_digest", "_header")

    def __init__(self, text: str) -> None:
        text = text.strip()
        if not text.isascii() or not text.isprintable() or " " in text:
            raise InvalidRequestError(
                "use secret", "cluster_secret", "it must be printable ASCII without spaces"
            )
        if len(text) < SECRET_BYTES_MIN:
            raise InvalidRequestError(
                "use secret",
                "cluster_secret",
                f"it has {len(text)} characters, {SECRET_BYTES_MIN} are needed",
                "make one, for example with: openssl rand -hex 32",
            )
        self._header = f"Bearer {text}"
        self._digest = sha256(text.encode()).digest()

    @property
    def header(self) -> str:
        """The value of the Authorization header of calls."""
        return self._header

    @property
    def text(self) -> str:
        """The secret itself, for a child process's environment alone."""
        return self._header.partition(" ")[2]

    def accepts(self, header: str | bytes | None) -> bool:
        """Whether an Authorization header holds the secret. Takes equally long wherever it
        differs: digests are compared, so that not even the length shows."""
        if header is None:
            return False
        raw = header.encode("latin-1", "replace") if isinstance(header, str) else header
        if raw[: len(_SCHEME)].lower() != _SCHEME:
            return False
        return hmac.compare_digest(sha256(raw[len(_SCHEME) :].strip()).digest(), self._digest)

    def __repr__(self) -> str:
        return "ClusterSecret(...)"


class RotatingSecret(ClusterSecret):
    """A secret, or two while it is being changed: the first is sent, both are accepted.

    Any thread: what is sent and what is accepted are each read at once.

    Raises:
        InvalidRequestError: one isn't a secret.
    """

    __slots__ = ("_every",)

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(texts[0])
        self._every = tuple(map(ClusterSecret, texts))

    @staticmethod
    def lines(text: str) -> list[str]:
        """Return the secrets in a file's text.

        Raises:
            InvalidRequestError: there is none, or there are more than two.
        """
        found = [line.strip() for line in text.splitlines() if line.strip()]
        if not 1 <= len(found) <= SECRETS_MAX:
            raise InvalidRequestError(
                "read secret",
                "cluster_secret_file",
                f"it holds {len(found)} lines",
                "one secret, or two while it is being changed: the first is sent, both are taken",
            )
        return found

    def replace(self, texts: Sequence[str]) -> None:
        """Take these from now on."""
        self._every = tuple(map(ClusterSecret, texts))

    @property
    def header(self) -> str:
        """See `ClusterSecret`."""
        return self._every[0].header

    @property
    def text(self) -> str:
        """See `ClusterSecret`."""
        return self._every[0].text

    def accepts(self, header: str | bytes | None) -> bool:
        """See `ClusterSecret`."""
        # All are compared, so that the time doesn't say which.
        found = [each.accepts(header) for each in self._every]
        return any(found)
