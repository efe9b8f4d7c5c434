"""The workers of one host share a journal, a SQLite file and a directory of objects.

Worker 0 is an embedded server that also orders the entries of the others. Each other worker is an
agent in WAL mode: its bytes go to a WAL of its own in `workers/N`, its commands to worker 0, and
it reads state, objects and the other WALs from the shared directory.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.agent.assembly import assemble
from penstock.agent.company import Company
from penstock.agent.host import HostFoundation, HostJournal
from penstock.agent.host_place import HostPlace
from penstock.agent.jobs import Job
from penstock.app.agent_id import agent_id
from penstock.app.embedded_parts import EmbeddedParts, open_own
from penstock.app.host.leftover_wals import LeftoverWals
from penstock.app.joining import agent_sources
from penstock.app.opening import Opening
from penstock.app.parts import Environment, Parts
from penstock.app.wal_report import WalReport, of_agent
from penstock.config.settings import ServerSettings
from penstock.groups.shards import ShardSettings
from penstock.kafka.net.server import KafkaServer
from penstock.log.layout import DataLayout
from penstock.log.wals.host_wals import HostWals
from penstock.model.errors import InvalidRequestError
from penstock.objects import open_store
from penstock.order.host.streams import socket_path
from penstock.state.orders import HostOrder, WorkerHub
from penstock.system.lock import DirectoryLock

if TYPE_CHECKING:
    from penstock.app.http.agents_api import AgentSources

_HEAD_AGE_MAX_S: Final = 3.0
_HEAD_STALE_MS: Final = 2_000
"""A worker that read the journal's head longer ago than this doesn't serve groups, and isn't shown
to clients. The writer is a process of the same host, and its head is read twice a second."""


@dataclass(slots=True, kw_only=True)
class WriterParts(EmbeddedParts):
    """The parts of worker 0, which writes the journal."""

    company: Company
    hub: WorkerHub
    leftovers: LeftoverWals

    async def wait_for_others(self, deadline_s: float) -> None:
        """See `Parts`."""
        await self.hub.wait_alone(deadline_s)

    def jobs(self) -> Sequence[Job]:
        """See `Parts`."""
        run = self.leftovers.run_once
        name = "WALs of workers that the host no longer has"
        return [*self.agent.jobs(), Job(name=name, interval_s=1.0, run=run)]

    def status(self) -> dict[str, object]:
        """See `Parts`."""
        return {
            **EmbeddedParts.status(self),
            "worker": 0,
            "workers": self.settings.workers,
            "group_shards": len(self.company.shards.owned()),
        }

    def gauges(self) -> dict[str, float]:
        """See `Parts`."""
        return {
            **EmbeddedParts.gauges(self),
            "penstock_agents": sum(agent.live for agent in self.view.agents()),
            "penstock_group_shards": len(self.company.shards.owned()),
        }

    def agent_sources(self) -> "AgentSources":
        """See `Parts`."""
        return agent_sources(self, without_secret=True)


@dataclass(slots=True, kw_only=True)
class WorkerParts(Parts):
    """The parts of any other worker."""

    index: int
    company: Company
    foundation: HostFoundation

    @property
    def order(self) -> HostOrder:
        """The worker's end of the order, which worker 0 keeps."""
        return self.foundation.order

    def status(self) -> dict[str, object]:
        """See `Parts`."""
        report = self._wal_report()
        return {
            "worker": self.index,
            "workers": self.settings.workers,
            "fsync": self.settings.fsync,
            "wal": report.status() if report else None,
            "group_shards": len(self.company.shards.owned()),
        }

    def gauges(self) -> dict[str, float]:
        """See `Parts`."""
        report = self._wal_report()
        now_s = self.clock.monotonic_s()
        return {
            **(report.gauges() if report else {}),
            "penstock_append_waiting_bytes": self.foundation.log.waiting_bytes,
            "penstock_foreign_objects_total": len(self.log.numbers.foreign),
            "penstock_journal_confirmed_seconds": now_s - self.order.head_confirmed_s,
            "penstock_agents": sum(agent.live for agent in self.view.agents()),
            "penstock_group_shards": len(self.company.shards.owned()),
        }

    def not_ready(self) -> str:
        """See `Parts`."""
        age_s = self.clock.monotonic_s() - self.order.head_confirmed_s
        if self.order.answering_since_s is None or age_s > _HEAD_AGE_MAX_S:
            return "worker 0, which writes the journal, doesn't answer"
        return ""

    async def back_up(
        self,
        destination: str,
        progress: Callable[[int, int], None] | None = None,  # noqa: ARG002 - the port's
    ) -> dict[str, object]:
        """See `Parts`."""
        raise InvalidRequestError(
            "back up", destination, f"this is worker {self.index}", "ask worker 0"
        )

    def agent_sources(self) -> "AgentSources":
        """See `Parts`."""
        return agent_sources(self, without_secret=True)

    def _wal_report(self) -> WalReport | None:
        log = self.foundation.log
        return of_agent(log.uploader, log.own_wal.free_bytes, self.settings.wal_bytes_max)


async def open_writer(settings: ServerSettings, environment: Environment) -> WriterParts:
    """Open worker 0; nothing listens yet. Event loop only.

    Raises:
        ConflictError: another process uses the data directory.
        CorruptDataError: the directory's files don't hold what was written.
    """
    layout = DataLayout.of(settings.data)
    with ExitStack() as closing:
        opening, agent, foundation = await open_own(
            settings, environment, layout, closing, host=_place(layout)
        )
        assert agent.company is not None
        assert foundation.hub is not None
        return WriterParts(
            settings=settings,
            environment=environment,
            layout=layout,
            clock=environment.clock,
            metrics=opening.metrics,
            pool=opening.pool,
            agent=agent,
            foundation=foundation,
            company=agent.company,
            kafka=KafkaServer(agent.broker),
            hub=foundation.hub,
            leftovers=LeftoverWals(
                layout=layout,
                count=settings.workers,
                me=foundation.agent_id,
                view=foundation.view,
                queries=foundation.queries,
                take_over=foundation.log.take_over,
            ),
            closing=closing.pop_all(),
        )


async def open_worker(
    settings: ServerSettings, environment: Environment, *, index: int
) -> WorkerParts:
    """Open worker `index`, 1 or more, of a host whose worker 0 serves or soon will.

    Raises:
        ConflictError: another process runs as this worker.
    """
    shared = DataLayout.of(settings.data)
    layout = DataLayout(shared.worker(index))
    with ExitStack() as closing:
        closing.callback(DirectoryLock.acquire(layout.root).release)
        opening = Opening(settings, environment, layout, closing)
        writer = f"worker-{index}"
        ports = opening.ports(
            HostJournal(database=shared.metadata, host=_place(shared)),
            lambda: open_store(str(shared.objects), executor=opening.pool, writer=writer),
        )
        agent = await assemble(
            opening.agent_settings(
                me=agent_id(layout.root, wanted=0, random=environment.random),
                shards=ShardSettings(stale_ms=_HEAD_STALE_MS),
                cut_off_s=_HEAD_STALE_MS / 1000,
            ),
            ports,
        )
        foundation = agent.foundation
        assert isinstance(foundation, HostFoundation)
        assert agent.company is not None
        return WorkerParts(
            settings=settings,
            layout=layout,
            clock=environment.clock,
            metrics=opening.metrics,
            pool=opening.pool,
            agent=agent,
            foundation=foundation,
            company=agent.company,
            kafka=KafkaServer(agent.broker),
            index=index,
            closing=closing.pop_all(),
        )


def _place(shared: DataLayout) -> HostPlace:
    return HostPlace(socket=socket_path(shared.root), find_wals=partial(HostWals, shared))
