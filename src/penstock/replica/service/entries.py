"""The entries of a replicated service's journal, and what is kept of their answers. Pure.

docs/formats/replica-service.md has the tables.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import msgspec

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.model.malformed import MALFORMED

ENTRY_VERSION: Final = 1
RESERVED: Final = "!"
"""The first character of the clients of the library's own items."""
HISTORY: Final = "!history"
CLAIM: Final = "!claim"
COMPARE: Final = "!compare"
DIGEST: Final = "!digest"
SEED_BYTES: Final = 16
CLIENT_CHARACTERS_MAX: Final = 200
NUMBER_MAX: Final = (1 << 63) - 1
VALUE_BYTES_MAX: Final = 1 << 20


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One value of a client, under a number. `seed`: an entry's randomness comes from it."""

    client: str
    number: int
    seed: bytes
    value: msgspec.Raw


class NewHistory(msgspec.Struct, frozen=True, array_like=True):
    """Begin a history, unless one has begun since a journal time, up to which some are lost."""

    lost_ms: int
    history: bytes


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """An instance takes a snapshot, for so many milliseconds alone."""

    instance: int
    hold_ms: int


class Digest(msgspec.Struct, frozen=True, array_like=True):
    """An instance's digests of its tables' state at a position."""

    instance: int
    position: int
    digest_version: int
    version: int
    """The machine's."""
    tables: dict[str, bytes]


class Kind(IntEnum):
    """The numbers are stored."""

    DONE = 0
    REFUSED = 1
    """The machine has refused it, with this text."""
    FAILED = 2
    """The machine has raised an error, of this type."""
    FORGOTTEN = 3
    """The number is too old for its answer to be known. Never stored."""
    OTHER_VALUE = 4
    """The number has been used with another value. Never stored."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of one item. `value`: msgpack; `seed`: the item's: its sender knows it."""

    client: str
    number: int
    position: int
    kind: Kind
    value: bytes
    seed: bytes
    is_repeat: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()
_items = msgspec.msgpack.Decoder(list[Item])
_history = msgspec.msgpack.Decoder(NewHistory)
_claim = msgspec.msgpack.Decoder(Claim)
_digest = msgspec.msgpack.Decoder(Digest)


def pack(value: object) -> bytes:
    """Give the bytes of a value of None, bool, int, float, str, bytes, list and dict.

    Raises:
        InvalidRequestError: it isn't one, or is too large.
    """
    try:
        packed = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(
            "pack",
            "value",
            str(error),
            "use None, bool, int, float, str, bytes, lists and dicts",
        ) from error
    if len(packed) > VALUE_BYTES_MAX:
        detail = f"{len(packed):,} bytes, {VALUE_BYTES_MAX:,} are allowed"
        raise InvalidRequestError("pack", "value", detail)
    return packed


def unpack(packed: bytes | msgspec.Raw) -> Any:
    """Read a value. Raises: CorruptDataError."""
    try:
        return _decoder.decode(packed)
    except MALFORMED as error:
        raise _corrupt(str(error)) from error


def encode_own(value: object) -> bytes:
    """Give the bytes of an item of the library's own."""
    return _encoder.encode(value)


def item(client: str, number: int, seed: bytes, packed: bytes) -> Item:
    """Make an item of a packed value."""
    return Item(client, number, seed, msgspec.Raw(packed))


def encode(items: list[Item]) -> bytes:
    """Give an entry's bytes."""
    return bytes([ENTRY_VERSION]) + _encoder.encode(items)


def decode(body: bytes) -> list[Item]:
    """Read an entry. Raises: CorruptDataError: it is damaged, or a newer release wrote it."""
    if body[:1] != bytes([ENTRY_VERSION]):
        raise _corrupt(f"version {body[0] if body else None}, not {ENTRY_VERSION}")
    try:
        return _items.decode(memoryview(body)[1:])
    except MALFORMED as error:
        raise _corrupt(str(error)) from error


def history_of(found: Item) -> NewHistory:
    """Read such an item. Raises: CorruptDataError."""
    try:
        return _history.decode(found.value)
    except MALFORMED as error:
        raise _corrupt(str(error)) from error


def claim_of(found: Item) -> Claim:
    """Read such an item. Raises: CorruptDataError."""
    try:
        return _claim.decode(found.value)
    except MALFORMED as error:
        raise _corrupt(str(error)) from error


def digest_in(value: bytes) -> Digest:
    """Read what such an item says. Raises: CorruptDataError."""
    try:
        return _digest.decode(value)
    except MALFORMED as error:
        raise _corrupt(str(error)) from error


def _corrupt(detail: str) -> CorruptDataError:
    return CorruptDataError("read entry", "journal of a replicated service", detail)
