"""The ports on which rigs of a cluster put their agents together: files that are real, and time,
threads, journal and store that are simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from penstock.agent.cluster import ClusterJournal
from penstock.agent.ports import AgentPorts
from penstock.agent.thread_queries import ThreadQueries
from penstock.log.settings import LogSettings
from penstock.log.wals.claims import WalFolder
from penstock.model.errors import RetryableError
from penstock.peers.zone import Calls
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.journal import Journal
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.state.orders import ClusterOrder
from penstock.system.believed_clock import BelievedClock
from penstock.system.files import PosixDevice
from support.simulated.inline_executor import InlineExecutor

FILE_BYTES = 64 << 10
BELIEVED_AFTER_MS = 600_000


class NoCalls:
    """No other agent can be called."""

    async def call(self, address: str, path: str, body: bytes, **_: Any) -> Any:
        """See `Calls`."""
        raise RetryableError("call", address, "there is no network")


def cluster_limits(**changes: Any) -> LogSettings:
    """Small caches, and no upload that a test doesn't ask for."""
    values: dict[str, Any] = {
        "durability": "object",
        "frame_bytes_max": FILE_BYTES // 2,
        "append_wait_ms_max": 10_000,
        "flush_bytes": 64 << 10,
        "flush_interval_ms": 250,
        "tail_cache_bytes": 1 << 20,
        "block_cache_bytes": 256 << 10,
        "block_bytes": 16 << 10,
        "segment_bytes": 1 << 30,
        "segment_age_ms": 3_600_000,
        "delete_grace_ms": 60_000,
    }
    return LogSettings(**(values | changes))


def cluster_ports(
    journal: Journal,
    *,
    cluster_id: str,
    replica: Path,
    store: ObjectStore,
    parents: Mapping[str, ObjectStore] | None = None,
    clock: Clock,
    random: Random,
    fatal: list[BaseException],
    closes: list[Callable[[], None]],
    calls: Calls | None = None,
    wal: Device | None = None,
    wal_bytes_max: int = 8 * FILE_BYTES,
    wal_file_bytes: int = FILE_BYTES,
    applier: Executor | None = None,
    pool: Executor | None = None,
    on_opened: Callable[[ClusterOrder], None] = lambda _: None,
) -> AgentPorts:
    """An agent's ports.

    Args:
        parents: stores of other clusters that this one was restored from, by URL.
        replica: the file of its replica; its WAL and scratch files lie in the same folder.
        fatal: takes what ends its process.
        closes: takes what closes its files.
        wal: where its WAL lies; None: beside the replica.
        applier: runs what applies entries, and `pool` the rest; None: the event loop's thread.
        on_opened: see `ClusterJournal`.
    """
    folder = replica.parent

    def open_queries(path: Path, _: object) -> ThreadQueries:
        queries = ThreadQueries(path)
        closes.append(queries.close)
        return queries

    return AgentPorts(
        clock=BelievedClock(clock, after_ms=BELIEVED_AFTER_MS),
        random=random,
        on_fatal=fatal.append,
        journal=ClusterJournal(
            journal=journal,
            cluster_id=cluster_id,
            replica=replica,
            applier=applier or InlineExecutor(random, workers=1),
            calls=calls or NoCalls(),
            on_opened=on_opened,
        ),
        open_store=lambda url: (parents or {})[url] if url else store,
        open_queries=open_queries,
        wal_folder=WalFolder(
            device=wal or PosixDevice(folder),
            random=random,
            file_bytes=wal_file_bytes,
            bytes_max=wal_bytes_max,
        ),
        scratch=folder / "scratch",
        pool=pool or InlineExecutor(random, workers=4),
        on_close=closes.append,
    )
