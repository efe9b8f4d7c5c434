"""The uploader: moves what lies in the WAL into segment objects, then frees the WAL.

Order of effects: object durable in the store -> `StoreSegment` journaled -> the journal up to there
made durable without the WAL -> WAL files released: what a start finds after a power cut must
neither name a file that was used again nor lack an entry that such a file held.
A crash between the first two leaves an object that nothing names (an orphan, deleted later); after
that, a file that the next start finds free.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol

from penstock.log.fetch.tail import TailCache
from penstock.log.fetch.whole_runs import read_wal_run
from penstock.log.findings import Damages
from penstock.log.numbers import ObjectNumbers
from penstock.log.settings import LogSettings
from penstock.log.upload.moved_segments import MARKERS_MAX, MovedSegments
from penstock.log.upload.pending import PendingRuns
from penstock.log.upload.plan import PartitionMove, plan_segment, with_markers
from penstock.log.upload.segments import VIEWS_AT_ONCE, segment_run, segment_runs
from penstock.log.upload.set_aside import DamagedRunsError, SetAside
from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.segment import BuiltSegment, build_segment
from penstock.state.order_types import Committer
from penstock.state.read.queries import Queries, StoredRun
from penstock.state.read.view import StateView
from penstock.state.rows import GENERATION_MASK
from penstock.state.transactions import is_marker, marker_bytes
from penstock.system import background
from penstock.system.heard import Cause, heard, text_of
from penstock.system.turns import Turns
from penstock.wal import WalReader

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_HURRY_AGE_S: Final = 0.25
"""How long a run waits while its agent is being drained: as one does for an object flush."""


class Syncs(Protocol):
    """The part of `penstock.order.local_journal.LocalJournal` that is used here; any thread but the
    lane's."""

    def commit(self) -> int:
        """Let queries find all that was applied."""
        ...

    def sync(self) -> int:
        """Make durable all that was applied."""
        ...


class WalFiles(Protocol):
    """The part of `penstock.wal.WalWriter` that the uploader uses; any thread."""

    @property
    def active_generation(self) -> int:
        """Files of lower generations get no more frames."""
        ...

    def release(self, generation: int) -> None:
        """Let a file be used again: the state names nothing in it."""
        ...


class Uploader:
    """One task on the event loop; reading and storing happen in the pool.

    Args:
        database: where the WAL's frames hold entries, what has applied them and keeps them for
            longer; None elsewhere.
        numbers: gives the keys of new objects.
        damages: takes note of damaged runs, which are left in the WAL.
        wal_key: of the WAL that is emptied; 0: the embedded server's.
    """

    def __init__(
        self,
        *,
        queries: Callable[[], Queries],
        database: Syncs | None = None,
        view: StateView,
        tail: TailCache,
        wal_writer: WalFiles,
        wal_reader: WalReader,
        store: ObjectStore,
        committer: Committer,
        clock: Clock,
        pool: Executor,
        limits: LogSettings,
        numbers: ObjectNumbers,
        damages: Damages,
        wal_key: int = 0,
    ) -> None:
        self._queries = queries
        self._database = database
        self._view = view
        self._tail = tail
        self._wal_writer = wal_writer
        self._wal_reader = wal_reader
        self._segments = MovedSegments(store=store, numbers=numbers, committer=committer)
        self._clock = clock
        self._pool = pool
        self._limits = limits
        self._wal_key = wal_key
        # Its own, and short: a share of what clients' requests have would be 1.5 ms of each turn.
        self._turns = Turns(items_max=VIEWS_AT_ONCE)
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._draining = False
        self._age_max_s = limits.segment_age_ms / 1000
        self._pending = PendingRuns()
        self._aside = SetAside(damages, clock)
        self.pending_bytes = 0
        """Bytes in the WAL that no segment holds yet."""
        self._oldest_s: float | None = None
        self._generations: set[int] = set()
        """WAL files written and not released; a set's add and discard are atomic."""
        self.segment_count = 0
        self.read_failure_count = 0
        """How often the WAL could not be read."""
        self.last_error = ""

    def start(self, runs: Sequence[StoredRun]) -> None:
        """Begin; `runs` lie in the WAL from before."""
        self._generations.update(run.file_generation for run in runs)
        self.added(sum(run.length for run in runs), generation=0)
        self._pending.begin_reading()
        self._pending.complete(runs)
        self._task = background.start(background.UPLOADER, self._run)

    def added(
        self, length: int, *, generation: int, runs: Sequence[StoredRun] | None = None
    ) -> None:
        """A commit wrote into the WAL file of `generation` and named `length` more bytes there.

        Args:
            runs: its runs, with those bytes; None: the database is asked for them.
        """
        if generation and generation not in self._generations:
            self._generations.add(generation)
            # The files before it are closed. If they hold only what was refused or a repeat,
            # there is nothing to move, and no upload would ever come to free them.
            self._wake.set()
        if not length:
            return
        if runs is None:
            self._pending.forget()
        else:
            self._pending.add(runs)
        if self._oldest_s is None:
            self._oldest_s = self._clock.monotonic_s()
            self._wake.set()  # so that the age is waited for from now on
        self.pending_bytes += length
        self._idle.clear()
        if self.pending_bytes >= self._limits.segment_bytes:
            self._wake.set()

    def look_again(self) -> None:
        """Something found the WAL full: free what can be freed."""
        # Also while too little waits for a segment: files may be free whose release failed, and
        # nothing is appended any more that would make a segment due.
        if self._task is not None and self._has_closed_files():
            self._begin_release()
        self._wake.set()

    async def drain(self, deadline_s: float) -> bool:
        """Move everything to segments now. Returns whether it was done within `deadline_s`; false
        also when damaged runs are left."""
        due_in_s = self._aside.due_in_s()
        if due_in_s is not None and due_in_s <= 0:
            self._idle.clear()  # until they were read again
        self._draining = True
        self._wake.set()
        try:
            await asyncio.wait_for(self._idle.wait(), deadline_s)
        except TimeoutError:
            return False
        finally:
            self._draining = False
        return not self._aside

    @property
    def damaged_bytes(self) -> int:
        """Bytes of the pending runs that are damaged and stay in the WAL."""
        return self._aside.bytes

    def hurry(self, *, hurries: bool) -> None:
        """Leave nothing in the WAL for long from now on, or let it lie again until enough of it
        makes a segment."""
        age_s = self._limits.segment_age_ms / 1000
        self._age_max_s = min(_HURRY_AGE_S, age_s) if hurries else age_s
        self._wake.set()

    async def close(self) -> None:
        """Stop; what is left stays in the WAL for the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._releasing is not None:
            await asyncio.gather(self._releasing, return_exceptions=True)
            self._releasing = None

    async def _run(self) -> None:
        while True:
            await self._wait_for_work()
            try:
                while await self._upload_one():
                    if not self._is_much() and not self._draining:
                        break
                self.last_error = self._aside.text
                background.of_loop().succeeded(background.UPLOADER)
            except Exception as error:  # noqa: BLE001 - counted, and tried again
                # The bytes are safe in the WAL; it fills meanwhile, and then appends are
                # refused retriably.
                self.last_error = text_of(error)
                background.of_loop().failed(background.UPLOADER, error, ", and is tried again")
                await self._rest(_RETRY_S)

    async def _wait_for_work(self) -> None:
        while True:
            now_s = self._clock.monotonic_s()
            age_left_s = None
            if self._oldest_s is not None:
                age_left_s = self._oldest_s + self._age_max_s - now_s
                if self._draining or self._is_much() or age_left_s <= 0:
                    return
            elif self._has_closed_files() and not self._aside:
                return
            elif self._aside:
                # Nothing else is left; a file that holds them can't be freed.
                age_left_s = self._aside.due_in_s()
                if age_left_s is not None and age_left_s <= 0:
                    return
            if self._draining and self._oldest_s is not None:
                continue
            await self._rest(age_left_s)

    def _is_much(self) -> bool:
        return self.pending_bytes - self._aside.bytes >= self._limits.segment_bytes

    def _has_closed_files(self) -> bool:
        active = self._wal_writer.active_generation
        return min(self._generations, default=active) < active

    async def _rest(self, seconds: float | None) -> None:
        """Sleep until there is something new, at most `seconds`."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _upload_one(self) -> bool:
        """One segment of the oldest runs; False when the WAL holds nothing to move."""
        loop = asyncio.get_running_loop()
        started_s = self._clock.monotonic_s()
        pending = self._pending
        due_in_s = self._aside.due_in_s()
        if due_in_s is not None and due_in_s <= 0:
            pending.forget()
        try:
            if not pending.is_complete:
                pending.begin_reading()
                runs = await loop.run_in_executor(self._pool, self._read_runs)
                pending.complete(runs)
                self._aside.keep(runs)
            if self._aside:
                pending.leave_out(self._aside.waits)
            before_bytes, known_bytes = self.pending_bytes, pending.length
            # Planning goes through every run, so it isn't the event loop's work.
            head = await loop.run_in_executor(self._pool, pending.head, self._limits.segment_bytes)
            sort_keys = self._sort_keys(head.keys)
            moves = await loop.run_in_executor(self._pool, self._plan, head.runs, sort_keys)
            if moves:
                await self._move(moves)
        except DamagedRunsError as found:
            pending.forget()
            for run, error in found.runs:
                self._aside.add(run, error)
            self.last_error = self._aside.text
            return True  # what is left of the segment is planned without them
        except BaseException:
            pending.forget()
            raise
        pending.drop(head)
        self._aside.forget(head.runs)
        left = known_bytes - head.length
        self.pending_bytes = left + self._aside.bytes + (self.pending_bytes - before_bytes)
        if self.pending_bytes <= self._aside.bytes:
            self.pending_bytes = self._aside.bytes
            self._oldest_s = None
            self._idle.set()
        else:
            self._oldest_s = started_s
        if head.runs and left > 0:
            # The release runs during the next segment, since it waits for a sync of the journal.
            self._begin_release()
            return True
        await self._release()
        return False

    def _begin_release(self) -> None:
        if self._releasing is None or self._releasing.done():
            self._releasing = background.start(background.RELEASE, self._try_release)

    async def _try_release(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._release_files)
        except PenstockError as error:
            # The files stay; it is tried again behind the next segment.
            heard(Cause.WAL_SPACE, error, logger, "WAL files stay in use")

    async def _release(self) -> None:
        if self._releasing is not None:
            await self._releasing
            self._releasing = None
        await asyncio.get_running_loop().run_in_executor(self._pool, self._release_files)

    def _read_runs(self) -> list[StoredRun]:
        return self._queries().wal_runs(self._wal_key)

    def _plan(
        self, runs: list[StoredRun], sort_key: dict[PartitionKey, tuple[bytes, int]]
    ) -> list[PartitionMove]:
        moves = plan_segment(runs, bytes_max=self._limits.segment_bytes, sort_key=sort_key)
        ends = [(move.partition_key, move.runs[-1].end_offset) for move in moves]
        return with_markers(moves, self._queries().markers_up_to(ends, limit=MARKERS_MAX))

    def _sort_keys(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, tuple[bytes, int]]:
        sort_keys = {}
        for key in keys:
            topic = self._view.topic_by_key(topic_key_of(key))
            if topic is not None:
                sort_keys[key] = (bytes(topic.topic_id), partition_of(key))
        return sort_keys

    async def _move(self, moves: list[PartitionMove]) -> None:
        loop = asyncio.get_running_loop()
        topic_ids = self._sort_keys([move.partition_key for move in moves])
        cached = [self._cached_views(move) for move in moves]

        # What is in memory here, a little at a time: a thread of the pool would fight this one for
        # the interpreter.
        in_memory = await self._turns.run(
            segment_runs(
                (topic_ids[move.partition_key], move, views)
                for move, views in zip(moves, cached, strict=True)
                if views is not None
            )
        )

        def build() -> BuiltSegment:
            described = iter(in_memory)
            read = self._read([move for move in moves if move.partition_key in unread], seeds)
            return build_segment(
                [
                    segment_run(topic_ids[move.partition_key], move, read[move.partition_key])
                    if views is None
                    else next(described)
                    for move, views in zip(moves, cached, strict=True)
                ]
            )

        unread = {
            move.partition_key for move, views in zip(moves, cached, strict=True) if views is None
        }
        seeds = {key: self._view.seed(key) for key in unread}
        segment = await loop.run_in_executor(self._pool, build)
        await self._segments.store(moves, segment)
        self.segment_count += 1

    def _read(
        self, moves: list[PartitionMove], seeds: dict[PartitionKey, int | None]
    ) -> dict[PartitionKey, list[memoryview]]:
        """Each partition's runs, checked.

        Raises:
            DamagedRunsError: some are not what the journal named.
        """
        damaged: list[tuple[StoredRun, CorruptDataError]] = []
        found: dict[PartitionKey, list[memoryview]] = {}
        for move in moves:
            key = move.partition_key
            found[key] = []
            for run in move.runs:
                if is_marker(run.generation):
                    found[key].append(marker_bytes(run))
                    continue
                try:
                    found[key].append(read_wal_run(self._wal_reader, run, seeds[key]))
                except CorruptDataError as error:
                    self.read_failure_count += 1
                    damaged.append((run, error))
                except Exception:
                    self.read_failure_count += 1
                    raise
        if damaged:
            raise DamagedRunsError(damaged)
        return found

    def _cached_views(self, move: PartitionMove) -> list[memoryview] | None:
        """The partition's batches from the tail cache, if they are all there."""
        first, last = move.runs[0], move.runs[-1]
        read = self._tail.read(
            move.partition_key, first.base_offset, move.length, end_offset=last.end_offset
        )
        if (
            read is None
            or read.length != move.length
            or read.end_offset != last.end_offset
            or int.from_bytes(read.views[0][:8], "big") != first.base_offset
        ):
            return None
        return read.views

    def _release_files(self) -> None:
        # The active generation is read first: entries in those before it are applied, so what the
        # state names of them now can only become less.
        active = self._wal_writer.active_generation
        if min(self._generations, default=active) >= active:
            return
        if self._database is not None:
            # Not just tried: runs of the closed files that queries can't find are named, too.
            self._database.commit()
        named = {
            place & GENERATION_MASK for place in self._queries().wal_generations(self._wal_key)
        }
        unnamed = [
            generation
            for generation in sorted(self._generations)
            if generation < active and generation not in named
        ]
        if not unnamed:
            return
        if self._database is not None:
            self._database.sync()
        for generation in unnamed:
            self._wal_writer.release(generation)
            self._generations.discard(generation)
