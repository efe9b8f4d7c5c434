"""A commit lane whose WAL and journal are recorders: the order of their calls is the question.

The real ones are under it in the tests of `Log`.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.log.append.group_commit import AppendRequest, GroupCommit
from penstock.log.append.lane import CommitLane
from penstock.log.append.plan import PartitionAppend
from penstock.log.settings import LogSettings
from penstock.model.errors import FatalStorageError, PenstockError, StorageFullError
from penstock.model.ids import PartitionKey
from penstock.order.outcome import Standing
from penstock.records.batch import NewBatch
from penstock.replica.applied import Applied
from penstock.state.answers import AnyAnswer, BatchStatus, Done, RunsCommitted
from penstock.state.apply.machine import EntryOutcome
from penstock.state.commands import AnyCommand, CommitRuns
from penstock.state.levels import KnownLevels
from penstock.state.order_types import AppliedEntry
from penstock.wal import WalPlace
from support.simulated.clock import ManualClock


@dataclass
class RecordingWal:
    """As the WAL's writer; each frame is one event."""

    events: list[str]
    full: bool = False
    broken: bool = False
    frame_bytes_max: int = 1 << 20
    room: int = 1 << 20
    active_generation: int = 1
    gate: threading.Event = field(default_factory=threading.Event)
    is_asked: bool = False
    """For a place: the turn stands at the gate then, with all that it has taken."""
    turned_on: set[int] = field(default_factory=set)

    def place(self, length: int, *, position: int = 0) -> WalPlace:
        self.is_asked = True
        assert self.gate.wait(60), "the test never opens the gate"
        if self.full:
            self.events.append("full")
            raise StorageFullError("append", "wal", "full")
        return WalPlace(1, 4096)

    def write(
        self,
        buffers: Sequence[memoryview],
        *,
        length: int,
        entry: bytes = b"",
        position: int = 0,
        time_ms: int = 0,
    ) -> WalPlace:
        if self.broken:
            raise FatalStorageError("sync", "wal", "EIO")
        self.turned_on.add(threading.get_ident())
        self.events.append(f"write {length}" if length else "write an entry")
        return WalPlace(1, 4096)


@dataclass
class Entry:
    commands: Sequence[AnyCommand]
    body: bytes


@dataclass
class RecordingJournal:
    """As the journal; what the entry is made of is an event, and each commit of the database."""

    events: list[str]
    full: bool = False
    behind_full: bool = False
    entry_bytes: int = 10
    next_offset: int = 0
    position: int = 0
    time_ms: int = 0
    is_busy: bool = False
    uncommitted_count: int = 0
    uncommitted_bytes: int = 0

    def prepare(self, commands: Sequence[AnyCommand]) -> Entry:
        return Entry(commands, bytes(self.entry_bytes))

    def append_written(self, entry: Entry, write: Callable[[int, int], None]) -> AppliedEntry:
        applied = self._apply(entry.commands)
        try:
            write(self.position + 1, 0)
        except BaseException:
            self.events.pop()
            raise
        self.position += 1
        self.uncommitted_count += 1
        return applied

    def append(self, commands: Sequence[AnyCommand]) -> AppliedEntry:
        applied = self._apply(commands)
        self.events.append("database synced")
        self.position += 1
        return applied

    def commit(self) -> int:
        if self.behind_full:
            raise StorageFullError("commit", "journal", "full")
        if self.uncommitted_count:
            self.events.append("database")
        self.uncommitted_count = 0
        return self.position

    def _apply(self, commands: Sequence[AnyCommand]) -> AppliedEntry:
        if self.full:
            raise StorageFullError("append", "journal", "full")
        self.events.append("apply " + " ".join(type(c).__name__ for c in commands))
        answers: list[AnyAnswer] = []
        for command in commands:
            if isinstance(command, CommitRuns):
                runs = []
                for run in command.runs:
                    flat: list[int] = []
                    for count in run.batches[1::6]:
                        flat += (BatchStatus.STORED, self.next_offset)
                        self.next_offset += count
                    runs.append(flat)
                answers.append(RunsCommitted(runs=runs))
            else:
                answers.append(Done())
        return Applied(1, 0, EntryOutcome(Standing.APPLIED, answers, []))


def batch(size: int = 100, sequence: int = -1) -> NewBatch:
    producer = (7, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    return NewBatch(memoryview(bytearray(size)), size, 1, 5, *producer, -1, 9)


@dataclass
class Bench:
    lane: CommitLane
    wal: RecordingWal
    order: RecordingJournal
    clock: ManualClock
    events: list[str]
    fatal: list[BaseException]

    def append(
        self,
        *,
        size: int = 100,
        key: int = 1,
        deadline_s: float = 10.0,
        source: int = 0,
        sequence: int = -1,
    ) -> "Waiting":
        waiting = Waiting([PartitionAppend(PartitionKey(key), batch(size, sequence))])

        def done(error: PenstockError | None) -> None:
            self.events.append("answered")
            waiting.answer.set_result(error)

        self.lane.submit(AppendRequest(waiting.appends, size, deadline_s, done, source))
        return waiting


async def taken(bench: Bench) -> None:
    """Until the thread has taken what was handed in, and takes nothing more in that turn."""
    await until(lambda: bench.wal.is_asked)


class Waiting:
    def __init__(self, appends: list[PartitionAppend]) -> None:
        self.appends = appends
        self.answer: asyncio.Future[PenstockError | None] = (
            asyncio.get_running_loop().create_future()
        )


def run(test: Callable[[Bench], Coroutine[Any, Any, None]], *, here: bool = False) -> None:
    """`here`: whether small turns may run on the event loop."""

    async def main() -> None:
        events: list[str] = []
        fatal: list[BaseException] = []
        wal, order, clock = RecordingWal(events), RecordingJournal(events), ManualClock()

        def on_applied(group: GroupCommit) -> None:
            events.append("views")

        lane = CommitLane(
            wal=wal,
            journal=order,  # type: ignore[arg-type]
            known_producer=lambda *_: None,
            clock=clock,
            levels=KnownLevels(),
            limits=LogSettings(frame_bytes_max=1000),
            on_fatal=fatal.append,
        )
        lane.may_turn_here = here
        lane.start(on_applied=on_applied, on_answered=lambda _: events.append("readers woken"))
        bench = Bench(lane, wal, order, clock, events, fatal)
        try:
            await asyncio.wait_for(test(bench), 60)
        finally:
            wal.gate.set()
            await lane.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.001)
