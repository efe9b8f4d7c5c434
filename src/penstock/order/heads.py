"""The order as the rest of an agent sees it: commit, and know how far this replica is.

`docs/cluster.md` says what each call means. In a cluster `cluster_order.ClusterOrder` is one; on an
embedded server the log is, whose replica is the only one, so that it is never behind.
"""

from collections.abc import Sequence
from typing import Protocol

from penstock.state.answers import AnyAnswer
from penstock.state.commands import AnyCommand


class Heads(Protocol):
    """How far this replica is, against the journal."""

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


class Ordering(Heads, Protocol):
    """The order of one agent. Event loop only; calls may overlap."""

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.order.committer.Committer`."""
        ...

    @property
    def position(self) -> int:
        """The last entry that is applied here."""
        ...

    @property
    def time_ms(self) -> int:
        """Journal time there."""
        ...
