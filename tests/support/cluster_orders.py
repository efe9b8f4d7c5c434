"""Agents of a simulated cluster, as far as their order goes: real replicas, one simulated journal.

Everything runs on a virtual loop, so that a seed decides what happens.
"""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.model.errors import PenstockError, RetryableError
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.protocol import AgentIdentity
from penstock.ports.clock import Clock
from penstock.ports.journal import Journal
from penstock.replica.replica import Replica
from penstock.state.apply.machine import LogMachine
from penstock.state.order_types import AppliedEntries, AppliedEntry
from penstock.state.orders import ClusterOrder, begin_cluster_order
from penstock.state.schema import CLUSTER_LEVEL
from support.simulated.randomness import SeededRandom


class Agent:
    """An order, what it told, and how it ended."""

    def __init__(
        self,
        agent_id: int,
        folder: Path,
        journal: Journal,
        cluster_id: str,
        *,
        level_max: int = CLUSTER_LEVEL,
    ) -> None:
        self.agent_id = agent_id
        self.level_max = level_max
        self.folder = folder
        self.journal = journal
        self.cluster_id = cluster_id
        self.applied: list[AppliedEntry] = []
        self.on_applied: Callable[[AppliedEntries], None] = lambda _: None
        self.stopped: PenstockError | None = None
        self._order: ClusterOrder | None = None

    @property
    def order(self) -> ClusterOrder:
        assert self._order is not None
        return self._order

    async def start(
        self,
        clock: Clock,
        seed: int,
        *,
        settings: ClusterOrderSettings | None = None,
        tries: int = 1,
    ) -> None:
        """Open the replica and start; `tries` of what may be tried again."""
        for left in reversed(range(tries)):
            self.folder.mkdir(exist_ok=True, parents=True)
            machine = LogMachine()
            replica = Replica.open(
                self.folder / "replica.sqlite", machine, fsync=False, keeps_journal=False
            )
            try:
                order = await begin_cluster_order(
                    self.journal,
                    replica,
                    machine,
                    identity=AgentIdentity(
                        agent_id=self.agent_id,
                        endpoint=f"h{self.agent_id}:1",
                        level_max=self.level_max,
                    ),
                    cluster_id=self.cluster_id,
                    clock=clock,
                    random=SeededRandom(seed),
                    settings=settings,
                )
            except BaseException as error:
                replica.close()
                if left and isinstance(error, RetryableError):
                    continue
                raise
            self._order = order
            try:
                await order.start(on_applied=self._note_applied, on_stopped=self._note_end)
            except RetryableError:
                if not left:
                    raise
                replica.close()
                continue
            return

    async def close(self) -> None:
        if self._order is not None:
            await self._order.close()

    def _note_applied(self, batch: AppliedEntries) -> None:
        self.on_applied(batch)
        self.applied.extend(batch)

    def _note_end(self, error: PenstockError) -> None:
        assert self.stopped is None, "told twice"
        self.stopped = error


async def outcome(work: Coroutine[Any, Any, Any]) -> object:
    """The result, or the error that it ended with."""
    try:
        return await work
    except PenstockError as error:
        return error
