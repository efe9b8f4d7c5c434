"""The workers of one host, put together: one journal, one SQLite file, one directory of objects.

Worker 0 is an embedded server that also orders the entries of the others. Each other worker is an
agent in WAL mode: its bytes go to a WAL of its own in `workers/N`, its commands to worker 0, and
it reads state, objects and the other WALs from the shared directory.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.jobs import Job
from penstock.app.agent_id import agent_id
from penstock.app.embedded_parts import EmbeddedParts, Storage, open_storage
from penstock.app.face import open_face
from penstock.app.host.host_wals import HostWals
from penstock.app.host.leftover_wals import LeftoverWals
from penstock.app.instruments import LogInstruments
from penstock.app.joining import (
    agent_sources,
    make_identity,
    make_membership,
    own_wal_folder,
)
from penstock.app.layout import DataLayout
from penstock.app.limits import log_limits
from penstock.app.parts import POOL_THREADS, Environment, Parts, ThreadQueries
from penstock.app.wal_report import WalReport, of_agent
from penstock.config.settings import ServerSettings
from penstock.groups.shards import ShardKeeper, ShardSettings
from penstock.kafka.nodes import ClusterNodes
from penstock.log import Log
from penstock.log.append.lane import Delivery
from penstock.log.cluster_log import ClusterLog
from penstock.log.fetch.remote_wal import DirectoryWals
from penstock.log.ordering import Applied
from penstock.membership.membership import Membership
from penstock.model.errors import FatalStorageError, InvalidRequestError, PenstockError
from penstock.objects import open_reliable_store, open_store
from penstock.objects.origins import open_origins
from penstock.observability.metrics import Metrics
from penstock.order.host.hub import WorkerHub
from penstock.order.host.order import HostOrder
from penstock.order.host.streams import socket_path
from penstock.state.ages import Ages
from penstock.state.read.view import StateView
from penstock.system.lock import DirectoryLock

if TYPE_CHECKING:
    from penstock.app.http.agents_api import AgentSources

logger = logging.getLogger(__name__)

_HEAD_AGE_MAX_S: Final = 3.0


@dataclass(slots=True, kw_only=True)
class WriterParts(EmbeddedParts):
    """Worker 0: the one that writes the journal."""

    hub: WorkerHub
    shards: ShardKeeper
    membership: Membership
    leftovers: LeftoverWals

    async def start(self) -> None:
        """See `Parts`."""
        self.log.start()
        self.membership.start()
        self.groups.start()
        self.shards.start(self.groups)
        await self.hub.start()

    async def wait_for_others(self, deadline_s: float) -> None:
        """See `Parts`."""
        await self.hub.wait_alone(deadline_s)

    async def drain(self, deadline_s: float) -> bool:
        """See `Parts`. The other workers have drained by now."""
        await self.shards.close()
        await self.membership.close()
        await self.hub.close()
        return await self.log.close(deadline_s)

    def jobs(self) -> Sequence[Job]:
        """See `Parts`."""
        run = self.leftovers.run_once
        name = "WALs of workers that are no more"
        return [*EmbeddedParts.jobs(self), Job(name=name, interval_s=1.0, run=run)]

    def status(self) -> dict[str, Any]:
        """See `Parts`."""
        return {
            **EmbeddedParts.status(self),
            "worker": 0,
            "workers": self.settings.workers,
            "group_shards": len(self.shards.owned()),
        }

    def gauges(self) -> dict[str, float]:
        """See `Parts`."""
        return {
            **EmbeddedParts.gauges(self),
            "penstock_agents": sum(agent.live for agent in self.view.agents()),
            "penstock_group_shards": len(self.shards.owned()),
        }

    def agent_sources(self) -> "AgentSources":
        """See `Parts`."""
        return agent_sources(self, self.membership, without_secret=True)


@dataclass(slots=True, kw_only=True)
class WorkerParts(Parts):
    """Any other worker."""

    index: int
    order: HostOrder
    log: ClusterLog
    shards: ShardKeeper
    environment: Environment
    membership: Membership | None = None

    @property
    def epoch(self) -> int:
        """See `Parts`."""
        return self.order.epoch

    @property
    def position(self) -> int:
        """See `Parts`."""
        return self.order.position

    async def start(self) -> None:
        """See `Parts`."""
        await self.order.start(
            on_applied=self._on_applied, on_reset=self._on_reset, on_stopped=self._on_stopped
        )
        self.membership = make_membership(
            self.settings,
            self.environment,
            me=self.order.agent_id,
            epoch=self.order.epoch,
            order=self.order,
            view=self.view,
        )
        self.membership.start()
        await self.log.start(epoch=self.order.epoch)
        self.groups.start()
        self.shards.start(self.groups)

    async def drain(self, deadline_s: float) -> bool:
        """See `Parts`."""
        await self.shards.close()
        drained = await self.log.close(deadline_s)
        if self.membership is not None:
            await self.membership.end(self.order.end_epoch)
        await self.order.close()
        return drained

    def jobs(self) -> Sequence[Job]:
        """See `Parts`. Retention and the rest are worker 0's."""
        interval_s = self.settings.retention_check_ms / 1000
        return [
            Job(
                name="expiry of idle groups",
                interval_s=interval_s,
                run=self.groups.expire,
                matters=True,
            ),
            Job(
                name="failed objects",
                interval_s=interval_s,
                run=self.log.keeper.run_once,
                matters=True,
            ),
            Job(name="scrub", interval_s=1.0, run=self.log.scrubber.run_once),
        ]

    def status(self) -> dict[str, Any]:
        """See `Parts`."""
        report = self._wal_report()
        return {
            "worker": self.index,
            "workers": self.settings.workers,
            "fsync": self.settings.fsync,
            "wal": report.status() if report else None,
            "group_shards": len(self.shards.owned()),
        }

    def gauges(self) -> dict[str, float]:
        """See `Parts`."""
        report = self._wal_report()
        now_s = self.clock.monotonic_s()
        return {
            **(report.gauges() if report else {}),
            "penstock_append_waiting_bytes": self.log.waiting_bytes,
            "penstock_foreign_objects_total": len(self.log.numbers.foreign),
            "penstock_journal_confirmed_seconds": now_s - self.order.head_confirmed_s,
            "penstock_agents": sum(agent.live for agent in self.view.agents()),
            "penstock_group_shards": len(self.shards.owned()),
        }

    def not_ready(self) -> str:
        """See `Parts`."""
        age_s = self.clock.monotonic_s() - self.order.head_confirmed_s
        if self.order.answering_since_s is None or age_s > _HEAD_AGE_MAX_S:
            return "the worker that writes the journal is away"
        return ""

    async def back_up(
        self,
        destination: str,
        progress: Callable[[int, int], None] | None = None,  # noqa: ARG002 - the port's
    ) -> dict[str, Any]:
        """See `Parts`."""
        raise InvalidRequestError(
            "back up", destination, f"this is worker {self.index}", "ask worker 0"
        )

    def agent_sources(self) -> "AgentSources":
        """See `Parts`."""
        assert self.membership is not None
        return agent_sources(self, self.membership, without_secret=True)

    # -- inside ----------------------------------------------------------------------------------

    def _wal_report(self) -> WalReport | None:
        return of_agent(self.log.uploader, self.log.wal_free_bytes, self.settings.wal_bytes_max)

    def _on_applied(self, applied: Sequence[Applied]) -> None:
        self.log.on_applied(applied)
        self.shards.follow()

    def _on_reset(self) -> int:
        if self.queries.is_replaced:
            # Worker 0 has made the database again. The parent starts this process again, too.
            error = FatalStorageError(
                "follow the journal", str(self.queries.path), "the database was made again"
            )
            self.environment.on_fatal(error)
            raise error
        self.view.reload(self.queries())
        self.log.begin_anew()
        # Who coordinates a group may have changed meanwhile.
        self.shards.follow()
        return self.view.loaded_position

    def _on_stopped(self, error: PenstockError) -> None:
        self.environment.on_fatal(error)


class _SharedFile:
    """Whether the shared SQLite file lacks what this worker knows to be applied."""

    def __init__(self, order: HostOrder) -> None:
        self._order = order
        self._flushed_position = 0

    @property
    def is_behind(self) -> bool:
        """See `penstock.log.fetch.reader.Behind`."""
        return self._order.position > self._flushed_position

    async def flush(self) -> None:
        """See `Behind`. Raises: RetryableError."""
        self._flushed_position = await self._order.flush()


def open_writer(settings: ServerSettings, environment: Environment) -> WriterParts:
    """Open worker 0; nothing listens yet. Event loop only.

    Raises:
        ConflictError: another process uses the data directory.
        CorruptDataError: what lies there is not what was written.
    """
    layout = DataLayout.of(settings.data)
    telling = _Telling()
    with ExitStack() as closing:
        storage = open_storage(
            settings,
            environment,
            layout,
            closing,
            find_wal=lambda wal_key: wals(wal_key),  # noqa: PLW0108 - made below
            on_delivered=telling,
        )
        wals = HostWals(layout, storage.queries)
        log, order, view, clock = storage.log, storage.order, storage.view, environment.clock
        log.position = order.position
        hub = WorkerHub(
            path=socket_path(layout.root),
            cluster_id=order.cluster_id,
            committer=log,
            position=lambda: log.position,
            flush=partial(_flush, storage),
            is_clock_doubted=lambda: storage.ages.now_ms() is None,
        )
        membership = make_membership(
            settings,
            environment,
            me=order.agent_id,
            epoch=order.epoch,
            order=log,
            view=view,
        )
        shards = ShardKeeper(
            me=order.agent_id,
            order=log,
            view=view,
            clock=clock,
            shows_answers=lambda: not log.hidden_position,
        )
        telling.begin(log, hub, shards)
        face = open_face(
            settings,
            environment,
            metrics=storage.metrics,
            view=view,
            queries=storage.queries(),
            log=log,
            committer=log,
            cluster_id=order.cluster_id,
            node_id=order.agent_id,
            shows_answers=lambda: not log.hidden_position,
            now_ms=storage.ages.now_ms,
            ownership=shards,
            cluster=ClusterNodes(me=order.agent_id, view=view, coordinators=shards),
        )
        return WriterParts(
            settings=settings,
            environment=environment,
            layout=layout,
            clock=clock,
            ages=storage.ages,
            metrics=storage.metrics,
            order=order,
            view=view,
            queries=storage.queries,
            store=storage.store,
            wal_writer=storage.wal_writer,
            pool=storage.pool,
            log=log,
            upkeep=storage.upkeep,
            groups=face.groups,
            broker=face.broker,
            kafka=face.kafka,
            hub=hub,
            shards=shards,
            membership=membership,
            leftovers=LeftoverWals(
                layout=layout,
                count=settings.workers,
                me=order.agent_id,
                view=view,
                queries=storage.queries,
                take_over=log.take_over,
            ),
            closing=closing.pop_all(),
        )


class _Telling:
    """Tells the other workers, and this one's shards, what was applied."""

    def __init__(self) -> None:
        self._begun: tuple[Log, WorkerHub, ShardKeeper] | None = None

    def begin(self, log: Log, hub: WorkerHub, shards: ShardKeeper) -> None:
        """Publish deliveries from now on."""
        self._begun = (log, hub, shards)

    def __call__(self, delivery: Delivery) -> None:
        assert self._begun is not None
        log, hub, shards = self._begun
        hub.publish(
            delivery.position,
            delivery.time_ms,
            delivery.changes,
            hidden_position=log.hidden_position,
        )
        shards.follow()


async def _flush(storage: Storage) -> int:
    await storage.log.flush()
    return storage.order.committed_position


async def open_worker(
    settings: ServerSettings, environment: Environment, *, index: int
) -> WorkerParts:
    """Open worker `index`, not 0, beside a worker 0 that serves or soon will.

    Raises:
        ConflictError: another process is this worker.
    """
    shared = DataLayout.of(settings.data)
    layout = DataLayout(shared.worker(index))
    with ExitStack() as closing:
        closing.callback(DirectoryLock.acquire(layout.root).release)
        parts = await _open_worker(settings, environment, shared, layout, closing, index=index)
        parts.closing.push(closing.pop_all())
        return parts


async def _open_worker(
    settings: ServerSettings,
    environment: Environment,
    shared: DataLayout,
    layout: DataLayout,
    closing: ExitStack,
    *,
    index: int,
) -> WorkerParts:
    clock, random = environment.clock, environment.random
    metrics = Metrics()
    queries = ThreadQueries(shared.metadata)
    # After the pool: a connection that is closed while a thread uses it ends the process.
    closing.callback(queries.close)
    pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="storage")
    closing.callback(pool.shutdown)
    me = agent_id(layout.root, wanted=0, random=random)
    order = HostOrder(
        path=socket_path(shared.root),
        queries=queries,
        identity=make_identity(settings, environment, me=me),
        clock=clock,
        random=random,
    )
    await order.open()
    ages = Ages(
        clock,
        journal_ms=lambda: order.time_ms,
        is_doubted=lambda: order.is_clock_doubted,
    )
    view = StateView.load(queries())
    remote = DirectoryWals(find=HostWals(shared, queries), pool=pool)
    closing.callback(remote.close)
    # What a restore inherited is read where the parent keeps it.
    store = open_origins(
        open_store(str(shared.objects), executor=pool, writer=f"worker-{index}"),
        queries().origins(),
        partial(open_reliable_store, clock=clock, random=random, executor=pool),
    )
    log = ClusterLog(
        ordering=order,
        view=view,
        queries=queries,
        store=store,
        clock=clock,
        ages=ages,
        limits=log_limits(settings),
        agent_id=me,
        pool=pool,
        on_fatal=environment.on_fatal,
        compare_history=None,
        wal_folder=own_wal_folder(settings, layout, random),
        remote_wal=remote,
        is_keeper=lambda: False,
        instruments=LogInstruments(metrics),
        behind=_SharedFile(order),
    )
    # The writer is a process of this host, and its head is read twice a second.
    shards = ShardKeeper(
        me=me,
        order=order,
        view=view,
        clock=clock,
        shows_answers=lambda: order.shows_answers,
        settings=ShardSettings(stale_ms=2_000),
    )
    face = open_face(
        settings,
        environment,
        metrics=metrics,
        view=view,
        queries=queries(),
        log=log,
        committer=order,
        cluster_id=order.cluster_id,
        node_id=me,
        shows_answers=lambda: order.shows_answers,
        ownership=shards,
        heads=order,
        now_ms=ages.now_ms,
        cluster=ClusterNodes(me=me, view=view, coordinators=shards),
    )
    return WorkerParts(
        settings=settings,
        layout=layout,
        clock=clock,
        ages=ages,
        metrics=metrics,
        view=view,
        queries=queries,
        store=store,
        pool=pool,
        log=log,
        groups=face.groups,
        broker=face.broker,
        kafka=face.kafka,
        index=index,
        order=order,
        shards=shards,
        environment=environment,
    )
