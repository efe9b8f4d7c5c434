"""Reading one partition: tail cache, then the WAL, then segment objects.

`LogReader.read` never waits: it gives what is in memory, or a `Missing` that names the load which
has been started. So a fetch of many partitions answers with what is there and finds the rest
next time, and only a fetch that has nothing at all waits for a disk.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.log.checking import Fault
from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.examine import Examiner
from penstock.log.fetch.object_runs import ObjectRuns
from penstock.log.fetch.raw_runs import RawRuns
from penstock.log.fetch.regions import FileRuns, Part, PartsRead, Unsendable
from penstock.log.fetch.remote_wal import RemoteRuns
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.fetch.tail import TailCache, TailRead
from penstock.log.fetch.whole_runs import BadRunError, WholeRuns, read_wal_run
from penstock.log.fetch.windows import RunWindows
from penstock.log.findings import DamageKind
from penstock.log.settings import LogSettings
from penstock.log.state_queries import StateQueries
from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.ports.objects import FileStore, ObjectStore
from penstock.records.encode import empty_batch
from penstock.state.read.queries import Queries, StoredRun
from penstock.state.transactions import AbortedRange, is_marker, marker_bytes
from penstock.system import background
from penstock.wal import WalReader

_WINDOW_RUNS: Final = 64
_DELTA_MAX: Final = (1 << 31) - 1


@dataclass(slots=True, frozen=True)
class Missing:
    """Nothing in memory; `load` is under way. Read again when it is done."""

    load: asyncio.Task[None]


class LogReader:
    """Reads whole batches by partition and offset. Event loop only."""

    def __init__(
        self,
        *,
        queries: Queries,
        tail: TailCache,
        blocks: BlockCache,
        wals: Mapping[int, WalReader],
        store: ObjectStore,
        limits: LogSettings,
        checks: RunChecks,
        remote_runs: RemoteRuns | None = None,
        before_stored: Callable[[], None] | None = None,
        behind: StateQueries,
    ) -> None:
        """
        Args:
            wals: of the own WALs, by key (0: the embedded server's); looked at again at each read.
            remote_runs: reads runs of other WALs.
            before_stored: called before anything but the tail cache is served; raises if it must
                not be.
            behind: whether the queries may lack what was appended.
        """
        self._queries = queries
        self._tail = tail
        self._blocks = blocks
        self._wals = wals
        self._windows = RunWindows()
        self._checks = checks
        self._objects = ObjectRuns(
            blocks=blocks,
            limits=limits,
            checks=checks,
            load_failed=self._load_failed,
        )
        self._raw_runs = RawRuns(blocks=blocks, checks=checks, limits=limits)
        self._whole = WholeRuns(blocks=blocks, load_failed=self._load_failed)
        self.checks = checks
        self.examiner = Examiner(wals=wals, checks=checks, load_failed=self._load_failed)
        self._remote_runs = remote_runs
        self._before_stored = before_stored
        self._behind = behind
        self._flush: asyncio.Task[None] | None = None
        self._away: dict[PartitionKey, PenstockError] = {}
        """The error of a partition's last load from another agent's WAL, until the partition's next
        read has raised it."""
        self._files = (
            FileRuns(store, stretch_bytes=limits.block_bytes, checks=checks)
            if isinstance(store, FileStore)
            else None
        )
        self._may_load = True

    def read(
        self, key: PartitionKey, offset: int, bytes_max: int, *, may_load: bool = True
    ) -> TailRead | Missing | None:
        """Whole batches from the one that holds `offset` on, at least one, from memory.

        Args:
            offset: at or after the log start and before the high watermark.
            bytes_max: stop before it is passed, but give at least one batch.
            may_load: false starts no load: None then also means that it isn't in memory.

        Returns:
            The batches; Missing when they must be loaded first; None when the state names no
            run with that offset (it was trimmed just now).

        Raises:
            RetryableError: stored data must not be served now, or these records lie in the WAL
                of an agent that is away.
            DamagedError: what lies there is damaged or missing.
        """
        cached = self._tail.read(key, offset, bytes_max)
        if cached is not None:
            return cached
        self._check_servable(key, offset)
        self._may_load = may_load
        was_behind = self._behind.is_behind  # before the look: a commit may come between
        views: list[memoryview] = []
        length = 0
        while True:
            run = self._locate(key, offset, query=not views)
            if run is None:
                if not views and may_load and was_behind:
                    return Missing(self._start_flush())
                if not views:
                    return self._lost_end(key, offset)
                break
            if not views:
                self._check_reached(run, offset)
            found = self._read_run(run, offset, bytes_max - length, first=not views)
            if isinstance(found, Missing):
                if not views:
                    return found
                break
            if found is None:
                break
            views += found.views
            length += found.length
            offset = found.end_offset
            if length >= bytes_max or offset < run.end_offset:
                break
        return TailRead(views, length, offset) if views else None

    def read_parts(
        self, key: PartitionKey, offset: int, bytes_max: int, *, may_load: bool = True
    ) -> TailRead | PartsRead | Missing | None:
        """Read as `read` does, and name what lies in local files rather than bring it here."""
        files = self._files
        if files is None:
            return self.read(key, offset, bytes_max, may_load=may_load)
        cached = self._tail.read(key, offset, bytes_max)
        if cached is not None:
            return cached
        self._check_servable(key, offset)
        self._may_load = may_load
        was_behind = self._behind.is_behind
        parts: list[Part] = []
        length = 0
        while True:
            run = self._locate(key, offset, query=not parts)
            if run is None:
                if not parts and may_load and was_behind:
                    return Missing(self._start_flush())
                if not parts:
                    return self._lost_end(key, offset)
                break
            if not parts:
                self._check_reached(run, offset)
            found = self._read_run_parts(files, key, run, offset, bytes_max - length, not parts)
            if isinstance(found, Missing) and not parts:
                return found
            if found is None or isinstance(found, Missing):
                break
            parts += found.views if isinstance(found, TailRead) else found.parts
            length += found.length
            offset = found.end_offset
            if length >= bytes_max or offset < run.end_offset:
                break
        return PartsRead(parts, length, offset) if parts else None

    def aborted(
        self, key: PartitionKey, start: int, end: int, *, last_aborted: int
    ) -> list[AbortedRange] | Missing:
        """Return the aborted transactions with records in [start, end).

        Args:
            start: not above `last_aborted`, nor below the log start.
            last_aborted: the head's: what is answered is at least as new as the head that the
                records were read by.
        """
        if not self._queries.is_abort_known(key, last_aborted):
            return Missing(self._start_flush())
        return self._queries.aborted_between(key, start, end)

    def _lost_end(self, key: PartitionKey, offset: int) -> TailRead | None:
        """An empty batch over lost offsets that no run follows, as compaction leaves one at the end
        of a log: a consumer steps over it, and isn't left waiting before the high watermark."""
        # One row, on the event loop: a partition may have any number of them.
        found = self._queries.lost_range_before(key, offset)
        if found is not None and offset < found[1]:
            end = min(found[1], offset + _DELTA_MAX)
            batch = memoryview(empty_batch(offset, end, self._checks.leader_epoch(key, offset)))
            return TailRead([batch], len(batch), end)
        return None

    def _read_run_parts(
        self,
        files: FileRuns,
        key: PartitionKey,
        run: StoredRun,
        offset: int,
        bytes_max: int,
        first: bool,  # noqa: FBT001 - private
    ) -> TailRead | PartsRead | Missing | None:
        if not run.generation and not run.raw:
            try:
                found = files.read(
                    key, run, offset, bytes_max, first=first, may_load=self._may_load
                )
            except Unsendable:
                cursor = files.cursor(run, offset)
                if cursor is not None:
                    self._objects.go_on_from(run, offset, *cursor)
            else:
                if not isinstance(found, asyncio.Task):
                    return found
                following = self._windows.find(key, run.end_offset)
                if following is not None and not (following.generation or following.raw):
                    files.load(
                        following, following.position, following.position, following.base_offset
                    )
                return Missing(found)
        return self._read_run(run, offset, bytes_max, first=first)

    async def close(self) -> None:
        """Cancel loads under way."""
        if self._files is not None:
            await self._files.close()
        await self._objects.close()

    async def read_loaded(self, key: PartitionKey, offset: int, bytes_max: int) -> TailRead | None:
        """Read as `read` does, and wait for what must be loaded. Raises: what the read or load
        raised."""
        for _ in range(1000):
            found = self.read(key, offset, bytes_max)  # raises the error of the last load elsewhere
            if not isinstance(found, Missing):
                return found
            try:
                await asyncio.shield(found.load)
            except (NotFoundError, RetryableError):
                # The run was moved between the look-up and the read; look it up again.
                self.forget_places(key)
            except CorruptDataError:
                # Of this partition, as the next read says, or of another that the load was for.
                continue
        raise RetryableError("read", f"partition key {key}", f"offset {offset} keeps moving")

    def forget_places(self, key: PartitionKey) -> None:
        """Runs of this partition lie elsewhere now, or are gone."""
        self._windows.forget(key)
        self._checks.forget(key)

    def forget_all_places(self) -> None:
        """Any run may lie elsewhere now."""
        self._windows = RunWindows()

    def locate(self, key: PartitionKey, offset: int) -> StoredRun | None:
        """The run that holds `offset`, else the next one after it."""
        return self._locate(key, offset, query=True)

    # -- a database that is behind what was appended ---------------------------------------------

    def _start_flush(self) -> asyncio.Task[None]:
        """One for all that find something missing meanwhile."""
        if self._flush is None or self._flush.done():
            self._flush = background.start(background.CATCH_UP, self._behind.flush)
        return self._flush

    # -- helpers -------------------------------------------------------------------------------

    def _locate(self, key: PartitionKey, offset: int, *, query: bool) -> StoredRun | None:
        known = self._windows.find(key, offset)
        if known is not None or not query:
            return known
        window = self._queries.runs_from(key, offset, limit=_WINDOW_RUNS)
        self._windows.put(key, window)
        return window[0] if window else None

    def _read_run(
        self, run: StoredRun, offset: int, bytes_max: int, *, first: bool
    ) -> TailRead | Missing | None:
        found: TailRead | asyncio.Task[None] | None
        if run.generation or run.raw:
            if is_marker(run.generation):
                return self._read_marker(run)
            load = self._read_wal if run.generation else self._raw_runs.read
            found = self._whole.read(
                run, offset, bytes_max, load, first=first, may_load=self._may_load
            )
        else:
            found = self._objects.read(run, offset, bytes_max, first=first, may_load=self._may_load)
        return Missing(found) if isinstance(found, asyncio.Task) else found

    def _read_marker(self, run: StoredRun) -> TailRead:
        """Make a marker's batch, which is given whatever the limit is: 78 bytes."""
        batch = marker_bytes(run)
        return TailRead([batch], len(batch), run.end_offset)

    async def _read_wal(self, run: StoredRun) -> memoryview:
        wal = self._wals.get(run.wal_key)
        if wal is None:
            return await self._read_remote(self._remote_runs, run)
        seed = self._checks.seed_of(run.partition_key)
        return await self._checks.in_pool(partial(read_wal_run, wal, run, seed))

    async def _read_remote(self, remote: RemoteRuns | None, run: StoredRun) -> memoryview:
        key = run.partition_key
        try:
            if remote is None:
                raise RetryableError(
                    "read WAL", f"WAL {run.wal_key}", "another agent's, and no way leads there"
                )
            return await remote.read(run, self._checks.seed_of(key))
        except CorruptDataError:
            raise
        except PenstockError as error:
            # The run may lie in an object by now: then a client that asks again finds it there.
            found = self._queries.runs_from(key, run.base_offset, limit=1)
            if found and found[0].generation == run.generation:
                self._away[key] = error
            raise

    async def _load_failed(
        self, run: StoredRun, offset: int, error: PenstockError
    ) -> PenstockError:
        """Return the error for bytes from `offset` on that aren't where the state says: damage, if
        the state still says so."""
        if self._behind.is_behind:
            await self._start_flush()
        found = self._queries.runs_from(run.partition_key, offset, limit=1)
        if not found or (found[0].generation, found[0].object_key, found[0].position) != (
            run.generation,
            run.object_key,
            run.position,
        ):
            return RetryableError("read", run.object_key, "the run has moved", "look it up again")
        if isinstance(error, NotFoundError):
            fault = Fault(run.position, run.base_offset, run.end_offset, error.detail)
            return self._checks.damaged(run, fault, kind=DamageKind.MISSING_OBJECT)
        if isinstance(error, BadRunError):
            return self._checks.damaged(run, error.fault)
        detail = f"{error.subject}: {error.detail}"
        return self._checks.damaged(run, Fault(run.position, offset, run.end_offset, detail))

    def _check_reached(self, run: StoredRun, offset: int) -> None:
        """
        Raises:
            DamagedError: between the offset and the run is nothing, and the run's beginning is
                known to be damaged.
        """
        if run.base_offset > offset:
            self._checks.raise_known(run.partition_key, run.base_offset)

    def _check_servable(self, key: PartitionKey, offset: int) -> None:
        if self._before_stored is not None:
            self._before_stored()
        if self._away:
            error = self._away.pop(key, None)
            if error is not None:
                raise error
        self._checks.raise_known(key, offset)
