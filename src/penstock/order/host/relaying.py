"""The functions that the order of a host's workers needs, besides the `CommandProtocol`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from penstock.order.protocol import EntryRefusal

CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")


class RelayedEntry(NamedTuple, Generic[AnswerT]):
    """The outcome of an entry that the writer has applied within its own."""

    standing: int
    """See `penstock.order.outcome.Standing`."""
    answers: list[AnswerT]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayProtocol(Generic[CommandT, AnswerT, ChangeT]):
    """A machine's entries, answers and changes on their way between the workers of a host."""

    relay: Callable[[bytes], CommandT]
    """Gives the command by which the writer orders a worker's entry. Raises: CorruptDataError."""
    relayed: Callable[[AnswerT], RelayedEntry[AnswerT] | EntryRefusal]
    """Reads the answer to such a command."""
    encode_answers: Callable[[Sequence[AnswerT]], bytes]
    """Gives answers as MessagePack."""
    decode_answers: Callable[[bytes], list[AnswerT]]
    """Inverts `encode_answers`. Raises: CorruptDataError."""
    pack_changes: Callable[[Sequence[ChangeT]], list[list[Any]]]
    """Gives changes as a message carries them."""
    unpack_changes: Callable[[list[list[Any]]], list[ChangeT]]
    """Inverts `pack_changes`."""


class SharedState(Protocol):
    """The writer's state, as a worker reads it in the shared file."""

    def position(self) -> int:
        """The last entry that the file holds."""
        ...

    def next_epoch(self, agent_id: int, *, floor: int) -> int:
        """The epoch that an agent may open, at least `floor`."""
        ...

    def load_levels(self) -> None:
        """Have the levels begin with what the file holds."""
        ...
