"""The commit lane: order of effects, group commit, a full WAL, and what happens on a failure.

The WAL and the journal are recorders here, because the order of their calls is the question; the
real ones are under it in the tests of `Log`.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.log.append.lane import GATHER_SOURCES, AppendRequest, CommitLane, Delivery
from penstock.log.append.plan import PartitionAppend, plan_frame, run_commits
from penstock.log.limits import LogLimits
from penstock.metadata.changes import Change
from penstock.metadata.commands import (
    AnyAnswer,
    AnyCommand,
    BatchStatus,
    CommitRuns,
    Done,
    Noop,
    RunsCommitted,
)
from penstock.model.errors import FatalStorageError, PenstockError, RetryableError, StorageFullError
from penstock.model.ids import PartitionKey
from penstock.records.batch import NewBatch


class TickingClock:
    """Monotonic time that the test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic_s(self) -> float:
        return self.seconds


@dataclass
class Place:
    generation: int
    position: int


@dataclass
class RecordingWal:
    events: list[str]
    full: bool = False
    broken: bool = False
    frame_bytes_max: int = 1 << 20
    active_generation: int = 1
    gate: threading.Event = field(default_factory=threading.Event)

    def append(self, buffers: Sequence[memoryview], *, length: int) -> Place:
        self.gate.wait(5)
        if self.full:
            self.events.append("full")
            raise StorageFullError("append", "wal", "full")
        self.events.append(f"write {length}")
        return Place(1, 4096)

    def sync(self) -> None:
        if self.broken:
            raise FatalStorageError("sync", "wal", "EIO")
        self.events.append("sync")


@dataclass
class Applied:
    answers: list[AnyAnswer]
    changes: list[Change]


@dataclass
class RecordingOrder:
    events: list[str]
    full: bool = False
    next_offset: int = 0

    def append(self, commands: Sequence[AnyCommand]) -> Applied:
        if self.full:
            raise StorageFullError("append", "journal", "full")
        self.events.append("journal " + " ".join(type(c).__name__ for c in commands))
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
        return Applied(answers, [])


def batch(size: int = 100, sequence: int = -1) -> NewBatch:
    producer = (7, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    return NewBatch(memoryview(bytearray(size)), size, 1, 5, *producer, -1)


@dataclass
class Bench:
    lane: CommitLane
    wal: RecordingWal
    order: RecordingOrder
    clock: TickingClock
    events: list[str]
    fatal: list[BaseException]

    def append(
        self,
        *,
        size: int = 100,
        key: int = 1,
        deadline_s: float = 110.0,
        source: int = 0,
        sequence: int = -1,
    ) -> "Waiting":
        waiting = Waiting([PartitionAppend(PartitionKey(key), batch(size, sequence))])

        def done(error: PenstockError | None) -> None:
            self.events.append("answered")
            waiting.answer.set_result(error)

        self.lane.submit(AppendRequest(waiting.appends, size, deadline_s, done, source))
        return waiting


class Waiting:
    def __init__(self, appends: list[PartitionAppend]) -> None:
        self.appends = appends
        self.answer: asyncio.Future[PenstockError | None] = (
            asyncio.get_running_loop().create_future()
        )


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        events: list[str] = []
        fatal: list[BaseException] = []
        wal, order, clock = RecordingWal(events), RecordingOrder(events), TickingClock()

        def deliver(delivery: Delivery) -> None:
            events.append("views")

        lane = CommitLane(
            wal=wal,  # type: ignore[arg-type]
            order=order,  # type: ignore[arg-type]
            clock=clock,
            limits=LogLimits(frame_bytes_max=1000),
            deliver=deliver,
            announce=lambda _: events.append("readers woken"),
            on_fatal=fatal.append,
        )
        lane.start()
        bench = Bench(lane, wal, order, clock, events, fatal)
        try:
            await asyncio.wait_for(test(bench), 10)
        finally:
            wal.gate.set()
            await lane.close()

    asyncio.run(main())


def test_bytes_are_durable_before_they_are_ordered_and_ordered_before_they_are_answered() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        waiting = bench.append()
        assert await waiting.answer is None
        await asyncio.sleep(0)
        assert bench.events == [
            "write 100",
            "sync",
            "journal CommitRuns",
            "views",
            "answered",
            "readers woken",
        ]
        assert waiting.appends[0].base_offset == 0

    run(test)


def test_what_waits_shares_one_frame_one_sync_and_one_entry() -> None:
    async def test(bench: Bench) -> None:
        first = bench.append()  # the lane takes it and is held at the gate
        while not bench.lane._queue.empty():
            await asyncio.sleep(0)
        others = [bench.append(key=n) for n in range(3)]
        noop = asyncio.ensure_future(bench.lane.commit([Noop(), Noop()]))
        await asyncio.sleep(0)
        bench.wal.gate.set()
        assert await noop == [Done(), Done()]
        assert [await w.answer for w in (first, *others)] == [None] * 4
        assert bench.events.count("sync") == 2
        assert "journal CommitRuns Noop Noop" in bench.events

    run(test)


def test_a_frame_is_bounded() -> None:
    async def test(bench: Bench) -> None:
        first = bench.append()
        while not bench.lane._queue.empty():
            await asyncio.sleep(0)
        others = [bench.append(size=400) for _ in range(5)]
        bench.wal.gate.set()
        assert [await w.answer for w in (first, *others)] == [None] * 6
        writes = [int(event.split()[1]) for event in bench.events if event.startswith("write")]
        assert max(writes) <= 1000 and sum(writes) == 2100

    run(test)


def test_many_connections_share_commits_and_a_lone_one_never_waits() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        for _ in range(20):
            await bench.append(source=1).answer
            assert not bench.lane._gathering
        waiting = [bench.append(key=n, source=n) for n in range(GATHER_SOURCES)]
        assert bench.lane._gathering
        assert [await w.answer for w in waiting] == [None] * GATHER_SOURCES
        bench.clock.seconds += 1  # silence in between
        await bench.append(source=3).answer
        assert not bench.lane._gathering

    run(test)


def test_a_full_wal_holds_appends_back_but_lets_commands_through() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.wal.full = True
        waiting = bench.append()
        assert await bench.lane.commit([Noop()]) == [Done()]
        assert not waiting.answer.done()
        bench.wal.full = False  # the uploader freed a file
        assert await waiting.answer is None

    run(test)


def test_a_wal_that_stays_full_refuses_retriably_at_the_deadline() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.wal.full = True
        late, patient = bench.append(deadline_s=101), bench.append(deadline_s=1000)
        bench.clock.seconds = 102
        assert isinstance(await late.answer, RetryableError)
        assert not patient.answer.done()
        bench.wal.full = False
        assert await patient.answer is None

    run(test)


def test_what_a_producer_sent_behind_a_failed_batch_fails_until_that_one_comes_again() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.order.full = True
        assert isinstance(await bench.append(sequence=0).answer, StorageFullError)
        bench.order.full = False
        # A partition that doesn't know the producer would take sequence 1 as its first.
        assert isinstance(await bench.append(sequence=1).answer, RetryableError)
        assert await bench.append(key=2, sequence=1).answer is None, "another partition"
        assert await bench.append(sequence=0).answer is None
        assert await bench.append(sequence=1).answer is None

    run(test)


def test_a_command_passes_all_appends_that_a_full_wal_holds() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.wal.full = True
        waiting = [bench.append(size=900) for _ in range(2000)]
        assert await bench.lane.commit([Noop()]) == [Done()]
        assert bench.events.count("full") < 100, "each turn tries one frame, not all that is held"
        bench.wal.full = False
        assert {await w.answer for w in waiting} == {None}

    run(test)


def test_a_full_journal_refuses_retriably_and_recovers() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.order.full = True
        assert isinstance(await bench.append().answer, StorageFullError)
        with pytest.raises(StorageFullError):
            await bench.lane.commit([Noop()])
        bench.order.full = False
        assert await bench.append().answer is None

    run(test)


def test_nothing_is_answered_after_a_failed_sync() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.wal.broken = True
        waiting = bench.append()
        while not bench.fatal:
            await asyncio.sleep(0)
        assert isinstance(bench.fatal[0], FatalStorageError)
        assert "answered" not in bench.events and not waiting.answer.done()

    run(test)


def test_a_closed_lane_refuses() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        await bench.lane.close()
        assert isinstance(await bench.append().answer, RetryableError)
        with pytest.raises(RetryableError):
            await bench.lane.commit([Noop()])

    run(test)


def test_batches_of_one_partition_become_neighbours_in_arrival_order() -> None:
    appends = [
        PartitionAppend(PartitionKey(key), batch(size)) for key, size in ((1, 70), (2, 80), (1, 90))
    ]
    plan = plan_frame(appends)
    assert plan.length == 240
    assert [buffer.nbytes for buffer in plan.buffers] == [70, 90, 80]
    first, second = run_commits(plan, position=1000)
    assert (first.partition_key, first.position, first.batches[0::6]) == (1, 1000, [70, 90])
    assert (second.partition_key, second.position, second.batches[0::6]) == (2, 1160, [80])
