"""The port that says which groups this agent coordinates.

On an embedded server all of them. In a cluster those of the shards that it has claimed
(`groups.shards`), and only while the journal answers.
"""

import math
from typing import Protocol

from penstock.groups.errors import GroupError
from penstock.model.errors import PenstockError, RetryableError


class Ownership(Protocol):
    """Says which agent coordinates a group. Event loop only."""

    def epoch(self, group_id: str) -> int | None:
        """The epoch under which this agent writes a group; None: it isn't this agent's."""
        ...

    def error(self, group_id: str) -> GroupError:
        """Return the error that any request for a group gets; NONE: it is served here, now."""
        ...

    def served_s(self) -> float:
        """Return for how many seconds groups have been served here unbroken; 0: they aren't.

        A member can't show that it lives while it isn't served, so its session doesn't end.
        """
        ...


class AllGroups:
    """The only agent: everything is its own, at epoch 0, from the beginning."""

    def epoch(self, group_id: str) -> int | None:  # noqa: ARG002 - the port's
        """See `Ownership`."""
        return 0

    def error(self, group_id: str) -> GroupError:  # noqa: ARG002 - the port's
        """See `Ownership`."""
        return GroupError.NONE

    def served_s(self) -> float:
        """See `Ownership`."""
        return math.inf


class NotServedError(RetryableError):
    """A group isn't served here now; `error` is the client's answer."""

    def __init__(self, operation: str, subject: str, error: GroupError) -> None:
        super().__init__(operation, subject, f"not served by this agent now: {error.name}")
        self.error = error


def told(error: PenstockError) -> GroupError:
    """An error of the coordinator as a client gets it."""
    return error.error if isinstance(error, NotServedError) else GroupError.NOT_COORDINATOR
