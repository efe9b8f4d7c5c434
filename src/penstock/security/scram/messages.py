"""The messages of a SCRAM exchange: RFC 5802, section 7. Pure.

A message that is longer than `MESSAGE_BYTES_MAX`, that has an attribute out of order, or that asks
for an extension that must be understood is refused.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final

from penstock.security.errors import AuthenticationFailedError

MESSAGE_BYTES_MAX: Final = 8192
NONCE_LENGTH_MAX: Final = 1024
_PRINTABLE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_ESCAPES: Final = re.compile(r"=(?:2C|3D)")


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message. `bare` is the part that is signed; `gs2_header` is what the
    client must repeat in its last message, so that an attacker can't have it think that the server
    takes no channel binding."""

    gs2_header: str
    bare: str
    username: str
    authzid: str
    nonce: str
    extensions: dict[str, str]


@dataclass(frozen=True, slots=True)
class ClientFinal:
    """The client's last message. `without_proof` is the part that is signed."""

    channel_binding: bytes
    nonce: str
    proof: bytes
    without_proof: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Read a client's first message.

    Raises:
        AuthenticationFailedError: the message is malformed, or asks for channel binding.
    """
    text = _text(message)
    flag, comma, rest = text.partition(",")
    authzid, second, bare = rest.partition(",")
    if not comma or not second:
        raise _malformed("the first message has no GS2 header")
    if flag.startswith("p="):
        raise AuthenticationFailedError("channel binding is not supported")
    if flag not in {"n", "y"}:
        raise _malformed("the GS2 header begins with another letter than n, y or p")
    name = ""
    if authzid:
        if not authzid.startswith("a="):
            raise _malformed("the GS2 header has another attribute than a")
        name = _unescaped(authzid[2:])
    attributes = bare.split(",")
    if attributes[0].startswith("m="):
        raise AuthenticationFailedError("an extension that must be understood is not supported")
    if len(attributes) < 2:
        raise _malformed("the first message lacks a username or a nonce")
    username = _unescaped(_attribute(attributes[0], "n"))
    if not username:
        raise _malformed("the username is empty")
    return ClientFirst(
        gs2_header=f"{flag},{authzid},",
        bare=bare,
        username=username,
        authzid=name,
        nonce=_nonce(_attribute(attributes[1], "r")),
        extensions=_extensions(attributes[2:]),
    )


def parse_client_final(message: bytes) -> ClientFinal:
    """Read a client's last message.

    Raises:
        AuthenticationFailedError: the message is malformed.
    """
    text = _text(message)
    without_proof, found, proof = text.rpartition(",p=")
    if not found:
        raise _malformed("the last message has no proof")
    attributes = without_proof.split(",")
    if len(attributes) < 2:
        raise _malformed("the last message lacks its channel binding or nonce")
    _extensions(attributes[2:])
    return ClientFinal(
        channel_binding=_base64(_attribute(attributes[0], "c")),
        nonce=_nonce(_attribute(attributes[1], "r")),
        proof=_base64(proof),
        without_proof=without_proof,
    )


def server_first(*, nonce: str, salt: bytes, iterations: int) -> str:
    """Write the server's first message."""
    return f"r={nonce},s={base64.b64encode(salt).decode()},i={iterations}"


def server_final(signature: bytes) -> str:
    """Write the server's last message, by which it proves that it knows the credential."""
    return f"v={base64.b64encode(signature).decode()}"


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise _malformed(f"{len(message)} bytes, allowed are {MESSAGE_BYTES_MAX}")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise _malformed("the message is not UTF-8") from None
    if "\0" in text:
        raise _malformed("the message holds a NUL")
    return text


def _attribute(text: str, name: str) -> str:
    if not text.startswith(f"{name}="):
        raise _malformed(f"attribute {name} is missing or out of order")
    return text[2:]


def _nonce(text: str) -> str:
    if len(text) > NONCE_LENGTH_MAX or _PRINTABLE.fullmatch(text) is None:
        raise _malformed("the nonce is empty, too long or not printable")
    return text


def _extensions(attributes: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for attribute in attributes:
        name, equals, value = attribute.partition("=")
        if not (equals and name.isascii() and name.isalpha()):
            raise _malformed("an extension is not NAME=VALUE")
        found[name] = value
    return found


def _unescaped(text: str) -> str:
    """Read a saslname, in which a comma is =2C and an equals sign =3D."""
    if _ESCAPES.sub("", text).count("="):
        raise _malformed("a name has an = that stands for nothing")
    return text.replace("=2C", ",").replace("=3D", "=")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("a value is not base64") from None


def _malformed(detail: str) -> AuthenticationFailedError:
    return AuthenticationFailedError(f"malformed SCRAM message: {detail}")
