"""An embedded server, put together: everything in one data directory, and nobody else.

Order at the start: the lock, then the order of commands (which says what the WAL must hold), then
the WAL, then the log, groups and the Kafka face on top. The end is the reverse.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.agent.jobs import Job
from penstock.app import offline
from penstock.app.face import open_face
from penstock.app.instruments import LogInstruments
from penstock.app.layout import DataLayout
from penstock.app.limits import log_limits
from penstock.app.parts import POOL_THREADS, Environment, Parts, ThreadQueries
from penstock.app.store_instruments import StoreInstruments
from penstock.app.wal_report import WalReport
from penstock.config.settings import ServerSettings
from penstock.log import Log
from penstock.log.append.lane import Delivery
from penstock.log.fetch.remote_wal import DirectoryWals
from penstock.log.opening.embedded import open_order, open_wal
from penstock.log.opening.left import note_left
from penstock.log.opening.state_check import StateChecker, mark_suspect
from penstock.log.upkeep import Upkeep
from penstock.model.errors import CorruptDataError
from penstock.objects import open_reliable_store, open_store
from penstock.objects.origins import open_origins
from penstock.observability.metrics import Metrics
from penstock.order.local_order import Order
from penstock.ports.device import Device
from penstock.ports.objects import ObjectStore
from penstock.recovery.restore import refuse_unfinished
from penstock.state.ages import Ages
from penstock.state.read.view import StateView
from penstock.system.files import PosixDevice
from penstock.system.lock import DirectoryLock
from penstock.version import VERSION
from penstock.wal import WalReader, WalWriter

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class EmbeddedParts(Parts):
    """The parts of an embedded server."""

    environment: Environment
    order: Order
    log: Log
    wal_writer: WalWriter
    upkeep: Upkeep

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
        self.log.start()
        self.groups.start()

    async def drain(self, deadline_s: float) -> bool:
        """See `Parts`."""
        return await self.log.close(deadline_s)

    def jobs(self) -> Sequence[Job]:
        """See `Parts`."""
        interval_s = self.settings.retention_check_ms / 1000
        return [
            Job(
                name="expiry of idle groups",
                interval_s=interval_s,
                run=self.groups.expire,
                matters=True,
            ),
            Job(
                name="retention", interval_s=interval_s, run=self.log.keeper.run_once, matters=True
            ),
            Job(name="leftovers", interval_s=1.0, run=self.log.keeper.clear_leftovers),
            Job(name="scrub", interval_s=1.0, run=self.log.scrubber.run_once),
            Job(
                name="upkeep of the journal", interval_s=1.0, run=self.upkeep.run_once, matters=True
            ),
            Job(name="checkpoints", interval_s=1.0, run=self.upkeep.checkpoint, matters=True),
        ]

    def status(self) -> dict[str, Any]:
        """See `Parts`."""
        return {
            "fsync": self.settings.fsync,
            "wal": self._wal_report().status(),
            "segments_stored": self.log.uploader.segment_count,
            "state": {
                "checks": self.upkeep.check_count,
                "checked_position": self.upkeep.checked_position,
                "rebuilt_because": self.order.rebuilt_because,
            },
        }

    def gauges(self) -> dict[str, float]:
        """See `Parts`."""
        return {
            **self._wal_report().gauges(),
            "penstock_append_waiting_bytes": self.log.lane.waiting_bytes,
            "penstock_foreign_objects_total": len(self.log.numbers.foreign),
            "penstock_state_checks_total": self.upkeep.check_count,
            "penstock_state_rebuilt": bool(self.order.rebuilt_because),
            "penstock_state_unchecked_entries": max(
                0, self.order.position - self.upkeep.checked_position
            ),
        }

    def _wal_report(self) -> WalReport:
        return WalReport(
            uploader=self.log.uploader,
            free_bytes=self.wal_writer.free_bytes,
            bytes_max=self.settings.wal_bytes_max,
        )

    def not_ready(self) -> str:
        """See `Parts`. A WAL that no segment takes fills, and then producers wait in vain."""
        uploader = self.log.uploader
        if uploader.last_error and uploader.pending_bytes >= self.settings.wal_bytes_max // 2:
            return f"the WAL fills, since nothing of it can be stored: {uploader.last_error}"
        return ""

    async def back_up(
        self, destination: str, progress: offline.Progress | None = None
    ) -> dict[str, Any]:
        """See `Parts`."""
        with self.log.keeper.held():
            await self.log.flush()
            return await offline.back_up(
                self.layout,
                destination,
                store=self.store,
                pool=self.pool,
                clock=self.clock,
                random=self.environment.random,
                progress=progress,
                is_served=True,
            )


@dataclass(slots=True, kw_only=True)
class Storage:
    """What lies beneath groups and the Kafka face of a server with a directory of its own."""

    metrics: Metrics
    order: Order
    ages: Ages
    queries: ThreadQueries
    view: StateView
    wal_writer: WalWriter
    pool: ThreadPoolExecutor
    store: ObjectStore
    log: Log
    upkeep: Upkeep


def open_embedded(settings: ServerSettings, environment: Environment) -> EmbeddedParts:
    """Open the data directory and put the parts together; nothing listens yet. Event loop only.

    Raises:
        ConflictError: another process uses the data directory.
        CorruptDataError: what lies there is not what was written.
    """
    layout = DataLayout.of(settings.data)
    with ExitStack() as closing:
        storage = open_storage(settings, environment, layout, closing)
        log, order, view = storage.log, storage.order, storage.view
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
        )
        return EmbeddedParts(
            settings=settings,
            environment=environment,
            layout=layout,
            clock=environment.clock,
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
            closing=closing.pop_all(),
        )


def open_storage(
    settings: ServerSettings,
    environment: Environment,
    layout: DataLayout,
    closing: ExitStack,
    *,
    find_wal: Callable[[int], Device | None] | None = None,
    on_delivered: Callable[[Delivery], None] = lambda _: None,
) -> Storage:
    """Lock and open a data directory.

    Args:
        find_wal: gives the devices of other workers' WALs by their keys; None: there are none.
        on_delivered: see `Log`.
    """
    closing.callback(DirectoryLock.acquire(layout.root).release)
    refuse_unfinished(layout.metadata)
    clock, random = environment.clock, environment.random
    metrics = Metrics()
    device = PosixDevice(layout.root)
    order = open_order(
        layout.metadata,
        device,
        clock=clock,
        random=random,
        fsync=settings.fsync,
        software=VERSION,
        labels=settings.labels,
        endpoint=str(environment.advertised),
        peer=str(environment.peer or ""),
        checks_state=settings.state_check_interval_ms > 0,
    )

    def close_order() -> None:
        # All connections of this process that read are closed by now.
        if order.close():
            note_left(layout.metadata)

    closing.callback(close_order)
    clock.start_from(order.found_ms)
    ages = Ages(clock)

    def on_fatal(error: BaseException) -> None:
        if isinstance(error, CorruptDataError) and error.subject == str(layout.metadata):
            # Whatever has found it: the next start need not find it once more.
            mark_suspect(layout.metadata, error.detail)
            logger.error("%s; the next start makes it again", error)
        environment.on_fatal(error)

    queries = ThreadQueries(layout.metadata, on_damaged=on_fatal)
    closing.callback(queries.close)
    view = StateView.load(queries())
    wal_writer = open_wal(
        device,
        queries(),
        file_bytes=settings.wal_file_bytes,
        bytes_max=settings.wal_bytes_max,
        fsync=settings.fsync,
    )
    closing.callback(wal_writer.close)
    wal_reader = WalReader(device, lost=wal_writer.recovery.lost)
    closing.callback(wal_reader.close)
    pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="storage")
    closing.callback(pool.shutdown)
    remote = None
    if find_wal is not None:
        remote = DirectoryWals(find=find_wal, pool=pool)
        closing.callback(remote.close)
    # What a restore inherited is read where the parent keeps it.
    store = open_origins(
        open_store(str(layout.objects), executor=pool),
        queries().origins(),
        partial(
            open_reliable_store,
            clock=clock,
            random=random,
            meter=StoreInstruments(metrics),
            executor=pool,
        ),
    )
    limits = log_limits(settings)
    log = Log(
        order=order,
        view=view,
        queries=queries,
        wal_writer=wal_writer,
        wal_reader=wal_reader,
        store=store,
        clock=clock,
        ages=ages,
        limits=limits,
        identity=(order.agent_id, order.epoch),
        pool=pool,
        on_fatal=on_fatal,
        instruments=LogInstruments(metrics),
        remote_wal=remote,
        on_delivered=on_delivered,
    )
    upkeep = Upkeep(
        journal=order,
        store=store,
        scratch=layout.scratch,
        clock=clock,
        pool=pool,
        limits=limits,
        checker=StateChecker(
            root=layout.root, database=layout.metadata, scratch=layout.scratch / "state-check"
        ),
    )
    return Storage(
        metrics=metrics,
        order=order,
        ages=ages,
        queries=queries,
        view=view,
        wal_writer=wal_writer,
        pool=pool,
        store=store,
        log=log,
        upkeep=upkeep,
    )
