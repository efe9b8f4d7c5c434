"""Entries of the journal: what one agent appends at once. Pure.

An entry holds everything that was waiting, so that many producers share one durable write. Its
bytes are a version byte, then MessagePack arrays (docs/formats/journal.md).
"""

from typing import Final

import msgspec
from msgspec import Struct

from penstock.model.errors import CorruptDataError
from penstock.model.malformed import MALFORMED
from penstock.replica.beginning import decode_beginning, is_beginning
from penstock.state.commands import AnyCommand

ENTRY_VERSION: Final = 1


class Entry(Struct, frozen=True, array_like=True, kw_only=True):
    """One append of one agent: (agent, epoch, n) is its key, `stamp_ms` the agent's own clock. The
    journal's stamp, of the database where there is one, lies next to the body."""

    agent: int
    epoch: int
    n: int
    stamp_ms: int
    commands: list[AnyCommand]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)
_VERSION_BYTE: Final = bytes([ENTRY_VERSION])


def encode_entry(entry: Entry) -> bytes:
    """The entry's bytes in the journal."""
    return _VERSION_BYTE + _encoder.encode(entry)


def decode_entry(body: bytes, *, position: int) -> Entry:
    """Parse a journal entry.

    Raises:
        CorruptDataError: an unknown version or command, or damaged bytes. An agent that meets
            one stops; an entry is never skipped.
        InvalidRequestError: a newer release's row that says where a journal begins.
    """
    if is_beginning(body):
        raise CorruptDataError(
            "read journal entry",
            f"position {position}",
            "it is not an entry: this journal begins after the snapshot"
            f" {decode_beginning(body, position=position).snapshot.key}",
            "make the state of that snapshot",
        )
    if not body or body[0] != ENTRY_VERSION:
        version = body[0] if body else "none"
        raise CorruptDataError(
            "read journal entry",
            f"position {position}",
            f"version {version}, this release knows {ENTRY_VERSION}",
            "open it with the release that wrote it, or a later one",
        )
    try:
        return _decoder.decode(memoryview(body)[1:])
    except MALFORMED as error:
        raise CorruptDataError(
            "read journal entry", f"position {position}", f"{len(body)} bytes: {error}"
        ) from error
