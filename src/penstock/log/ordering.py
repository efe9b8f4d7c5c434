"""The order of commands as the log of an agent sees it: docs/cluster.md, `ClusterOrder`.

In a cluster `penstock.order.cluster_order.ClusterOrder` implements it; beneath an embedded
log's object mode `penstock.log.append.lane_ordering.LaneOrdering` does.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.order import heads as metadata_ordering
from penstock.order.local_order import Applied
from penstock.state.commands import AnyCommand

__all__ = ["Applied", "Ordering", "Submits"]


class Submits(Protocol):
    """Takes commands in the order of the calls. Event loop only."""

    def submit(self, commands: Sequence[AnyCommand]) -> asyncio.Future[Applied]:
        """Append commands; `answers` of the result are those of this call.

        Calls are applied in the order in which they are made. One whose outcome is unknown is
        sent again until it is known, for as long as it takes: how long anybody waits for it is
        the caller's business, and nothing that was submitted later is applied before it.

        Raises (by the future):
            FencedError: this epoch is over; nothing that was submitted later is applied.
            RetryableError: not applied, and never will be; nor will what was submitted later
                and is not resolved yet.
        """
        ...


class Ordering(metadata_ordering.Ordering, Submits, Protocol):
    """One agent's end of a cluster's journal. Event loop only."""
