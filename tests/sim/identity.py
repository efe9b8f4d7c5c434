"""What tells a record from all others, for whoever reads it.

Most records have no key, and their value tells them. In topics that are compacted by key a header
does, which a tombstone has as well; it says the key and whether there is a value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
