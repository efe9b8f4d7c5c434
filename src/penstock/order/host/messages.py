"""The messages between the workers of one host. Pure. See docs/formats/worker-socket.md."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey
from penstock.model.malformed import MALFORMED
from penstock.state import changes
from penstock.state.answers import AnyAnswer
from penstock.state.changes import AgentSeen, Change, HeadMoved

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
    answers: list[AnyAnswer]


class EntryRefused(Message, frozen=True, tag="entry!"):
    """It was not taken; it may be sent again."""

    token: int
    text: str


class AppliedChanges(Message, frozen=True, tag="applied"):
    """One entry's changes: pairs of a kind's number and its fields. `hidden_position`: the file had
    no space for the commands up to it, or 0. `is_clock_doubted`: nothing may go by age now."""

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

_KINDS: Final[tuple[type[Change], ...]] = (
    changes.HeadMoved,
    changes.AgentSeen,
    changes.RunsMoved,
    changes.TopicChanged,
    changes.TopicDeleted,
    changes.ClusterConfigsChanged,
    changes.AgentChanged,
    changes.AgentRemoved,
    changes.ShardMoved,
    changes.LevelChanged,
    changes.HistoryChanged,
    changes.DigestAsked,
    changes.DigestTold,
)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}


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


def pack_changes(found: Sequence[Change]) -> list[list[Any]]:
    """Changes as a message carries them. The first two kinds are nearly all there are."""
    packed: list[list[Any]] = []
    for change in found:
        if type(change) is HeadMoved:
            packed.append([0, change.partition_key, change.log_start, change.next_offset])
        elif type(change) is AgentSeen:
            packed.append([1, change.agent_id, change.position])
        else:
            packed.append(
                [_NUMBERS[type(change)], msgspec.to_builtins(change, builtin_types=(bytes,))]
            )
    return packed


def unpack_changes(packed: list[list[Any]]) -> list[Change]:
    """The inverse of `pack_changes`."""
    found: list[Change] = []
    for number, *fields in packed:
        if number == 0:
            found.append(HeadMoved(PartitionKey(fields[0]), fields[1], fields[2]))
        elif number == 1:
            found.append(AgentSeen(fields[0], fields[1]))
        else:
            found.append(msgspec.convert(fields[0], _KINDS[number]))
    return found


def _decoded(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except MALFORMED as error:
        raise CorruptDataError(
            "read message", "worker socket", f"{len(body)} bytes: {error}", "restart the workers"
        ) from error
