"""An agent that writes the journal itself: alone in its data directory, or for a host's workers.

Order at the start: the journal, which says what the WAL must hold, then the WAL, then the lane that
writes both, then the log.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.agent.foundation import Foundation, StopCompany
from penstock.agent.host_place import HostPlace
from penstock.agent.jobs import Job
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings
from penstock.log import Log
from penstock.log.append.lane import CommitLane
from penstock.log.fetch.remote_wal import DirectoryWals
from penstock.log.opening.embedded import open_journal, open_wal
from penstock.log.opening.left import note_left
from penstock.log.opening.state_check import StateChecker, mark_suspect
from penstock.log.state_queries import OwnQueries
from penstock.log.upkeep import Upkeep
from penstock.log.upload.uploader import Uploader
from penstock.log.wals.lane_wal import LaneWal
from penstock.log.wals.parts import LogParts
from penstock.model.errors import CorruptDataError
from penstock.objects.origins import open_origins
from penstock.state.ages import Ages
from penstock.state.order_types import AppliedEntries
from penstock.state.orders import LocalJournal, LocalOrder, WorkerHub, worker_hub
from penstock.state.read.view import StateView
from penstock.wal import WalReader, WalWriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJournal:
    """A journal with its database, which this agent alone writes. Implements `AgentJournal`."""

    database: Path
    checks_state: bool = True
    """See `open_journal`."""
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
        journal = open_journal(
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
        ports.on_close(partial(self._close, journal))
        ages = Ages(clock)
        queries = ports.open_queries(self.database, on_fatal)
        clock.start_from(queries().steady_ms(journal.found_ms))
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
        lane = CommitLane(
            wal=wal_writer,
            journal=journal,
            known_producer=lambda key, producer_id: queries().producer(key, producer_id),
            clock=clock,
            levels=view,
            limits=settings.log,
            on_fatal=on_fatal,
        )
        order = LocalOrder(journal, lane, clock=clock)

        def own_wal(parts: LogParts) -> LaneWal:
            return LaneWal(parts, lane=lane, order=order, writer=wal_writer, reader=wal_reader)

        log = Log(
            order=order,
            own_wal=own_wal,
            view=view,
            queries=OwnQueries(queries, journal, ports.pool),
            store=store,
            clock=clock,
            ages=ages,
            limits=settings.log,
            agent_id=journal.agent_id,
            pool=ports.pool,
            on_fatal=on_fatal,
            database=journal,
            instruments=ports.log_instruments,
            remote_wal=remote,
        )
        foundation = OwnFoundation(
            agent_id=journal.agent_id,
            cluster_id=journal.cluster_id,
            ages=ages,
            view=view,
            queries=queries,
            store=store,
            log=log,
            heads=None,
            has_company=self.host is not None,
            settings=settings,
            order=order,
            journal=journal,
            lane=lane,
            wal_writer=wal_writer,
            upkeep=Upkeep(
                journal=journal,
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
            else worker_hub(
                path=self.host.socket,
                cluster_id=journal.cluster_id,
                committer=order,
                position=lambda: order.position,
                flush=lambda: foundation.flush(),  # noqa: PLW0108 - made here
                is_clock_doubted=lambda: ages.now_ms() is None,
            ),
        )
        return foundation

    def _close(self, journal: LocalJournal) -> None:
        # All connections of this process that read are closed by now.
        if journal.close():
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
    order: LocalOrder
    journal: LocalJournal
    lane: CommitLane
    wal_writer: WalWriter
    upkeep: Upkeep
    hub: WorkerHub | None
    """Serves the other workers of this host; None: there are none."""

    @property
    def uploader(self) -> Uploader:
        """Moves the WAL to segment objects."""
        assert self.log.uploader is not None
        return self.log.uploader

    async def follow(self) -> None:
        """See `Foundation`. The epoch was opened with the journal."""
        self.order.start(on_applied=self._on_applied, on_answered=self.log.on_answered)
        await self.log.start(epoch=self.order.epoch)

    async def begin(self) -> None:
        """See `Foundation`. The other workers' entries are taken from now on."""
        if self.hub is not None:
            await self.hub.start()

    async def drain(self, stop_company: StopCompany, deadline_s: float) -> bool:
        """See `Foundation`. The other workers have drained by now."""
        # First, since what it commits goes to the log. The epoch stays open.
        await stop_company(None)
        if self.hub is not None:
            await self.hub.close()
        return await self.log.close(deadline_s)

    def jobs(self) -> Sequence[Job]:
        """See `Foundation`."""
        keeper, upkeep = self.log.keeper, self.upkeep
        interval_s = self.settings.retention_check_s
        return [
            Job(name="retention", interval_s=interval_s, run=keeper.run_once, matters=True),
            *self.log_jobs(interval_s),
            Job(name="upkeep of the journal", interval_s=1.0, run=upkeep.run_once, matters=True),
            Job(name="checkpoints", interval_s=1.0, run=upkeep.checkpoint, matters=True),
        ]

    async def flush(self) -> int:
        """Have the database hold all that is applied; its position.

        Raises:
            StorageFullError: no space; to be tried again.
        """
        await self.log.let_queries_find()
        return self.journal.committed_position

    def _on_applied(self, applied: AppliedEntries) -> None:
        self.log.on_applied(applied)
        if self.hub is not None:
            for entry in applied:
                self.hub.publish(entry, hidden_position=self.order.hidden_position)
        self.on_followed()
