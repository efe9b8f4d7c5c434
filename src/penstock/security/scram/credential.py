"""SCRAM credentials: what is stored of a password, and how it is derived. Pure.

A password itself is stored nowhere. The salted password, which would suffice to log in as the
user, is not stored either: only the two keys that RFC 5802, section 3 derives from it.
"""

import enum
import hashlib
import hmac
from typing import Final

from msgspec import Struct

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""Kafka's bounds for both mechanisms: a greater count would let a client keep a thread busy."""


class ScramMechanism(enum.IntEnum):
    """The numbers are Kafka's, on the wire and in the journal."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def hash_name(self) -> str:
        """Name of the hash function for `hashlib`."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """Length of the hash function's values."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    @property
    def sasl_name(self) -> str:
        """Name in SASL's handshake."""
        return "SCRAM-SHA-256" if self is ScramMechanism.SHA_256 else "SCRAM-SHA-512"


BY_SASL_NAME: Final = {one.sasl_name: one for one in ScramMechanism}


class ScramCredential(Struct, frozen=True, kw_only=True):
    """The stored form of one user's password, for one mechanism."""

    mechanism: ScramMechanism
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        # A credential may stand in an error or a trace; its keys must not.
        return f"ScramCredential({self.mechanism.sasl_name}, iterations={self.iterations})"


def salt_password(
    mechanism: ScramMechanism, password: bytes, *, salt: bytes, iterations: int
) -> bytes:
    """Return RFC 5802's SaltedPassword. Takes milliseconds: not for the event loop."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)


def derive(
    mechanism: ScramMechanism, salted_password: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """Derive what is stored from a salted password."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash_name)
    return ScramCredential(
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", mechanism.hash_name),
    )


def has_password(credential: ScramCredential, password: bytes) -> bool:
    """Whether a password is the credential's, for mechanisms that send the password itself.

    Takes milliseconds: not for the event loop.
    """
    salted = salt_password(
        credential.mechanism, password, salt=credential.salt, iterations=credential.iterations
    )
    found = derive(
        credential.mechanism, salted, salt=credential.salt, iterations=credential.iterations
    )
    return hmac.compare_digest(found.stored_key, credential.stored_key)
