"""A log cares for damage in what it has stored: it finds, remembers and repairs damage."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any

from penstock.log.damage.copy_places import copy_sources
from penstock.log.damage.copy_sources import CopySource
from penstock.log.damage.frames import DamagedFrames
from penstock.log.damage.noted_ranges import NotedRanges
from penstock.log.damage.rebuilt_records import RebuiltRecords
from penstock.log.damage.repair import DamageRepair
from penstock.log.damage.run_restorer import RunRestorer
from penstock.log.damage.scan import Progress, scan
from penstock.log.damage.scrub import Scrubber
from penstock.log.numbers import ObjectNumbers
from penstock.log.partitions import Partitions
from penstock.log.reads import Reads
from penstock.log.settings import LogSettings
from penstock.log.state_queries import StateQueries
from penstock.ports.clock import Clock
from penstock.ports.objects import FileStore, ObjectStore
from penstock.state.changes import RunsMoved
from penstock.state.order_types import Committer
from penstock.state.read.view import StateView
from penstock.wal import WalReader


class DamageCare:
    """Finds damage, repairs it, and lists what was lost. Event loop only."""

    def __init__(
        self,
        *,
        reads: Reads,
        view: StateView,
        queries: StateQueries,
        committer: Committer,
        store: ObjectStore,
        wals: Mapping[int, WalReader],
        numbers: ObjectNumbers,
        partitions: Partitions,
        clock: Clock,
        limits: LogSettings,
        pool: Executor,
        scrubs_objects: Callable[[], bool],
    ) -> None:
        """
        Args:
            wals: of the own WALs, by key; may change later.
            scrubs_objects: whether it is this agent that reads objects to find rot.
        """
        self._reads = reads
        self._view = view
        self._queries = queries
        self._store = store
        self._wals = wals
        self._partitions = partitions
        self._clock = clock
        self._limits = limits
        self._pool = pool
        self.repair = DamageRepair(
            damages=reads.damages,
            examiner=reads.reader.examiner,
            checks=reads.checks,
            queries=queries.caught_up,
            let_queries_find=queries.flush,
            committer=committer,
            epochs=view.epoch_starts,
            restorer=RunRestorer(
                sources=self._copy_sources,
                store=store,
                numbers=lambda: numbers,
                committer=committer,
                checks=reads.checks,
                epochs=view.epoch_starts,
                topic_id_of=partitions.topic_id_of,
            ),
            levels=view,
        )
        noted = partial(
            NotedRanges,
            queries=queries,
            let_queries_find=queries.flush,
            partition_name=partitions.name,
            log_start=partitions.known_log_start,
            pool=pool,
        )
        self.lost_ranges, self.rebuilt_ranges = noted("lost_ranges"), noted("rebuilt_ranges")
        self.damaged_frames = DamagedFrames(
            examiner=reads.reader.examiner,
            queries=queries.caught_up,
            partition_name=partitions.name,
            pool=pool,
        )
        self.rebuilt_records = RebuiltRecords(
            repair=self.repair,
            checks=reads.checks,
            queries=queries.caught_up,
            let_queries_find=queries.flush,
            store=store,
            numbers=lambda: numbers,
            committer=committer,
            epochs=view.epoch_starts,
            topic_id_of=partitions.topic_id_of,
            partition_name=partitions.name,
        )
        is_local = isinstance(store, FileStore)
        self.scrubber = self._scrubber(
            limits.scrub_bytes_per_s,
            lambda: (is_local or limits.scrub_bucket) and scrubs_objects(),
        )

    async def scan(
        self, *, bytes_per_s: int, reads_objects: bool, progress: Progress
    ) -> dict[str, Any]:
        """Read all that is stored once, to know what is damaged; see `penstock.log.damage.scan`.

        Args:
            bytes_per_s: the rate.
            reads_objects: false: the WALs of this host alone.

        Raises:
            RetryableError: the store, or the process that writes the database, is away.
        """
        await self._queries.flush()
        sizes = await self._reads.checks.in_pool(lambda: self._queries().partition_bytes(None))
        return await scan(
            self._scrubber(bytes_per_s, lambda: reads_objects),
            clock=self._clock,
            total_bytes=sum(sizes.values()),
            progress=progress,
        )

    def repaired(self, moved: RunsMoved) -> None:
        """Take note that damaged runs were replaced, by this agent or another one."""
        self._reads.damages.given_up(moved.partition_key, moved.start, moved.end)
        self.ranges_noted()
        self.damaged_frames.repaired()

    def ranges_noted(self) -> None:
        """Read the lists of lost and rebuilt ranges again: they may be longer."""
        self.lost_ranges.changed()
        self.rebuilt_ranges.changed()

    async def close(self) -> None:
        """Stop what goes on in the background."""
        await self.damaged_frames.close()
        await self.lost_ranges.close()
        await self.rebuilt_ranges.close()

    def _copy_sources(self, url: str) -> list[CopySource]:
        """Return where copies of damaged runs are looked for, the nearest first."""
        return copy_sources(
            tail=self._reads.tail,
            blocks=self._reads.blocks,
            block_bytes=self._limits.block_bytes,
            store=self._store,
            wals=self._wals,
            url=url,
            queries=self._queries.caught_up,
            pool=self._pool,
            topic_id_of=self._partitions.topic_id_of,
        )

    def _scrubber(self, bytes_per_s: int, reads_objects: Callable[[], bool]) -> Scrubber:
        return Scrubber(
            # What was appended just now is read at the next pass.
            queries=self._queries,
            view=self._view,
            examiner=self._reads.reader.examiner,
            clock=self._clock,
            pool=self._pool,
            bytes_per_s=bytes_per_s,
            reads_objects=reads_objects,
        )
