"""The order of commands as the rest of an agent sees it: one port, with three implementations.

`local_order.LocalOrder` gives positions in this agent's own journal, `cluster_order.ClusterOrder`
in a journal that agents share, and `host.order.HostOrder` has the journal's writer on this host
give them. Each is started with `on_applied`, which is called with every batch of applied entries
before their answers are given out, and with `on_answered`, which is called after the callers who
waited for those answers have run.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from penstock.order.outcome import Outcome
from penstock.replica.applied import Applied

__all__ = ["AppliedEntries", "AppliedEntry", "Committer", "Heads", "OnApplied", "Order"]

CommandT_contra = TypeVar("CommandT_contra", contravariant=True)
AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")

AppliedEntry: TypeAlias = Applied[Outcome[AnswerT, ChangeT]]
AppliedEntries: TypeAlias = Sequence[Applied[Outcome[AnswerT, ChangeT]]]
OnApplied: TypeAlias = Callable[[Sequence[Applied[Outcome[AnswerT, ChangeT]]]], None]


class Committer(Protocol[CommandT_contra, AnswerT]):
    """The part of an order that commits. Event loop only; calls may overlap."""

    async def commit(self, commands: Sequence[CommandT_contra]) -> list[AnswerT]:
        """Append commands and return their answers, one per command.

        Commands of one call are applied next to one another, in order; calls are applied in the
        order in which they were made. Returns once the journal holds them durably and this agent's
        replica has applied them. Cancelling the call does not take the commands back.

        Raises:
            RetryableError: the journal is full or away; nothing was applied.
            InDoubtError: not in time, and the commands may still be applied. What follows on them
                (a later batch of the same producer) must fail as well.
            FencedError: a newer epoch of this agent exists.
            LevelNotOnError: a command's feature level is not on; it was not sent.
        """
        ...


class Heads(Protocol):
    """The part of an order that knows how far this replica is, against the journal."""

    async def confirm_head(self) -> None:
        """Return once this replica is at a head of the journal that was read after the call.

        Raises:
            RetryableError: the journal does not answer.
        """
        ...

    @property
    def head_confirmed_s(self) -> float:
        """Monotonic time of the last successful read of the head."""
        ...


class Order(Committer[CommandT_contra, AnswerT], Heads, Protocol[CommandT_contra, AnswerT]):
    """The order of one agent. Event loop only; calls may overlap."""

    @property
    def epoch(self) -> int:
        """The epoch of this agent; 0: none is open yet."""
        ...

    @property
    def position(self) -> int:
        """The last entry that is applied here; `on_applied` has been called with it."""
        ...

    @property
    def time_ms(self) -> int:
        """Journal time there."""
        ...

    @property
    def shows_answers(self) -> bool:
        """Whether queries of the database find all commands whose answers were given out: not
        where there was no space to commit them."""
        ...

    def submit(self, commands: Sequence[CommandT_contra]) -> asyncio.Future[list[AnswerT]]:
        """Append commands; the future gives their answers.

        Calls are applied in the order in which they are made. One whose outcome is unknown is
        sent again until it is known, for as long as it takes: how long a caller waits for it is
        the caller's business, and nothing that was submitted later is applied before it.

        Raises (by the future):
            FencedError: this epoch is over; nothing that was submitted later is applied.
            OverloadedError: too much waits; it was not applied.
            RetryableError: not applied, and never will be; nor will what was submitted later
                and is not resolved yet.
            LevelNotOnError: a command's feature level is not on; it was not sent.
            InDoubtError: the order was closed, is ending or has stopped; it may still be applied.
        """
        ...
