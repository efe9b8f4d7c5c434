"""The outcome of an entry, as each replica comes to know it by applying the entry. Pure."""

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")


class Standing(enum.IntEnum):
    """The ways in which an entry's key decides about it."""

    APPLIED = enum.auto()
    REPEATED = enum.auto()
    """One of the agent's last entries: nothing changed, the answers are the first ones."""
    REFUSED = enum.auto()
    """Nothing changed; each answer says why."""


@dataclass(slots=True)
class Outcome(Generic[AnswerT, ChangeT]):
    """The outcome of one entry. `answers`: one per command."""

    standing: Standing
    answers: list[AnswerT]
    changes: list[ChangeT]
    asks_digest: bool = False
    """The state of this position is to be hashed."""
