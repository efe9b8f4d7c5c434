"""Tokens for reading one's own writes. Pure.

A token names a history (`log`) and a position in it. It is opaque to clients, and safe in a header:

| offset | size | field |
| --- | --- | --- |
| 0 | 1 | version, 1 |
| 1 | 8 | log |
| 9 | 8 | position, big-endian |
| 17 | 4 | CRC-32C of the bytes before |

in base64url without padding.
"""

import base64
import binascii
import hashlib
from struct import Struct
from typing import Final

from crc32c import crc32c

LOG_BYTES: Final = 8
_VERSION: Final = 1
_TOKEN: Final = Struct(">B8sQ")
_CRC: Final = Struct(">I")
_TEXT_MAX: Final = 64


def encode(log: bytes, position: int) -> str:
    """Give the token of a position."""
    raw = _TOKEN.pack(_VERSION, log, position)
    return base64.urlsafe_b64encode(raw + _CRC.pack(crc32c(raw))).rstrip(b"=").decode()


def decode(text: str, log: bytes) -> int:
    """Give the position of a token; 0 for one that isn't of this history.

    A token that another environment gave, that a restore has made void, or that isn't one at all
    asks for nothing: an error would make its client useless until it is started again.
    """
    found = _parsed(text)
    return found[1] if found is not None and found[0] == log else 0


def log_of(text: str) -> bytes | None:
    """Give the history that a token names; None: it isn't a token."""
    found = _parsed(text)
    return None if found is None else found[0]


def log_in(log: bytes, history: bytes) -> bytes:
    """Give what names an environment's history in a shard's."""
    return hashlib.sha256(log + history).digest()[:LOG_BYTES] if history else log


def _parsed(text: str) -> tuple[bytes, int] | None:
    """The log and position of a token."""
    if len(text) > _TEXT_MAX:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) != _TOKEN.size + _CRC.size:
        return None
    version, log, position = _TOKEN.unpack_from(raw)
    (crc,) = _CRC.unpack_from(raw, _TOKEN.size)
    if version != _VERSION or crc != crc32c(raw[: _TOKEN.size]):
        return None
    return log, position
