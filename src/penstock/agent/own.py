"""An agent that writes the journal itself: alone in its data directory, or for a host's workers.

Order at the start: the order of commands, which says what the WAL must hold, then the WAL, then
the log. The log's commit lane is the order.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.agent.company import Company
from penstock.agent.foundation import Foundation
from penstock.agent.host_place import HostPlace
from penstock.agent.jobs import Job
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings
from penstock.log import Log
from penstock.log.append.lane import Delivery
from penstock.log.fetch.remote_wal import DirectoryWals
from penstock.log.opening.embedded import open_order, open_wal
from penstock.log.opening.left import note_left
from penstock.log.opening.state_check import StateChecker, mark_suspect
from penstock.log.upkeep import Upkeep
from penstock.model.errors import CorruptDataError
from penstock.objects.origins import open_origins
from penstock.order.heads import Ordering
from penstock.order.host.hub import WorkerHub
from penstock.order.local_order import Order
from penstock.state.ages import Ages
from penstock.state.read.view import StateView
from penstock.wal import WalReader, WalWriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJournal:
    """A journal beside its database, which this agent alone writes. Implements `AgentJournal`."""

    database: Path
    checks_state: bool = True
    """See `open_order`."""
    host: HostPlace | None = None
    """Where other workers of this host hand in their entries; None: there are none."""

    async def join(self, settings: AgentSettings, ports: AgentPorts) -> "OwnFoundation":
        """See `AgentJournal`.

        Raises:
            CorruptDataError: what lies in the directory is not what was written.
            OtherClusterError: the WAL holds records of another cluster than the journal.
        """
        clock, folder = ports.clock, ports.wal_folder
        on_fatal = partial(self._on_fatal, ports.on_fatal)
        order = open_order(
            self.database,
            folder.device,
            clock=clock,
            random=ports.random,
            fsync=folder.fsync,
            software=settings.identity.software,
            labels=settings.identity.labels,
            endpoint=settings.identity.endpoint,
            peer=settings.identity.peer,
            checks_state=self.checks_state,
        )
        ports.on_close(partial(self._close, order))
        clock.start_from(order.found_ms)
        ages = Ages(clock)
        queries = ports.open_queries(self.database, on_fatal)
        view = StateView.load(queries())
        wal_writer = open_wal(
            folder.device,
            queries(),
            file_bytes=folder.file_bytes,
            bytes_max=folder.bytes_max,
            fsync=folder.fsync,
        )
        ports.on_close(wal_writer.close)
        wal_reader = WalReader(folder.device, lost=wal_writer.recovery.lost)
        ports.on_close(wal_reader.close)
        remote = None
        if self.host is not None:
            remote = DirectoryWals(find=self.host.find_wals(queries), pool=ports.pool)
            ports.on_close(remote.close)
        # What a restore inherited is read where the parent keeps it.
        store = open_origins(ports.open_store(""), queries().origins(), ports.open_store)
        log = Log(
            order=order,
            view=view,
            queries=queries,
            wal_writer=wal_writer,
            wal_reader=wal_reader,
            store=store,
            clock=clock,
            ages=ages,
            limits=settings.log,
            identity=(order.agent_id, order.epoch),
            pool=ports.pool,
            on_fatal=on_fatal,
            instruments=ports.log_instruments,
            remote_wal=remote,
            on_delivered=lambda delivery: foundation.on_delivered(delivery),  # noqa: PLW0108 - below
        )
        log.position = order.position
        foundation = OwnFoundation(
            agent_id=order.agent_id,
            cluster_id=order.cluster_id,
            ages=ages,
            view=view,
            queries=queries,
            store=store,
            log=log,
            heads=None,
            has_company=self.host is not None,
            settings=settings,
            order=order,
            wal_writer=wal_writer,
            upkeep=Upkeep(
                journal=order,
                store=store,
                scratch=ports.scratch,
                clock=clock,
                pool=ports.pool,
                limits=settings.log,
                checker=StateChecker(
                    root=self.database.parent,
                    database=self.database,
                    scratch=ports.scratch / "state-check",
                ),
            ),
            hub=None
            if self.host is None
            else WorkerHub(
                path=self.host.socket,
                cluster_id=order.cluster_id,
                committer=log,
                position=lambda: log.position,
                flush=lambda: foundation.flush(),  # noqa: PLW0108 - made here
                is_clock_doubted=lambda: ages.now_ms() is None,
            ),
        )
        return foundation

    def _close(self, order: Order) -> None:
        # All connections of this process that read are closed by now.
        if order.close():
            note_left(self.database)

    def _on_fatal(self, end: Callable[[BaseException], None], error: BaseException) -> None:
        if isinstance(error, CorruptDataError) and error.subject == str(self.database):
            # Whatever has found it: the next start need not find it once more.
            mark_suspect(self.database, error.detail)
            logger.error("%s; the next start makes it again", error)
        end(error)


@dataclass(slots=True, kw_only=True)
class OwnFoundation(Foundation):
    """A log whose commit lane makes bytes and order durable in one frame of its WAL."""

    settings: AgentSettings
    order: Order
    log: Log
    wal_writer: WalWriter
    upkeep: Upkeep
    hub: WorkerHub | None
    """Serves the other workers of this host; None: there are none."""

    @property
    def ordering(self) -> Ordering:
        """See `Foundation`."""
        return self.log

    @property
    def epoch(self) -> int:
        """See `Foundation`."""
        return self.order.epoch

    def shows_answers(self) -> bool:
        """See `Foundation`."""
        return not self.log.hidden_position

    async def follow(self) -> None:
        """See `Foundation`. The epoch was opened with the journal."""
        self.log.start()

    async def begin(self) -> None:
        """See `Foundation`. The other workers' entries are taken from now on."""
        if self.hub is not None:
            await self.hub.start()

    async def drain(self, company: Company | None, deadline_s: float) -> bool:
        """See `Foundation`. The other workers have drained by now."""
        if company is not None:
            # First, since what it commits goes to the log.
            await company.close()
        if self.hub is not None:
            await self.hub.close()
        return await self.log.close(deadline_s)

    def jobs(self) -> Sequence[Job]:
        """See `Foundation`."""
        keeper, upkeep = self.log.keeper, self.upkeep
        interval_s = self.settings.retention_check_s
        return [
            Job(name="retention", interval_s=interval_s, run=keeper.run_once, matters=True),
            Job(name="leftovers", interval_s=1.0, run=keeper.clear_leftovers),
            Job(name="scrub", interval_s=1.0, run=self.log.scrubber.run_once),
            Job(name="upkeep of the journal", interval_s=1.0, run=upkeep.run_once, matters=True),
            Job(name="checkpoints", interval_s=1.0, run=upkeep.checkpoint, matters=True),
        ]

    def on_delivered(self, delivery: Delivery) -> None:
        """Tell the other workers, then this one's shards, what was applied."""
        if self.hub is not None:
            self.hub.publish(
                delivery.position,
                delivery.time_ms,
                delivery.changes,
                hidden_position=self.log.hidden_position,
            )
        self.on_followed()

    async def flush(self) -> int:
        """Have the database hold all that is applied; its position.

        Raises:
            StorageFullError: no space; to be tried again.
        """
        await self.log.flush()
        return self.order.committed_position
