"""The reads of a log: batches by offset, and look-ups by time."""

from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final

from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.reader import LogReader
from penstock.log.fetch.remote_wal import RemoteRuns, RemoteWal
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.fetch.tail import TailCache
from penstock.log.fetch.times import find_max_timestamp, find_time
from penstock.log.fetch.waiters import Waiters
from penstock.log.findings import DamagedError, Damages, Troubles
from penstock.log.instruments import LogInstruments
from penstock.log.partitions import Partitions
from penstock.log.settings import LogSettings
from penstock.log.state_queries import StateQueries
from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey
from penstock.order.port import Heads
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.state.numbers import INT64_MAX
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.wal import WalReader

_ANYWHERE: Final = 1 << 62


class Reads:
    """The reader and its caches. Event loop only."""

    def __init__(
        self,
        *,
        view: StateView,
        queries: StateQueries,
        store: ObjectStore,
        wals: Mapping[int, WalReader],
        partitions: Partitions,
        clock: Clock,
        limits: LogSettings,
        pool: Executor,
        heads: Heads | None,
        remote_wal: RemoteWal | None,
        instruments: LogInstruments,
    ) -> None:
        """
        Args:
            wals: of the own WALs, by key; may change later.
            heads: how far this replica is; None: it is never behind.
            remote_wal: how other agents' WALs are read.
        """
        self._queries = queries
        self._partitions = partitions
        self._clock = clock
        self._limits = limits
        self._heads = heads
        self._instruments = instruments
        self._troubles = Troubles(clock)
        self.tail = TailCache(limits.tail_cache_bytes)
        self.blocks = BlockCache(limits)
        self.waiters = Waiters()
        self.damages = Damages(
            clock=clock,
            partition_name=partitions.name,
            log_start=partitions.known_log_start,
            on_found=instruments.damaged,
            on_healed=instruments.healed,
        )
        own_queries = queries()
        self.checks = RunChecks(
            damages=self.damages,
            clock=clock,
            pool=pool,
            clean_end=partial(_clean_end, own_queries),
            epochs=view.epoch_starts,
            seed_of=view.seed,
            again_s=limits.check_again_after_ms / 1000,
            store=store,
            topic_id_of=partitions.topic_id_of,
        )
        self.reader = LogReader(
            queries=own_queries,
            tail=self.tail,
            blocks=self.blocks,
            wals=wals,
            store=store,
            limits=limits,
            checks=self.checks,
            remote_runs=None
            if remote_wal is None
            else RemoteRuns(remote_wal, owner_of=self._wal_owner, pool=pool),
            before_stored=None if heads is None else self._check_head,
            behind=queries,
        )

    @property
    def loads_max(self) -> int:
        """Loads that one fetch may have under way: together they must not push one another out
        of the block cache."""
        limits = self._limits
        blocks = limits.block_cache_bytes // limits.block_bytes
        return max(1, blocks // (2 * (1 + limits.prefetch_blocks)))

    def failed(self, key: PartitionKey, error: BaseException) -> None:
        """Count a client's read of a partition that failed and, unless it is damage, which has a
        line of its own, say so in the log."""
        self._instruments.read_failed(type(error).__name__)
        if not isinstance(error, DamagedError):
            self._troubles.met(error, self._partitions.name(key))

    async def offset_for_time(self, key: PartitionKey, timestamp_ms: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record whose timestamp is at least
        `timestamp_ms`."""
        start = self._partitions.log_start(key)
        return await find_time(
            self.reader, self.checks.in_pool, self._queries.caught_up, key, timestamp_ms, start
        )

    async def offset_of_max_timestamp(self, key: PartitionKey) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record that has the greatest timestamp."""
        start = self._partitions.log_start(key)
        return await find_max_timestamp(
            self.reader, self.checks.in_pool, self._queries.caught_up, key, start
        )

    async def close(self) -> None:
        """End the loads that are under way."""
        await self.reader.close()
        await self.blocks.close()

    def _wal_owner(self, wal_key: int) -> int | None:
        """Return the agent that owns a WAL; key 0 is that of the journal's writer on a host,
        whichever worker it is."""
        if wal_key == 0:
            return 0
        for wal in self._queries().wals():
            if wal.wal_key == wal_key:
                return wal.agent
        return None

    def _check_head(self) -> None:
        """Refuse to serve what may have been deleted: the grace that a deletion waits for is
        twice as long as this agent goes on without knowing the journal's head.

        Raises:
            RetryableError: it has not been confirmed for too long.
        """
        assert self._heads is not None
        age_s = self._clock.monotonic_s() - self._heads.head_confirmed_s
        if age_s > self._limits.delete_grace_ms / 2000:
            raise RetryableError(
                "read",
                "log",
                f"the journal's head has not been confirmed for {age_s:.1f} s",
                "the journal is away from this agent",
            )


def _clean_end(queries: Queries, key: PartitionKey) -> int:
    """Return up to where batches may be missing: where a partition was compacted by key, and
    anywhere in a partition of which a loss was accepted. There the sums of runs alone tell what is
    missing."""
    if queries.lost_range_before(key, INT64_MAX) is not None:
        return _ANYWHERE
    row = queries.clean_rows([key]).get(key)
    return 0 if row is None else row.clean_end
