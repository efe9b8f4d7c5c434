"""Puts a server together from its parts, and takes it apart again. Nothing else knows them all.

Order at the start: the lock, then the order of commands (which says what the WAL must hold), then
the WAL, then the log, groups and the Kafka face on top. The end is the reverse.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass(slots=True, kw_only=True)
class Parts:
    """A server's parts, open."""

    settings: ServerSettings
    layout: DataLayout
    clock: Clock
    metrics: Metrics
    lock: DirectoryLock
    order: Order
    view: MetadataView
    queries: Callable[[], Queries]
    store: ObjectStore
    wal_writer: WalWriter
    pool: ThreadPoolExecutor
    log: Log
    upkeep: Upkeep
    groups: GroupCoordinator
    broker: Broker
    kafka: KafkaServer


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
    lock = DirectoryLock.acquire(layout.root)
    try:
        return _open(settings, layout, lock, clock=clock, random=random, on_fatal=on_fatal)
    except BaseException:
        lock.release()
        raise


def _open(
    settings: ServerSettings,
    layout: DataLayout,
    lock: DirectoryLock,
    *,
    clock: Clock,
    random: Random,
    on_fatal: Callable[[BaseException], None],
) -> Parts:
    metrics = Metrics()
    order = Order.open(
        layout.metadata, clock=clock, random=random, fsync=settings.fsync, software=VERSION
    )
    queries = per_thread_queries(layout.metadata)
    view = MetadataView.load(queries())
    device = PosixDevice(layout.root)
    wal_writer = WalWriter.open(
        device,
        file_bytes=settings.wal_file_bytes,
        bytes_max=settings.wal_bytes_max,
        named=named_ranges(queries()),
        last_generation=queries().last_wal_generation(),
        fsync=settings.fsync,
    )
    pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="storage")
    store = open_store(str(layout.objects), executor=pool)
    limits = log_limits(settings)
    log = Log(
        order=order,
        view=view,
        queries=queries,
        wal_writer=wal_writer,
        wal_reader=WalReader(device),
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
        lock=lock,
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


def per_thread_queries(path: Path) -> Callable[[], Queries]:
    """Gives the calling thread its own read-only connection, as SQLite wants it."""
    local = threading.local()

    def queries() -> Queries:
        found: Queries | None = getattr(local, "queries", None)
        if found is None:
            found = local.queries = Queries(path)
        return found

    return queries


def named_ranges(queries: Queries) -> dict[int, int]:
    """By WAL generation, the end in bytes of the last run that the journal names in it."""
    named: dict[int, int] = {}
    for run in queries.wal_runs():
        named[run.generation] = max(named.get(run.generation, 0), run.position + run.length)
    return named
