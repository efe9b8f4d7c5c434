"""API keys of the HTTP port: what a key looks like, and what is kept of it. Pure.

A key is `psk_ID_SECRET`: 16 hexadecimal digits by which it is found, and 43 characters of URL-safe
base64 for 32 random bytes. The journal has SHA-256 of the secret. A password is salted and hashed
slowly since it can be guessed; of 256 random bits neither helps, and each request would pay for it.
"""

import base64
import hmac
import re
from hashlib import sha256
from typing import Final

from msgspec import Struct

PREFIX: Final = "psk_"
ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
DIGEST_BYTES: Final = 32
PRINCIPAL_LENGTH_MAX: Final = 255
NOTE_LENGTH_MAX: Final = 200
_KEY: Final = re.compile(r"psk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_ID: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key as the state holds it.

    Args:
        principal: who calls with it: `User:NAME`.
        note: for people: what it is for.
        expires_ms: by the wall clock; 0: never.
    """

    key_id: str
    digest: bytes
    principal: str
    note: str = ""
    expires_ms: int = 0

    def is_over(self, now_ms: int) -> bool:
        """Whether it has expired."""
        return bool(self.expires_ms) and now_ms >= self.expires_ms

    def fits(self, secret: str) -> bool:
        """Whether it is the key with this secret. Takes equally long wherever that differs."""
        return hmac.compare_digest(digest_of(secret), self.digest)

    def __repr__(self) -> str:
        return f"ApiKey({self.key_id}, {self.principal})"


def new_key(id_bytes: bytes, secret_bytes: bytes) -> tuple[str, str, str]:
    """Return the id, the secret and the whole text of a key made of random bytes."""
    key_id = id_bytes[:ID_BYTES].hex()
    secret = base64.urlsafe_b64encode(secret_bytes[:SECRET_BYTES]).rstrip(b"=").decode()
    return key_id, secret, f"{PREFIX}{key_id}_{secret}"


def parse_key(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a key; None: it isn't one."""
    found = _KEY.fullmatch(text)
    return None if found is None else (found[1], found[2])


def digest_of(secret: str) -> bytes:
    """Return what is kept of a secret."""
    return sha256(secret.encode()).digest()


def key_problem(key: ApiKey) -> str:
    """Say why a key can't be kept; "": it can."""
    if not _ID.fullmatch(key.key_id):
        return "the id of a key has 16 hexadecimal digits"
    if len(key.digest) != DIGEST_BYTES:
        return f"a digest of {len(key.digest)} bytes, {DIGEST_BYTES} are needed"
    kind, colon, name = key.principal.partition(":")
    if not (kind and colon and name) or len(key.principal) > PRINCIPAL_LENGTH_MAX:
        return (
            f"the principal {key.principal[:80]!r} is not TYPE:NAME of {PRINCIPAL_LENGTH_MAX}"
            " characters at most"
        )
    if len(key.note) > NOTE_LENGTH_MAX:
        return f"a note of {len(key.note)} characters, {NOTE_LENGTH_MAX} are allowed"
    if not 0 <= key.expires_ms < 1 << 53:
        return f"it expires at {key.expires_ms} ms, which is not a time"
    return ""
