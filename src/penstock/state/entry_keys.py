"""The key of a journal entry, read from the first bytes of its body without decoding the rest.

A follower sees the entries of all agents; what it wants to know of most is whose they are.
"""

from penstock.model.errors import CorruptDataError
from penstock.order.protocol import EntryKey
from penstock.state.entries import ENTRY_VERSION

_ENTRY_FIELDS = 5
_FIXARRAY = 0x90
_LENGTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""MessagePack's unsigned integers by their first byte."""


def entry_key(body: bytes) -> EntryKey:
    """The key in an entry's body.

    Raises:
        CorruptDataError: these bytes are not an entry's.
    """
    try:
        if body[0] == ENTRY_VERSION and body[1] == _FIXARRAY | _ENTRY_FIELDS:
            agent, place = _unsigned(body, 2)
            epoch, place = _unsigned(body, place)
            n, _ = _unsigned(body, place)
            return EntryKey(agent, epoch, n)
    except (IndexError, KeyError):
        pass
    raise CorruptDataError("read entry key", f"{len(body)} bytes", f"begin {body[:8].hex()}")


def _unsigned(body: bytes, place: int) -> tuple[int, int]:
    """An integer and where the next value begins."""
    first = body[place]
    if first < 0x80:
        return first, place + 1
    end = place + 1 + _LENGTHS[first]
    if end > len(body):
        raise IndexError
    return int.from_bytes(body[place + 1 : end], "big"), end
