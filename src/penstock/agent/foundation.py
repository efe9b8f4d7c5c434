"""Order, state and log of an agent, joined: groups and the Kafka face stand on them."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.agent.jobs import MARKERS_S, Job
from penstock.groups.coordinator import GroupCoordinator
from penstock.log import Log
from penstock.membership.cut_off import CutOff
from penstock.order.port import Heads
from penstock.ports.objects import ObjectStore
from penstock.state.ages import Ages
from penstock.state.order_types import Order
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView

EndEpoch: TypeAlias = Callable[[float], Awaitable[None]]
StopCompany: TypeAlias = Callable[[EndEpoch | None], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Foundation(ABC):
    """One kind of journal, and what an agent has on it. An `AgentJournal` joins it.

    An agent calls `follow`, `begin` and `drain`, in this order.
    """

    agent_id: int
    cluster_id: str
    ages: Ages
    view: StateView
    queries: Callable[[], Queries]
    store: ObjectStore
    order: Order
    """Commits commands, and knows how far this replica is."""
    log: Log
    heads: Heads | None
    """How far this replica is; None: this agent writes the journal, and is never behind."""
    has_company: bool
    """Whether other agents may share the journal."""
    on_followed: Callable[[], None] = field(default=lambda: None)
    """Called after each batch of entries, once the view has them and queries see them."""

    def shows_answers(self) -> bool:
        """Whether queries find all commands whose answers were given out."""
        return self.order.shows_answers

    @abstractmethod
    async def follow(self) -> None:
        """Follow the journal from now on, and open an epoch of this agent.

        Raises: as the order.
        """

    def new_cut_off(self, groups: GroupCoordinator) -> CutOff | None:  # noqa: ARG002
        """Make what finds out that the journal is away from this agent alone. Called once this
        agent follows; None: no other agent can be asked."""
        return None

    @abstractmethod
    async def begin(self) -> None:
        """Begin to append and to read.

        Raises: as `Log.start`.
        """

    def log_jobs(self, interval_s: float) -> list[Job]:
        """Return the log's work that is the same with every order.

        Args:
            interval_s: between passes over what expires.
        """
        log = self.log
        return [
            Job(name="leftovers", interval_s=1.0, run=log.keeper.clear_leftovers),
            Job(
                name="time-outs of transactions",
                interval_s=1.0,
                run=log.transactions.abort_timed_out,
                matters=True,
            ),
            Job(
                name="unused transactional ids",
                interval_s=interval_s,
                run=log.transactions.forget_unused,
            ),
            Job(name="scrub", interval_s=1.0, run=log.scrubber.run_once),
            Job(name="markers", interval_s=MARKERS_S, run=log.waiting_markers.run_once),
        ]

    @abstractmethod
    async def drain(self, stop_company: StopCompany, deadline_s: float) -> bool:
        """Bring what was acknowledged to where it stays, and stop the log, the company and the
        order. Whether all of it is there; what isn't is safe in the WAL.

        Args:
            stop_company: stops the company, and ends the epoch with what it is given.
        """

    @abstractmethod
    def jobs(self) -> Sequence[Job]:
        """Return the work that comes round."""
