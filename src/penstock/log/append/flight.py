"""One flush on its way: its requests, what its bytes became, and who has been answered."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.log.append.group_commit import AppendRequest
from penstock.log.append.plan import FramePlan, PartitionAppend
from penstock.log.append.stored import Stored
from penstock.model.errors import PenstockError
from penstock.state.answers import BatchStatus


@dataclass(slots=True, eq=False)
class Waiting:
    """A request, its place in the order of all, and whether it has been answered."""

    request: AppendRequest
    place: int
    is_answered: bool = False

    def answer(self, error: PenstockError | None) -> None:
        """Answer, unless it has been."""
        if not self.is_answered:
            self.is_answered = True
            self.request.done(error)


@dataclass(slots=True, eq=False)
class Flight:
    """A flush. It is stored (or has failed), then submitted in its turn, then applied."""

    waiting: list[Waiting]
    length: int
    begun_s: float
    stored: Stored | None = None
    error: PenstockError | None = None
    plan: FramePlan | None = None
    """The plan that was submitted."""
    stored_s: float = 0.0
    applied_s: float = 0.0
    refused: list[Waiting] = field(default_factory=list)
    """Requests that stood behind a failed one when the flush's turn came."""
    task: "asyncio.Task[None] | None" = None
    """Makes its bytes durable."""
    timer: asyncio.TimerHandle | None = None
    """The timer of the earliest deadline among the flight's requests."""

    @property
    def is_settled(self) -> bool:
        """Whether its bytes are durable, or won't be."""
        return self.stored is not None or self.error is not None

    def appends(self) -> list[PartitionAppend]:
        """All of them, in order."""
        return [append for waiting in self.waiting for append in waiting.request.appends]

    def unanswered(self) -> Iterator[Waiting]:
        """Yield requests that have no answer yet."""
        return (waiting for waiting in self.waiting if not waiting.is_answered)

    @property
    def deadline_s(self) -> float:
        """Return when the first unanswered request has waited long enough."""
        return min((w.request.deadline_s for w in self.unanswered()), default=float("inf"))

    def stored_bytes(self) -> int:
        """Bytes of batches that are in the log now, by the answers."""
        if self.plan is None:
            return 0
        return sum(
            append.batch.length
            for _, _, appends in self.plan.runs
            for append in appends
            if append.status is BatchStatus.STORED
        )
