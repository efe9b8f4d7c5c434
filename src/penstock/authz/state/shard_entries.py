"""The entries of a journal that many environments share, and the answers that a shard keeps. Pure.

An entry is a version byte and a msgpack array: who sent it under which number, and items. An item
names an environment and has one of its commands as bytes, which the shard passes on unread.
docs/formats/authz.md has the tables.
"""

from typing import Final, TypeAlias

import msgspec

from penstock.authz.state.entries import ENTRY_VERSION, Command, SetPolicy
from penstock.model.errors import CorruptDataError
from penstock.order.protocol import EntryKey

SHARD_VERSION: Final = 1
OPENING: Final = "!open"
"""In the place of an environment's name, which can't have its first character: the item opens an
epoch."""

CLAIM: Final = "!claim"
"""In the same place: an instance is going to take snapshots."""

HISTORY: Final = "!history"
"""In the same place: the journal has come back older, and tokens from before are void."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """A command of an environment; of the directory, if `environment` is empty.

    Args:
        is_alone: readers take over what it changes before anything after it is applied.
    """

    environment: str
    is_alone: bool
    command: msgspec.Raw


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """An instance opens an epoch: entries of its earlier ones are refused from here on."""

    cluster_id: str
    token: bytes
    software: str


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """An instance takes snapshots, for so many milliseconds alone."""

    hold_ms: int


class NewHistory(msgspec.Struct, frozen=True, array_like=True):
    """Begin a history, unless one has begun since a journal time, up to which some are lost."""

    lost_ms: int
    history: bytes


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """The content of one row of the journal."""

    agent: int
    epoch: int
    n: int
    stamp_ms: int
    items: list[Item]


class _Base(msgspec.Struct, frozen=True, array_like=True):
    """Answers are arrays that begin with their tag."""


class Placed(_Base, frozen=True, tag="p"):
    """A command has its place in the order of its environment: the position there of its entry,
    and the place in that entry. What applying it gives is known where it is applied."""

    position: int
    place: int


class Decided(_Base, frozen=True, tag="d"):
    """A command of the directory was applied."""

    position: int
    changed: int


class Denied(_Base, frozen=True, tag="r"):
    """A command changed nothing."""

    reason: str
    number: int = 0


class Unordered(_Base, frozen=True, tag="u"):
    """An entry was refused by its key; never stored."""

    detail: str
    ends_epoch: bool


ShardAnswer: TypeAlias = Placed | Decided | Denied | Unordered

_encoder = msgspec.msgpack.Encoder()
_entry_decoder = msgspec.msgpack.Decoder(ShardEntry)
_answers_decoder = msgspec.msgpack.Decoder(list[Placed | Decided | Denied | Unordered])
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_opening_decoder = msgspec.msgpack.Decoder(Opening)
_history_decoder = msgspec.msgpack.Decoder(NewHistory)
_claim_decoder = msgspec.msgpack.Decoder(Claim)
_MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def item(environment: str, command: Command) -> Item:
    """Make the item of a command."""
    is_alone = isinstance(command, SetPolicy)
    return Item(environment, is_alone, msgspec.Raw(_encoder.encode(command)))


def opening(cluster_id: str, token: bytes, software: str) -> Item:
    """Make the item that opens an epoch."""
    command = _encoder.encode(Opening(cluster_id, token, software))
    return Item(OPENING, is_alone=False, command=msgspec.Raw(command))


def claim(hold_ms: int) -> Item:
    """Make the item by which an instance claims the taking of snapshots."""
    command = _encoder.encode(Claim(hold_ms))
    return Item(CLAIM, is_alone=False, command=msgspec.Raw(command))


def encode(key: EntryKey, stamp_ms: int, items: list[Item]) -> bytes:
    """Give an entry's bytes."""
    entry = ShardEntry(key.agent, key.epoch, key.n, stamp_ms, items)
    return bytes([SHARD_VERSION]) + _encoder.encode(entry)


def decode(body: bytes) -> ShardEntry:
    """Read an entry. Raises: CorruptDataError: it is damaged, or a newer release wrote it."""
    if not body or body[0] != SHARD_VERSION:
        version = body[0] if body else None
        raise _corrupt(f"version {version}, not {SHARD_VERSION}")
    try:
        return _entry_decoder.decode(memoryview(body)[1:])
    except _MALFORMED as error:
        raise _corrupt(str(error)) from error


def key_of(body: bytes) -> EntryKey:
    """Read an entry's key. Raises: as `decode`."""
    entry = decode(body)
    return EntryKey(entry.agent, entry.epoch, entry.n)


def environment_entry(environment: str, commands: list[msgspec.Raw]) -> bytes:
    """Give the bytes of an environment's own entry, as `entries.encode` does."""
    return bytes([ENTRY_VERSION]) + _encoder.encode([environment, commands])


def directory_command(found: Item) -> Command:
    """Read a command. Raises: as `decode`."""
    try:
        return _command_decoder.decode(found.command)
    except _MALFORMED as error:
        raise _corrupt(str(error)) from error


def opening_of(found: Item) -> Opening:
    """Read what an opening item says. Raises: as `decode`."""
    try:
        return _opening_decoder.decode(found.command)
    except _MALFORMED as error:
        raise _corrupt(str(error)) from error


def claim_of(found: Item) -> Claim:
    """Read what a claim says. Raises: as `decode`."""
    try:
        return _claim_decoder.decode(found.command)
    except _MALFORMED as error:
        raise _corrupt(str(error)) from error


def new_history(lost_ms: int, history: bytes) -> Item:
    """Make the item that begins a history."""
    command = _encoder.encode(NewHistory(lost_ms, history))
    return Item(HISTORY, is_alone=False, command=msgspec.Raw(command))


def history_of(found: Item) -> NewHistory:
    """Read what such an item says. Raises: as `decode`."""
    try:
        return _history_decoder.decode(found.command)
    except _MALFORMED as error:
        raise _corrupt(str(error)) from error


def encode_answers(answers: list[ShardAnswer]) -> bytes:
    """Give the bytes of answers, as a shard stores them."""
    return _encoder.encode(answers)


def decode_answers(body: bytes) -> list[ShardAnswer]:
    """Read stored answers."""
    return list(_answers_decoder.decode(body))


def _corrupt(detail: str) -> CorruptDataError:
    return CorruptDataError("read entry", "shared authorization journal", detail)
