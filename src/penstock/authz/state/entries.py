"""The entries of authorization journals, and the answers that applying them gives. Pure.

An entry is a version byte and a msgpack array: the environment's name, and commands that are
applied in order. docs/formats/authz.md has the tables.
"""

from typing import Final, TypeAlias

import msgspec

from penstock.model.errors import CorruptDataError

ENTRY_VERSION: Final = 1
REQUEST_KEY_BYTES: Final = 16

Argument: TypeAlias = tuple[str | None, str | None]
"""Type and id. Inserts have both; in a delete None matches any."""
SignatureRow: TypeAlias = tuple[str, tuple[str, ...]]
"""Predicate and types of a kind of fact."""


class _Base(msgspec.Struct, frozen=True, array_like=True):
    """Structs of entries are arrays, whose fields are only ever added at the end."""


class Begin(_Base, frozen=True, tag="begin"):
    """Begins a history, which `log` names in tokens: the first entry of an environment, and the
    first one after a recovery."""

    log: bytes


class Insert(_Base, frozen=True, tag="i"):
    """A fact to store."""

    predicate: str
    arguments: tuple[Argument, ...]


class Delete(_Base, frozen=True, tag="d"):
    """A pattern whose facts are deleted."""

    predicate: str
    arguments: tuple[Argument, ...]


class Write(_Base, frozen=True, tag="write"):
    """One transaction of changes, in order. `request` recognises a repeated one; empty: none."""

    request: bytes
    changes: tuple[Insert | Delete, ...]


class Clear(_Base, frozen=True, tag="clear"):
    """Deletes all facts; the policy stays."""

    request: bytes


class SetPolicy(_Base, frozen=True, tag="policy"):
    """A policy that its proposer has parsed, checked and tested against version `base`."""

    request: bytes
    base: int
    filename: str
    source: str
    signatures: tuple[SignatureRow, ...]


class CreateEnvironment(_Base, frozen=True, tag="environment"):
    """The directory learns of an environment.

    Args:
        log: begins its history, where environments share a journal; else it begins by itself.
    """

    name: str
    log: bytes = b""


class AddKey(_Base, frozen=True, tag="key"):
    """A key of an environment: `hash` is the SHA-256 of its text, which is kept nowhere."""

    number: str
    environment: str
    hash: bytes
    scope: str
    name: str


class RevokeKey(_Base, frozen=True, tag="revoke"):
    """The service stops accepting a key."""

    number: str


EnvironmentCommand: TypeAlias = Begin | Write | Clear | SetPolicy
DirectoryCommand: TypeAlias = CreateEnvironment | AddKey | RevokeKey
Command: TypeAlias = EnvironmentCommand | DirectoryCommand


class Entry(_Base, frozen=True):
    """The content of one journal entry; the directory's has an empty environment."""

    environment: str
    commands: tuple[Begin | Write | Clear | SetPolicy | CreateEnvironment | AddKey | RevokeKey, ...]


class Done(msgspec.Struct, frozen=True):
    """A command was applied.

    Args:
        position: of its entry; of the first one where the request was repeated.
        changed: how many facts it stored or deleted, or whether it changed the policy.
    """

    position: int
    changed: int
    repeated: bool = False


class Refused(msgspec.Struct, frozen=True):
    """A command changed nothing: a reason, and what it is about."""

    reason: str
    signatures: tuple[SignatureRow, ...] = ()
    number: int = 0


Outcome: TypeAlias = Done | Refused

# Reasons.
UNKNOWN_FACT: Final = "unknown fact"
TOO_MANY_DELETED: Final = "too many deleted"
VERSION_MOVED: Final = "policy version moved"
FACTS_IN_USE: Final = "facts in use"
EXISTS: Final = "exists"
MISSING: Final = "missing"
TOO_MANY: Final = "too many"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """Give an entry's bytes."""
    return bytes([ENTRY_VERSION]) + _encoder.encode(entry)


def decode(body: bytes) -> Entry:
    """Read an entry.

    Raises:
        CorruptDataError: it is damaged, or a newer release wrote it.
    """
    if not body or body[0] != ENTRY_VERSION:
        version = body[0] if body else None
        raise CorruptDataError(
            "read entry", "authorization journal", f"version {version}, not {ENTRY_VERSION}"
        )
    try:
        return _decoder.decode(memoryview(body)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptDataError("read entry", "authorization journal", str(error)) from error
