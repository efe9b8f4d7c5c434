"""A server of any shape opens threads, connections, stores and metrics for its agent here.

They are closed in the reverse order: the threads end first, then files and connections, which a
thread may use until it ends, then the directory's lock.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from penstock.agent.ports import AgentJournal, AgentPorts, OnDamaged
from penstock.agent.settings import AgentSettings, ClusterSettings
from penstock.agent.thread_queries import ThreadQueries
from penstock.app.agent_list import HTTP_LABEL
from penstock.app.instruments import KafkaInstruments, LogInstruments
from penstock.app.limits import (
    group_settings,
    kafka_settings,
    log_limits,
    membership_settings,
)
from penstock.app.parts import Environment
from penstock.app.store_instruments import StoreInstruments
from penstock.config.settings import ServerSettings
from penstock.groups.shards import ShardSettings
from penstock.log.layout import DataLayout
from penstock.log.wals.claims import WalFolder
from penstock.objects.opening import open_reliable_store
from penstock.observability.metrics import Metrics
from penstock.order.protocol import AgentIdentity
from penstock.ports.objects import ObjectStore
from penstock.security.listener import DEFAULT_NAME, LISTENERS_LABEL, format_endpoints
from penstock.state.schema import FEATURE_LEVEL_MAX
from penstock.system.files import PosixDevice
from penstock.version import VERSION

POOL_THREADS: Final = 4
"""Threads for block reads, object puts and WAL preparation. They mostly wait for the disk."""


class Opening:
    """Opens what one server needs, and has `closing` close it."""

    def __init__(
        self,
        settings: ServerSettings,
        environment: Environment,
        layout: DataLayout,
        closing: ExitStack,
    ) -> None:
        """
        Args:
            layout: the layout of the server's own directory.
            closing: closes everything that is opened here.
        """
        self._settings = settings
        self._environment = environment
        self._layout = layout
        self.metrics = Metrics()
        self._store_instruments = StoreInstruments(self.metrics)
        # Files are entered before the pool, so that they are closed after it: closing a SQLite
        # connection while a thread uses it crashes the process.
        self._files = closing.enter_context(ExitStack())
        self.pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="storage")
        closing.callback(self.pool.shutdown)

    def open_remote(self, url: str, *, writer: str = "") -> ObjectStore:
        """Open a remote store whose requests are retried and counted.

        Args:
            writer: see `open_store`.
        """
        return open_reliable_store(
            url,
            clock=self._environment.clock,
            random=self._environment.random,
            meter=self._store_instruments,
            executor=self.pool,
            writer=writer,
        )

    def ports(self, journal: AgentJournal, open_own: Callable[[], ObjectStore]) -> AgentPorts:
        """Return the ports of the server's agent.

        Args:
            open_own: opens the agent's own store.
        """
        environment, settings = self._environment, self._settings
        return AgentPorts(
            clock=environment.clock,
            random=environment.random,
            on_fatal=environment.on_fatal,
            journal=journal,
            open_store=lambda url: self.open_remote(url) if url else open_own(),
            open_queries=self._open_queries,
            wal_folder=WalFolder(
                device=PosixDevice(self._layout.root),
                random=environment.random,
                file_bytes=settings.wal_file_bytes,
                bytes_max=settings.wal_bytes_max,
                fsync=settings.fsync,
            ),
            scratch=self._layout.scratch,
            pool=self.pool,
            on_close=self._files.callback,
            kafka_instruments=KafkaInstruments(self.metrics),
            log_instruments=LogInstruments(self.metrics),
        )

    def agent_settings(
        self,
        *,
        me: int = 0,
        shards: ShardSettings | None = None,
        cut_off_s: float = 0.75,
        cluster: ClusterSettings | None = None,
    ) -> AgentSettings:
        """Return the settings of the server's agent.

        Args:
            me: the agent's id; 0: the journal gives the id.
            shards, cut_off_s, cluster: see `AgentSettings`.
        """
        environment, settings = self._environment, self._settings
        labels = settings.labels
        if environment.http is not None:
            labels = {**labels, HTTP_LABEL: str(environment.http)}
        if [each.name for each in environment.listeners] not in ([], [DEFAULT_NAME]):
            labels = {**labels, LISTENERS_LABEL: format_endpoints(environment.listeners)}
        return AgentSettings(
            identity=AgentIdentity(
                agent_id=me,
                labels=labels,
                software=VERSION,
                endpoint=str(environment.advertised),
                peer=str(environment.peer or ""),
                level_max=FEATURE_LEVEL_MAX,
            ),
            advertised_host=environment.advertised.host,
            advertised_port=environment.advertised.port,
            log=log_limits(settings),
            groups=group_settings(settings),
            kafka=kafka_settings(settings),
            retention_check_s=settings.retention_check_ms / 1000,
            membership=membership_settings(settings),
            shards=shards or ShardSettings(),
            cut_off_s=cut_off_s,
            cluster=cluster,
        )

    def _open_queries(self, path: Path, on_damaged: OnDamaged | None) -> ThreadQueries:
        queries = ThreadQueries(path, on_damaged=on_damaged)
        self._files.callback(queries.close)
        return queries
