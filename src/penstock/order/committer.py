"""The journal as a port: append commands and learn their answers by applying them."""

from collections.abc import Sequence
from typing import Protocol

from penstock.state.answers import AnyAnswer
from penstock.state.commands import AnyCommand


class Committer(Protocol):
    """Appends commands. Used from the event loop only; calls may overlap.

    Commands of one call are applied next to one another, in order; calls are applied in the
    order in which they were made. Returns once the journal holds them durably and this agent's
    replica has applied them. Cancelling the call does not take the commands back.
    """

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """Answers, one per command.

        Raises:
            RetryableError: the journal is full or away; nothing was applied.
            FencedError: a newer epoch of this agent exists.
        """
        ...
