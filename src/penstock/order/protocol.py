"""The functions that an order needs of a state machine: the order itself knows no command.

A machine hands in one `CommandProtocol` for all its agents. What an order reads of its own agent's
state comes as an `OrderedMachine`, and the feature level that is on there as `Levels`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.model.errors import RetryableError

CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")
CommandT_contra = TypeVar("CommandT_contra", contravariant=True)
ChangeT_contra = TypeVar("ChangeT_contra", contravariant=True)


class EntryKey(NamedTuple):
    """The key says which append of which agent an entry is."""

    agent: int
    epoch: int
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """An agent says this of itself when it opens an epoch."""

    agent_id: int
    labels: dict[str, str] = field(default_factory=dict)
    software: str = ""
    endpoint: str = ""
    peer: str = ""
    level_max: int = 1


class EntryRefusal(NamedTuple):
    """An answer that says why nothing was changed."""

    reason: str
    detail: str
    ends_epoch: bool
    """The agent's epoch is over, so that no entry of it will ever be applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProtocol(Generic[CommandT, AnswerT]):
    """A machine's commands and answers, as far as an order has to understand them."""

    encode: Callable[[EntryKey, int, list[CommandT]], bytes]
    """Gives an entry's bytes of its key, the agent's own time in ms, and its commands."""
    key_of: Callable[[bytes], EntryKey]
    """Reads the key in an entry's bytes. Raises: CorruptDataError."""
    weigh: Callable[[Sequence[CommandT]], int]
    """Gives how much of an entry commands take; one of about 64 bytes weighs 1."""
    opening: Callable[[AgentIdentity, str, bytes], list[CommandT]]
    """Gives the commands that open an agent's epoch, of the agent's identity, a cluster id that the
    state may not have yet (empty: it has one), and a token that no other process has."""
    ending: Callable[[int, int], CommandT]
    """Gives the command that ends an agent's epoch."""
    refusal: Callable[[AnswerT], EntryRefusal | None]
    """Says why an answer changed nothing; None: it isn't a refusal."""
    is_beat: Callable[[CommandT], bool]
    """Whether a command only shows that its agent lives: such are never let go."""
    is_given_up: Callable[[CommandT], bool]
    """Whether a command's caller may be failed while the command may still be applied, once this
    agent's epoch is over."""
    frees_space: Callable[[CommandT], bool]
    """Whether a command is a step towards deleting something, so that a full disk takes it."""
    takes_space: Callable[[CommandT], bool]
    """Whether a command is refused while the replica's disk is full."""
    is_never_stopped: Callable[[CommandT], bool]
    """Whether a command is taken while replicas differ without a majority."""


class Levels(Protocol[CommandT_contra, ChangeT_contra]):
    """The feature level that is on where an order's entries are applied."""

    @property
    def is_highest(self) -> bool:
        """Whether no change need be followed any more."""
        ...

    @property
    def ends_epochs(self) -> bool:
        """Whether an agent may end its own epoch."""
        ...

    def refusal(self, commands: Sequence[CommandT_contra]) -> RetryableError | None:
        """Return why these commands must not be submitted now; None: they may be."""
        ...

    def follow(self, changes: Sequence[ChangeT_contra]) -> None:
        """Follow an entry that was applied."""
        ...


class OrderedMachine(Protocol):
    """An agent's state, as its order reads it while nothing is applied."""

    def cluster_id(self) -> str:
        """The id of the state's cluster; empty: it has none yet."""
        ...

    def next_epoch(self, agent_id: int, *, floor: int) -> int:
        """The epoch that an agent may open, at least `floor`; the levels begin with this state."""
        ...
