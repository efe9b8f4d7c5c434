"""One life of a whole log on a simulated device; its journal is in a real SQLite file.

`stepped` lives run everything on the event loop, in an order that the seed decides, so that the
same seed gives the same calls; others run on the threads that a server has.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

from penstock.log import LogSettings
from penstock.log.opening import embedded as opening
from penstock.log.opening.embedded import open_journal, open_wal
from penstock.log.upkeep import Upkeep
from penstock.objects.local import LocalStore
from penstock.order.local_journal import Prepared
from penstock.ports.random import Random
from penstock.replica import JournalEntry, SnapshotInfo
from penstock.state.ages import Ages
from penstock.state.commands import AnyCommand
from penstock.state.order_types import AppliedEntry
from penstock.state.orders import LocalJournal
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.system.believed_clock import BelievedClock
from penstock.wal import WalReader
from support.own_log import own_log, start_own_log
from support.simulated.clock import ManualClock
from support.simulated.cut import PowerCutError, PowerSwitch, SwitchedDevice
from support.simulated.device import SimulatedDevice

DATABASE = "metadata.sqlite"
SNAPSHOTS = "snapshots"
"""The folder of the device with the snapshots."""
FILE_BYTES = 32 << 10
WAL_BYTES_MAX = 6 * FILE_BYTES
GRACE_S = 60


def small_limits() -> LogSettings:
    """So small that a few hundred records fill files, segments and caches."""
    return LogSettings(
        frame_bytes_max=FILE_BYTES // 2,
        append_wait_ms_max=10_000,
        tail_cache_bytes=24 << 10,
        block_cache_bytes=16 << 10,
        block_bytes=1 << 10,
        segment_bytes=24 << 10,
        segment_age_ms=3_600_000,
        delete_grace_ms=GRACE_S * 1000,
        producer_id_block=4,
    )


class SteppedExecutor(Executor):
    """Runs work on the event loop, later, one piece at a time, in an order of the seed's."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        asyncio.get_running_loop().call_soon(self._step)
        return future

    def _step(self) -> None:
        future, work = self._waiting.pop(self._random.below(len(self._waiting)))
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


def _after_rounds(random: Random, _seconds: float, callback: Callable[[], None]) -> asyncio.Handle:
    """A timer that some rounds of the event loop make due."""
    loop = asyncio.get_running_loop()
    handle = asyncio.Handle(callback, (), loop)

    def count(rounds: int) -> None:
        if rounds:
            loop.call_soon(count, rounds - 1)
        elif not handle.cancelled():
            handle._run()

    count(1 + random.below(12))
    return handle


class _SteppedQueue:
    """The lane's queue, at which its thread waits for the event loop's permission to go on.

    While the thread works the event loop stands still, so that only one of them ever runs.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._items: deque[Any] = deque()
        self._permission = threading.Semaphore(0)
        self._parked = threading.Semaphore(0)
        self._arrived = threading.Event()
        self._is_timed = False
        self._is_due = self._is_over = False

    # -- on the event loop

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._is_over:
            self._arrived.set()
        else:
            self._wake()

    def await_thread(self) -> None:
        """The thread was started: let it come to its queue."""
        self._parked.acquire()

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._wait, self._random.below(6))

    def _wait(self, rounds: int) -> None:
        if rounds:
            # Others go on meanwhile, so that more waits for the group commit.
            asyncio.get_running_loop().call_soon(self._wait, rounds - 1)
            return
        self._is_due = False
        if self._is_over or not (self._items or self._is_timed):
            return
        self._permission.release()
        self._parked.acquire()
        if self._items or self._is_timed:
            self._wake()

    # -- on the lane's thread

    def get(self, timeout: float | None = None) -> Any:
        self._is_timed = timeout is not None
        if not self._is_over:
            self._parked.release()
            self._permission.acquire()
        while self._is_over and timeout is None and not self._items:
            self._arrived.wait(1)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)

    def release(self) -> None:
        """For the end: the thread needs no permission any more."""
        self._is_over = True
        self._permission.release()

    def thread_ended(self) -> None:
        self._is_over = True
        self._parked.release()


def keep_database(source: Path, target: Path) -> None:
    """Copy a database that is open, between two commits."""
    target.mkdir(exist_ok=True, parents=True)
    for suffix in ("", "-wal"):
        found = source / (DATABASE + suffix)
        if found.exists():
            shutil.copyfile(found, target / found.name)
        else:
            (target / found.name).unlink(missing_ok=True)


class DatabaseStates:
    """What a power cut may leave of a database whose commits aren't synced: any of its states
    since the last one that was."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._folder = folder
        self._random = random
        self._count = 0
        self._kept: list[Path] = []
        self.synced()

    def committed(self) -> None:
        """There is a new state; some of them are kept."""
        if self._random.below(3) == 0:
            self._keep()

    def synced(self) -> None:
        """No older state comes back any more."""
        self._kept.clear()
        self._keep()

    def choose(self) -> Path:
        """A folder with the database that is found after a power cut now."""
        return [*self._kept, self._folder][self._random.below(len(self._kept) + 1)]

    def _keep(self) -> None:
        self._count += 1
        kept = self._folder / "states" / str(self._count)
        keep_database(self._folder, kept)
        self._kept.append(kept)


class SwitchedJournal:
    """The journal, in step with the device's power.

    The switch is held for the whole of each call, so that what a cut finds of the database is
    never in the middle of being written.
    """

    def __init__(self, order: LocalJournal, switch: PowerSwitch, states: DatabaseStates) -> None:
        self.inner = order
        self.states = states
        self._switch = switch

    @property
    def agent_id(self) -> int:
        return self.inner.agent_id

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    @property
    def committed_position(self) -> int:
        """See `LocalJournal`."""
        return self.inner.committed_position

    @property
    def position(self) -> int:
        return self.inner.position

    @property
    def time_ms(self) -> int:
        return self.inner.time_ms

    @property
    def is_busy(self) -> bool:
        return self.inner.is_busy

    @property
    def uncommitted_count(self) -> int:
        return self.inner.uncommitted_count

    @property
    def uncommitted_bytes(self) -> int:
        return self.inner.uncommitted_bytes

    def prepare(self, commands: Sequence[AnyCommand]) -> Prepared:
        """See `LocalJournal`."""
        return self.inner.prepare(commands)

    def append_written(self, entry: Prepared, write: Callable[[int, int], None]) -> AppliedEntry:
        """See `LocalJournal`."""
        with self._switch.call("apply"):
            applied = self.inner.append_written(entry, write)
        # The power may go between a commit and its acknowledgement, too.
        with self._switch.call("acknowledge"):
            return applied

    def append(self, commands: Sequence[AnyCommand]) -> AppliedEntry:
        """See `LocalJournal`."""
        with self._switch.call("append"):
            applied = self.inner.append(commands)
            self.states.committed()
        with self._switch.call("acknowledge"):
            return applied

    def commit(self) -> int:
        """See `LocalJournal`."""
        with self._switch.call("commit"):
            before = self.inner.committed_position
            position = self.inner.commit()
            if position > before:
                self.states.committed()
            return position

    def sync(self) -> int:
        """See `LocalJournal`."""
        with self._switch.call("sync the journal"):
            position = self.inner.sync()
            self.states.committed()
            return position

    @property
    def base_position(self) -> int:
        return self.inner.base_position

    @property
    def checkpoint_due(self) -> bool:
        return self.inner.checkpoint_due

    def snapshot(self, target: Path) -> SnapshotInfo:
        """See `LocalJournal`."""
        with self._switch.call("write a snapshot"):
            return self.inner.snapshot(target)

    def trim_journal(self, snapshot: SnapshotInfo, *, until: int | None = None) -> int:
        """See `LocalJournal`."""
        with self._switch.call("trim the journal"):
            deleted = self.inner.trim_journal(snapshot, until=until)
            self.states.committed()
            return deleted

    def checkpoint(self) -> int:
        """See `LocalJournal`."""
        with self._switch.call("checkpoint"):
            position = self.inner.checkpoint()
            self.states.synced()
            return position


Tail = Callable[[Iterator[JournalEntry]], Iterator[JournalEntry]]


@contextlib.contextmanager
def planted_tail(plant: Tail | None) -> Iterator[None]:
    """Break what a start applies again."""
    missing = opening._missing

    def broken(*arguments: Any, **options: Any) -> Iterator[JournalEntry]:
        found = missing(*arguments, **options)
        return found if plant is None else plant(found)

    opening._missing = broken
    try:
        yield
    finally:
        opening._missing = missing


class SimulatedLog:
    """A log from its start to the cut of its power. On the event loop.

    Args:
        folder: holds the SQLite file, which is found as the last life left it.
        device: holds WAL and objects.
        plant: breaks something of the assembled log before it starts, for tests of the tests.
        plant_tail: breaks what is applied again at the start.
    """

    def __init__(
        self,
        *,
        folder: Path,
        device: SimulatedDevice,
        clock: ManualClock,
        random: Random,
        stepped: bool,
        on_cut: Callable[[SimulatedLog], None],
        plant: Callable[[SimulatedLog], None] | None = None,
        plant_tail: Tail | None = None,
        fsync: bool = True,
        limits: LogSettings | None = None,
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.fatal: list[BaseException] = []
        self._opened: list[Queries] = []
        self._local = threading.local()
        loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()

        def cut() -> None:
            on_cut(self)
            loop.call_soon_threadsafe(self.ended.set)

        def on_fatal(error: BaseException) -> None:
            self.fatal.append(error)
            loop.call_soon_threadsafe(self.ended.set)

        self.switch = PowerSwitch(cut)
        self.device = SwitchedDevice(device, self.switch)
        path = folder / DATABASE

        with planted_tail(plant_tail):
            order = open_journal(
                path, self.device, clock=clock, random=random, fsync=fsync, snapshots=SNAPSHOTS
            )
        self.journal = SwitchedJournal(order, self.switch, DatabaseStates(folder, random))
        try:
            self.view = StateView.load(self.queries())
            self.wal = open_wal(
                self.device,
                self.queries(),
                file_bytes=FILE_BYTES,
                bytes_max=WAL_BYTES_MAX,
                fsync=fsync,
            )
        except BaseException:
            order.close()
            self._close_queries()
            raise
        self.pool: Executor = SteppedExecutor(random) if stepped else ThreadPoolExecutor(2)
        self.wal_reader = WalReader(self.device)
        self.store = LocalStore(self.device, executor=self.pool)
        self.own_wal, self.order, self.log = own_log(
            journal=self.journal,
            view=self.view,
            queries=self.queries,
            wal_writer=self.wal,
            wal_reader=self.wal_reader,
            store=self.store,
            clock=clock,
            ages=Ages(BelievedClock(clock, after_ms=0)),
            limits=limits or small_limits(),
            pool=self.pool,
            on_fatal=on_fatal,
        )
        self.upkeep = Upkeep(
            journal=self.journal,
            store=self.store,
            scratch=folder / "scratch",
            clock=clock,
            pool=self.pool,
            limits=limits or small_limits(),
        )
        self._queue: _SteppedQueue | None = None
        self.own_wal.lane.may_turn_here = random.below(2) == 0
        if stepped:
            self._step_lane(_SteppedQueue(random), random)
        if plant is not None:
            plant(self)
        start_own_log(self.order, self.log)

    def _step_lane(self, queue: _SteppedQueue, random: Random) -> None:
        lane = self.own_wal.lane
        lane._later = partial(_after_rounds, random)
        start, on_fatal = lane.start, lane._on_fatal
        self._queue = queue
        lane._queue = queue  # type: ignore[assignment]

        def start_parked(**callbacks: Any) -> None:
            start(**callbacks)
            queue.await_thread()

        def on_fatal_over(error: BaseException) -> None:
            on_fatal(error)
            queue.thread_ended()

        lane.start = start_parked  # type: ignore[method-assign]
        lane._on_fatal = on_fatal_over

    def queries(self) -> Queries:
        """The calling thread's connection."""
        found: Queries | None = getattr(self._local, "queries", None)
        if found is None:
            found = self._local.queries = Queries(self.folder / DATABASE)
            self._opened.append(found)
        return found

    def checkpoint(self) -> None:
        """Move SQLite's WAL into its file, in step with the power."""
        self.journal.checkpoint()

    async def end(self) -> None:
        """Let go of everything, as the death of a process does."""
        self.switch.cut()
        await self.log.damaged_frames.close()
        await self.log.lost_ranges.close()
        await self.log.rebuilt_ranges.close()
        await self.own_wal.uploader.close()
        if self._queue is not None:
            self._queue.release()
        await self.own_wal.lane.close()
        await self.own_wal._spare.close()
        self.wal.close()
        await self.log.blocks.close()
        with contextlib.suppress(PowerCutError):
            self.journal.inner.close()
        self.pool.shutdown()
        self._close_queries()

    def _close_queries(self) -> None:
        for queries in self._opened:
            queries.close()
