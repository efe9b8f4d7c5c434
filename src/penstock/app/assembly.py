"""Puts a server together from its parts, and takes it apart again. Nothing else knows them all.

Order at the start: the lock, then the order of commands (which says what the WAL must hold), then
the WAL, then the log, groups and the Kafka face on top. The end is the reverse.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from penstock.app.instruments import KafkaInstruments, LogInstruments
from penstock.app.layout import DataLayout
from penstock.app.limits import group_settings, kafka_settings, log_limits
from penstock.config.checks import advertised_address
from penstock.config.settings import ServerSettings
from penstock.config.version import VERSION
from penstock.groups.coordinator import GroupCoordinator
from penstock.kafka.broker import Broker
from penstock.kafka.server import KafkaServer
from penstock.log import Log
from penstock.log.opening import open_order, open_wal
from penstock.log.restore import refuse_unfinished
from penstock.log.upkeep import Upkeep
from penstock.metadata.order import Order
from penstock.metadata.queries import Queries
from penstock.metadata.view import MetadataView
from penstock.objects import open_store
from penstock.observability.metrics import Metrics
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.system.files import PosixDevice
from penstock.system.lock import DirectoryLock
from penstock.wal import WalReader, WalWriter

logger = logging.getLogger(__name__)

POOL_THREADS = 4
"""Threads for block reads, object puts and WAL preparation: what they wait for is the disk."""


class ThreadQueries:
    """Gives the calling thread its own read-only connection, as SQLite wants it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[Queries] = []

    def __call__(self) -> Queries:
        """The calling thread's connection, opened at its first call."""
        found: Queries | None = getattr(self._local, "queries", None)
        if found is None:
            found = self._local.queries = Queries(self._path)
            with self._lock:
                self._opened.append(found)
        return found

    def close(self) -> None:
        """Close all connections, once no thread uses one any more."""
        with self._lock:
            for queries in self._opened:
                queries.close()
            self._opened.clear()


@dataclass(slots=True, kw_only=True)
class Parts:
    """A server's parts, open."""

    settings: ServerSettings
    layout: DataLayout
    clock: Clock
    metrics: Metrics
    order: Order
    view: MetadataView
    queries: ThreadQueries
    store: ObjectStore
    wal_writer: WalWriter
    pool: ThreadPoolExecutor
    log: Log
    upkeep: Upkeep
    groups: GroupCoordinator
    broker: Broker
    kafka: KafkaServer
    closing: ExitStack = field(default_factory=ExitStack)
    """Closes what the parts hold, in reverse; the last is the directory's lock."""


def assemble(
    settings: ServerSettings,
    *,
    clock: Clock,
    random: Random,
    on_fatal: Callable[[BaseException], None],
) -> Parts:
    """Open the data directory and put the parts together; nothing listens yet. Event loop only.

    Args:
        on_fatal: ends the process; called when it is unknown what is durable.

    Raises:
        ConflictError: another process uses the data directory.
        CorruptDataError: what lies there is not what was written.
    """
    layout = DataLayout(Path(settings.data).absolute())
    with ExitStack() as closing:
        closing.callback(DirectoryLock.acquire(layout.root).release)
        refuse_unfinished(layout.metadata)
        parts = _open(settings, layout, closing, clock=clock, random=random, on_fatal=on_fatal)
        parts.closing.push(closing.pop_all())
        return parts


def _open(
    settings: ServerSettings,
    layout: DataLayout,
    closing: ExitStack,
    *,
    clock: Clock,
    random: Random,
    on_fatal: Callable[[BaseException], None],
) -> Parts:
    metrics = Metrics()
    device = PosixDevice(layout.root)
    order = open_order(
        layout.metadata,
        device,
        clock=clock,
        random=random,
        fsync=settings.fsync,
        software=VERSION,
    )
    closing.callback(order.close)
    queries = ThreadQueries(layout.metadata)
    closing.callback(queries.close)
    view = MetadataView.load(queries())
    wal_writer = open_wal(
        device,
        queries(),
        file_bytes=settings.wal_file_bytes,
        bytes_max=settings.wal_bytes_max,
        fsync=settings.fsync,
    )
    closing.callback(wal_writer.close)
    wal_reader = WalReader(device)
    closing.callback(wal_reader.close)
    pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="storage")
    closing.callback(pool.shutdown)
    store = open_store(str(layout.objects), executor=pool)
    limits = log_limits(settings)
    log = Log(
        order=order,
        view=view,
        queries=queries,
        wal_writer=wal_writer,
        wal_reader=wal_reader,
        store=store,
        clock=clock,
        limits=limits,
        identity=(order.agent_id, order.epoch),
        pool=pool,
        on_fatal=on_fatal,
        instruments=LogInstruments(metrics),
    )
    upkeep = Upkeep(
        journal=order,
        store=store,
        scratch=layout.scratch,
        clock=clock,
        pool=pool,
        limits=limits,
    )
    groups = GroupCoordinator(
        committer=log,
        view=view,
        queries=queries(),
        clock=clock,
        random=random,
        settings=group_settings(settings),
    )
    advertised = advertised_address(settings)
    broker = Broker(
        view=view,
        committer=log,
        log=log,
        groups=groups,
        clock=clock,
        random=random,
        cluster_id=order.cluster_id,
        node_id=order.agent_id,
        advertised_host=advertised.host,
        advertised_port=advertised.port,
        settings=kafka_settings(settings),
        instruments=KafkaInstruments(metrics),
    )
    return Parts(
        settings=settings,
        layout=layout,
        clock=clock,
        metrics=metrics,
        order=order,
        view=view,
        queries=queries,
        store=store,
        wal_writer=wal_writer,
        pool=pool,
        log=log,
        upkeep=upkeep,
        groups=groups,
        broker=broker,
        kafka=KafkaServer(broker),
    )
