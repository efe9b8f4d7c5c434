"""One life of an agent on a simulated device; its journal is in a real SQLite file.

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
from unittest import mock

from penstock.log import LogSettings
from penstock.log.opening import embedded as opening
from penstock.log.wals.claims import WalFolder
from penstock.objects.local import LocalStore
from penstock.order.local_journal import Prepared
from penstock.ports.random import Random
from penstock.replica.snapshot import JournalEntry, SnapshotInfo
from penstock.state.commands import AnyCommand
from penstock.state.order_types import AppliedEntry
from penstock.state.orders import LocalJournal
from penstock.system.believed_clock import BelievedClock
from support.own_agent import open_own_agent
from support.simulated.clock import ManualClock
from support.simulated.cut import PowerCutError, PowerSwitch, SwitchedDevice
from support.simulated.device import SimulatedDevice

DATABASE = "metadata.sqlite"
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
        state_check_interval_ms=0,
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

    def __getattr__(self, name: str) -> Any:
        # What changes nothing: identities, positions, whether it is busy.
        return getattr(self.inner, name)

    def close(self) -> bool:
        """See `LocalJournal`. The next start finds what the cut left: this one ended badly."""
        with contextlib.suppress(PowerCutError):
            self.inner.close()
        return False

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


def switched(life: SimulatedLog) -> contextlib.AbstractContextManager[object]:
    """Put the power's switch before the journal that a start opens."""

    def open_switched(path: Path, *arguments: Any, **options: Any) -> SwitchedJournal:
        opened = opening.open_journal(path, *arguments, **options)
        states = DatabaseStates(life.folder, life._random)
        life.journal = SwitchedJournal(opened, life.switch, states)
        return life.journal

    return mock.patch("penstock.agent.own.open_journal", open_switched)


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
    """An agent with a directory of its own, from its start to the cut of its power. On the event
    loop; `start` it first.

    Args:
        folder: holds the SQLite file, which is found as the last life left it.
        device: holds WAL and objects.
        plant: breaks something of the assembled log before it starts, for tests of the tests.
        plant_tail: breaks what is applied again at the start.
    """

    journal: SwitchedJournal

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
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.fatal: list[BaseException] = []
        self._random = random
        self._plant, self._plant_tail = plant, plant_tail
        self._fsync = fsync
        self._queue = _SteppedQueue(random) if stepped else None
        loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()

        def cut() -> None:
            on_cut(self)
            loop.call_soon_threadsafe(self.ended.set)

        self.switch = PowerSwitch(cut)
        self.device = SwitchedDevice(device, self.switch)
        self.objects = SwitchedDevice(device, self.switch, folder="objects/")
        self.pool: Executor = SteppedExecutor(random) if stepped else ThreadPoolExecutor(2)

    async def start(self) -> None:
        """Open what the last life left, and begin to append and to read."""
        random, loop = self._random, asyncio.get_running_loop()

        def on_fatal(error: BaseException) -> None:
            self.fatal.append(error)
            loop.call_soon_threadsafe(self.ended.set)

        with planted_tail(self._plant_tail), switched(self):
            self._own = await open_own_agent(
                self.folder / DATABASE,
                wal_folder=WalFolder(
                    device=self.device,
                    random=random,
                    file_bytes=FILE_BYTES,
                    bytes_max=WAL_BYTES_MAX,
                    fsync=self._fsync,
                ),
                clock=BelievedClock(self.clock, after_ms=0),
                random=random,
                limits=small_limits(),
                store=LocalStore(self.objects, executor=self.pool),
                pool=self.pool,
                on_fatal=on_fatal,
            )
        foundation = self._own.foundation
        self.own_wal, self.log = self._own.own_wal, foundation.log
        self.view, self.queries = foundation.view, foundation.queries
        self.wal, self.store = foundation.wal_writer, foundation.store
        self.wal_reader = self.own_wal._parts.readers[0]
        self.upkeep = foundation.upkeep
        self.own_wal.lane.may_turn_here = random.below(2) == 0
        if self._queue is not None:
            self._step_lane(self._queue, random)
        if self._plant is not None:
            self._plant(self)
        await self._own.start()

    def _step_lane(self, queue: _SteppedQueue, random: Random) -> None:
        lane = self.own_wal.lane
        lane._later = partial(_after_rounds, random)
        start, close, on_fatal = lane.start, lane.close, lane._on_fatal
        lane._queue = queue  # type: ignore[assignment]

        def start_parked(**callbacks: Any) -> None:
            start(**callbacks)
            queue.await_thread()

        async def close_released() -> None:
            queue.release()
            await close()

        def on_fatal_over(error: BaseException) -> None:
            on_fatal(error)
            queue.thread_ended()

        lane.start = start_parked  # type: ignore[method-assign]
        lane.close = close_released  # type: ignore[method-assign]
        lane._on_fatal = on_fatal_over

    def checkpoint(self) -> None:
        """Move SQLite's WAL into its file, in step with the power."""
        self.journal.checkpoint()

    async def end(self) -> None:
        """Let go of everything, as the death of a process does."""
        self.switch.cut()
        await self._own.crash()
        self.pool.shutdown()
        self._own.close_files()
