"""The messages between the workers of one host. Pure. See docs/formats/worker-socket.md."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.model.errors import CorruptDataError
from penstock.model.malformed import MALFORMED

VERSION: Final = 1
LENGTH_BYTES: Final = 4
MESSAGE_BYTES_MAX: Final = 64 << 20


class Message(Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class Hello(Message, frozen=True, tag="hello"):
    """A worker is here."""

    version: int = VERSION


class Welcome(Message, frozen=True, tag="welcome"):
    """The file holds the state at `position` or later; a message follows for every later entry."""

    cluster_id: str
    position: int


class RelayEntry(Message, frozen=True, tag="entry"):
    """An entry to be relayed."""

    token: int
    body: bytes


class EntryApplied(Message, frozen=True, tag="entry."):
    """The outcome of an entry."""

    token: int
    position: int
    standing: int
    answers: msgspec.Raw


class EntryRefused(Message, frozen=True, tag="entry!"):
    """It was not taken; it may be sent again."""

    token: int
    text: str


class AppliedChanges(Message, frozen=True, tag="applied"):
    """One entry's changes: each of the log's is a kind's number and its fields.
    `hidden_position`: the file had no space for the commands up to it, or 0. `is_clock_doubted`:
    nothing may go by age now."""

    position: int
    time_ms: int
    changes: list[list[Any]]
    hidden_position: int = 0
    is_clock_doubted: bool = False


class AskHead(Message, frozen=True, tag="head"):
    """A worker asks for the head of the journal."""

    token: int


class HeadIs(Message, frozen=True, tag="head."):
    """So far when the question arrived."""

    token: int
    position: int


class AskFlush(Message, frozen=True, tag="flush"):
    """Bring the file up to what is applied."""

    token: int


class Flushed(Message, frozen=True, tag="flush."):
    """It is there."""

    token: int
    position: int


ToWriter = Hello | RelayEntry | AskHead | AskFlush
ToWorker = Welcome | EntryApplied | EntryRefused | AppliedChanges | HeadIs | Flushed

_encoder = msgspec.msgpack.Encoder()
_to_writer = msgspec.msgpack.Decoder(ToWriter)
_to_worker = msgspec.msgpack.Decoder(ToWorker)


def encode(message: ToWriter | ToWorker) -> bytes:
    """A message with its length."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_to_writer(body: bytes) -> ToWriter:
    """A message of a worker, without its length. Raises: CorruptDataError."""
    message: ToWriter = _decoded(_to_writer, body)
    return message


def decode_to_worker(body: bytes) -> ToWorker:
    """A message of the writer, without its length. Raises: CorruptDataError."""
    message: ToWorker = _decoded(_to_worker, body)
    return message


def _decoded(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except MALFORMED as error:
        raise CorruptDataError(
            "read message", "worker socket", f"{len(body)} bytes: {error}", "restart the workers"
        ) from error
