"""What tells a record from all others, for whoever reads it.

Most records have no key, and their value tells them. In topics that are compacted by key a header
does, which a tombstone has as well; it says the key and whether there is a value.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from crc32c import crc32c

_LABEL = Struct(">qii")
KEYED = "keyed"
"""How the names of compacted topics begin."""
HEADER = "id"


def is_keyed(place: tuple[str, int]) -> bool:
    """Whether a partition is compacted by key."""
    return place[0].startswith(KEYED)


class Identity(NamedTuple):
    """Of a keyed record: `producer/number/key/` and whether it is a tombstone."""

    name: bytes
    key: bytes
    is_tombstone: bool

    @classmethod
    def parse(cls, name: bytes) -> Identity:
        """As `make` has written it."""
        _, _, key, kind = name.split(b"/", 3)
        return cls(name, key, kind == b"-")

    @classmethod
    def make(cls, producer: str, number: int, key: bytes, *, is_tombstone: bool) -> Identity:
        """A new one."""
        kind = b"-" if is_tombstone else b"+"
        return cls(b"%s/%d/%s/%s" % (producer.encode(), number, key, kind), key, is_tombstone)


def identity_of(record: Any) -> bytes:
    """What tells a record that was read or decoded from all others: of one without a key its value.

    One that isn't what its header says is told from all that were ever written.
    """
    if record.key is None:
        return record.value or b""
    name: bytes = dict(record.headers).get(HEADER) or b""
    if name.count(b"/") != 3:
        return b"keyed without a name: " + name
    identity = Identity.parse(name)
    value = record.value
    if record.key != identity.key or (value is None) != identity.is_tombstone:
        return b"changed: " + name
    if value is not None and value.rstrip(b"x") != name:
        return b"changed value: " + name
    return name


def labels_of(data: bytes) -> list[tuple[int, int]]:
    """Base offset and leader epoch of each batch, the last of which may be cut off."""
    found: list[tuple[int, int]] = []
    position = 0
    while position + 16 <= len(data):
        base, length, epoch = _LABEL.unpack_from(data, position)
        found.append((base, epoch))
        position += 12 + length
    return found


def are_batches(data: bytes, *, is_whole: bool = False) -> bool:
    """Whether the CRC of each batch is right.

    Args:
        is_whole: the last batch ends where the data does; else it may be cut off.
    """
    position = 0
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if end > len(data):
            return not is_whole
        crc = int.from_bytes(data[position + 17 : position + 21], "big")
        if crc32c(data[position + 21 : end]) != crc:
            return False
        position = end
    return position == len(data) or not is_whole
