"""A worker of a host that doesn't write the journal: worker 0 does.

Its bytes go to a WAL of its own, its commands to worker 0. It reads the state, the objects and the
other workers' WALs from the shared directory.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.agent.foundation import Foundation, StopCompany
from penstock.agent.host_place import HostPlace
from penstock.agent.jobs import Job
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings
from penstock.agent.thread_queries import ThreadQueries
from penstock.log import Log
from penstock.log.fetch.remote_wal import DirectoryWals
from penstock.log.state_queries import SharedQueries
from penstock.log.wals.cluster_wal import ClusterWal
from penstock.model.errors import FatalStorageError
from penstock.objects.origins import open_origins
from penstock.state.ages import Ages
from penstock.state.order_types import AppliedEntries
from penstock.state.orders import HostOrder, host_order
from penstock.state.read.view import StateView


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJournal:
    """A journal that another worker of this host writes. Implements `AgentJournal`."""

    database: Path
    """The SQLite file of the worker that writes the journal."""
    host: HostPlace

    async def join(self, settings: AgentSettings, ports: AgentPorts) -> "HostFoundation":
        """See `AgentJournal`. Waits for the worker that writes the journal."""
        clock, me = ports.clock, settings.identity.agent_id
        # Not of the ports: it has to be known whether the file was replaced.
        queries = ThreadQueries(self.database)
        ports.on_close(queries.close)
        order = host_order(
            path=self.host.socket,
            queries=queries,
            identity=settings.identity,
            clock=clock,
            random=ports.random,
        )
        await order.open()
        ages = Ages(
            clock,
            journal_ms=lambda: order.time_ms,
            is_doubted=lambda: order.is_clock_doubted,
        )
        view = StateView.load(queries())
        remote = DirectoryWals(find=self.host.find_wals(queries), pool=ports.pool)
        ports.on_close(remote.close)
        # What a restore inherited is read where the parent keeps it.
        store = open_origins(ports.open_store(""), queries().origins(), ports.open_store)
        shared = SharedQueries(
            queries,
            position=lambda: order.position,
            flush=order.flush,
            loop=asyncio.get_running_loop(),
        )
        log = Log(
            order=order,
            own_wal=partial(ClusterWal, folder=ports.wal_folder),
            view=view,
            queries=shared,
            store=store,
            clock=clock,
            ages=ages,
            limits=settings.log,
            agent_id=me,
            pool=ports.pool,
            on_fatal=ports.on_fatal,
            heads=order,
            remote_wal=remote,
            is_keeper=lambda: False,
            instruments=ports.log_instruments,
        )
        return HostFoundation(
            agent_id=me,
            cluster_id=order.cluster_id,
            ages=ages,
            view=view,
            queries=queries,
            store=store,
            log=log,
            heads=order,
            has_company=True,
            settings=settings,
            ports=ports,
            order=order,
            shared=shared,
        )


@dataclass(slots=True, kw_only=True)
class HostFoundation(Foundation):
    """Another worker's state, read here, and a log with a WAL of its own."""

    settings: AgentSettings
    ports: AgentPorts
    queries: ThreadQueries
    order: HostOrder
    shared: SharedQueries

    async def follow(self) -> None:
        """See `Foundation`."""
        await self.order.start(
            on_applied=self._on_applied,
            on_answered=self.log.on_answered,
            on_reset=self._on_reset,
            on_stopped=self.ports.on_fatal,
        )

    async def begin(self) -> None:
        """See `Foundation`.

        Raises: as `Log.start`.
        """
        await self.log.start(epoch=self.order.epoch)

    async def drain(self, stop_company: StopCompany, deadline_s: float) -> bool:
        """See `Foundation`."""
        drained = await self.log.close(deadline_s)
        await stop_company(self.order.end_epoch)
        await self.order.close()
        self.shared.close()
        return drained

    def jobs(self) -> Sequence[Job]:
        """See `Foundation`. Retention and the rest are worker 0's."""
        return [
            Job(
                name="failed objects",
                interval_s=self.settings.retention_check_s,
                run=self.log.keeper.run_once,
                matters=True,
            ),
            Job(name="scrub", interval_s=1.0, run=self.log.scrubber.run_once),
        ]

    # -- inside ----------------------------------------------------------------------------------

    def _on_applied(self, applied: AppliedEntries) -> None:
        self.log.on_applied(applied)
        self.on_followed()

    def _on_reset(self) -> int:
        if self.queries.is_replaced:
            # Worker 0 has made the database again. The parent starts this process again, too.
            error = FatalStorageError(
                "follow the journal", str(self.queries.path), "the database was made again"
            )
            self.ports.on_fatal(error)
            raise error
        self.view.reload(self.queries())
        self.log.begin_again()
        # Who coordinates a group may have changed meanwhile.
        self.on_followed()
        return self.view.loaded_position
