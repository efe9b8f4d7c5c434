"""An embedded server keeps everything in one data directory, and is its only agent.

The lock is taken first, then the agent is opened; they are closed in the reverse order.
"""

from contextlib import ExitStack
from dataclasses import dataclass

from penstock.agent.assembly import Agent, assemble
from penstock.agent.host_place import HostPlace
from penstock.agent.own import OwnFoundation, OwnJournal
from penstock.app.opening import Opening
from penstock.app.parts import Environment, Parts
from penstock.app.wal_report import WalReport
from penstock.config.settings import ServerSettings
from penstock.kafka.net.server import KafkaServer
from penstock.log.layout import DataLayout
from penstock.objects import open_store
from penstock.recovery import directory
from penstock.recovery.restore import refuse_unfinished
from penstock.state.orders import LocalJournal
from penstock.system.lock import DirectoryLock


@dataclass(slots=True, kw_only=True)
class EmbeddedParts(Parts):
    """The parts of an embedded server."""

    environment: Environment
    foundation: OwnFoundation

    @property
    def journal(self) -> LocalJournal:
        """The journal that this server writes."""
        return self.foundation.journal

    def status(self) -> dict[str, object]:
        """See `Parts`."""
        return {
            "fsync": self.settings.fsync,
            "wal": self._wal_report().status(),
            "segments_stored": self.foundation.uploader.segment_count,
            "state": {
                "checks": self.foundation.upkeep.check_count,
                "checked_position": self.foundation.upkeep.checked_position,
                "rebuilt_because": self.journal.rebuilt_because,
            },
        }

    def gauges(self) -> dict[str, float]:
        """See `Parts`."""
        return {
            **self._wal_report().gauges(),
            "penstock_append_waiting_bytes": self.foundation.lane.waiting_bytes,
            "penstock_foreign_objects_total": len(self.log.numbers.foreign),
            "penstock_state_checks_total": self.foundation.upkeep.check_count,
            "penstock_state_rebuilt": bool(self.journal.rebuilt_because),
            "penstock_state_unchecked_entries": max(
                0, self.journal.position - self.foundation.upkeep.checked_position
            ),
        }

    def _wal_report(self) -> WalReport:
        return WalReport(
            uploader=self.foundation.uploader,
            free_bytes=self.foundation.wal_writer.free_bytes,
            bytes_max=self.settings.wal_bytes_max,
        )

    def not_ready(self) -> str:
        """See `Parts`. A WAL whose records can't be moved to segments fills up, and then producers
        wait until their requests time out."""
        uploader = self.foundation.uploader
        if uploader.last_error and uploader.pending_bytes >= self.settings.wal_bytes_max // 2:
            return f"the WAL fills up, since segments can't be stored: {uploader.last_error}"
        return ""

    async def back_up(
        self, destination: str, progress: directory.Progress | None = None
    ) -> dict[str, object]:
        """See `Parts`."""
        with self.log.keeper.held():
            await self.log.let_queries_find()
            return await directory.back_up(
                self.layout,
                destination,
                store=self.store,
                pool=self.pool,
                clock=self.clock,
                random=self.environment.random,
                progress=progress,
                is_served=True,
            )


async def open_embedded(settings: ServerSettings, environment: Environment) -> EmbeddedParts:
    """Open the data directory and put the parts together; nothing listens yet. Event loop only.

    Raises:
        ConflictError: another process uses the data directory.
        CorruptDataError: the directory's files don't hold what was written.
    """
    layout = DataLayout.of(settings.data)
    with ExitStack() as closing:
        opening, agent, foundation = await open_own(settings, environment, layout, closing)
        return EmbeddedParts(
            settings=settings,
            environment=environment,
            layout=layout,
            clock=environment.clock,
            metrics=opening.metrics,
            pool=opening.pool,
            agent=agent,
            foundation=foundation,
            kafka=KafkaServer(agent.broker),
            closing=closing.pop_all(),
        )


async def open_own(
    settings: ServerSettings,
    environment: Environment,
    layout: DataLayout,
    closing: ExitStack,
    *,
    host: HostPlace | None = None,
) -> tuple[Opening, Agent, OwnFoundation]:
    """Lock a data directory and put together an agent that writes the directory's journal.

    Args:
        host: see `OwnJournal`.
    """
    closing.callback(DirectoryLock.acquire(layout.root).release)
    refuse_unfinished(layout.metadata)
    opening = Opening(settings, environment, layout, closing)
    journal = OwnJournal(
        database=layout.metadata,
        checks_state=settings.state_check_interval_ms > 0,
        host=host,
    )
    ports = opening.ports(journal, lambda: open_store(str(layout.objects), executor=opening.pool))
    agent = await assemble(opening.agent_settings(), ports)
    assert isinstance(agent.foundation, OwnFoundation)
    return opening, agent, agent.foundation
