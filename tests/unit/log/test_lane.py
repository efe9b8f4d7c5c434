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

from penstock.log.append import lane
from penstock.log.append.lane import (
    LONE_APPENDS,
    AppendRequest,
    CommitLane,
    Delivery,
)
from penstock.log.append.plan import PartitionAppend, plan_frame, run_commits
from penstock.log.limits import LogLimits
from penstock.metadata.answers import AnyAnswer, BatchStatus, Done, RunsCommitted
from penstock.metadata.changes import Change
from penstock.metadata.commands import AnyCommand, CommitRuns, Heartbeat, Noop
from penstock.metadata.levels import KnownLevels, LevelNotOnError
from penstock.model.errors import FatalStorageError, PenstockError, RetryableError, StorageFullError
from penstock.model.ids import PartitionKey
from penstock.records.batch import NewBatch
from penstock.wal import WalPlace


class TickingClock:
    """Monotonic time that the test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic_s(self) -> float:
        return self.seconds


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
    """For a place; whoever asks stands at the gate then, with all that its turn has taken."""
    turned_on: set[int] = field(default_factory=set)

    def place(self, length: int, *, position: int = 0) -> WalPlace:
        self.is_asked = True
        self.gate.wait(60)
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
class Applied:
    answers: list[AnyAnswer]
    changes: list[Change]
    position: int = 1
    time_ms: int = 0


@dataclass
class Entry:
    commands: Sequence[AnyCommand]
    body: bytes


@dataclass
class RecordingOrder:
    """As the order; what the entry is made of is an event, and each commit of the database."""

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

    def append_written(self, entry: Entry, write: Callable[[int, int], None]) -> Applied:
        applied = self._apply(entry.commands)
        try:
            write(self.position + 1, 0)
        except BaseException:
            self.events.pop()
            raise
        self.position += 1
        self.uncommitted_count += 1
        return applied

    def append(self, commands: Sequence[AnyCommand]) -> Applied:
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

    def _apply(self, commands: Sequence[AnyCommand]) -> Applied:
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
        return Applied(answers, [])


def batch(size: int = 100, sequence: int = -1) -> NewBatch:
    producer = (7, 0, sequence) if sequence >= 0 else (-1, -1, -1)
    return NewBatch(memoryview(bytearray(size)), size, 1, 5, *producer, -1, 9)


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
        wal, order, clock = RecordingWal(events), RecordingOrder(events), TickingClock()

        def deliver(delivery: Delivery) -> None:
            events.append("views")

        lane = CommitLane(
            wal=wal,  # type: ignore[arg-type]
            order=order,  # type: ignore[arg-type]
            known_producer=lambda *_: None,
            clock=clock,
            levels=KnownLevels(),
            limits=LogLimits(frame_bytes_max=1000),
            deliver=deliver,
            announce=lambda _: events.append("readers woken"),
            on_fatal=fatal.append,
        )
        lane.may_turn_here = here
        lane.start()
        bench = Bench(lane, wal, order, clock, events, fatal)
        try:
            await asyncio.wait_for(test(bench), 60)
        finally:
            wal.gate.set()
            await lane.close()

    asyncio.run(main())


@pytest.mark.parametrize("here", [True, False])
def test_batches_are_applied_then_durable_then_answered_and_the_database_follows(
    here: bool,
) -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        waiting = bench.append()
        assert await waiting.answer is None
        await until(lambda: "database" in bench.events and "readers woken" in bench.events)
        assert [event for event in bench.events if event != "database"] == [
            "apply CommitRuns",
            "write 100",
            "views",
            "answered",
            "readers woken",
        ]
        assert bench.events.index("database") > bench.events.index("write 100")
        assert waiting.appends[0].base_offset == 0
        assert (bench.wal.turned_on == {threading.get_ident()}) is here

    run(test, here=here)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.001)


def test_small_turns_run_on_the_loop_and_those_that_would_wait_on_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        for _ in range(3):
            waiting = [bench.append(key=n) for n in range(3)]
            assert [await w.answer for w in waiting] == [None] * 3
        assert bench.wal.turned_on == {threading.get_ident()}
        assert bench.events.count("write 300") == 3, "what arrives together shares a frame"
        for name, value in (("room", 100), ("is_busy", True)):
            # A new file would have to be begun; a commit waited for.
            with monkeypatch.context() as patch:
                patch.setattr(bench.wal if name == "room" else bench.order, name, value)
                bench.wal.turned_on.clear()
                assert await bench.append().answer is None
            assert bench.wal.turned_on == {bench.lane._thread.ident}, name

    run(test, here=True)


def test_what_was_held_shares_a_turn_and_a_lone_producers_begins_at_once() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        lane = bench.lane
        for turn in range(2 * LONE_APPENDS):
            lane.hold()
            waiting = [bench.append(key=n, source=7) for n in range(2)]
            assert bench.events.count("write 200") == turn, "nothing begins before it is settled"
            lane.settle()
            done_here = bench.events.count("write 200") == turn + 1
            assert done_here is (2 * (turn + 1) > LONE_APPENDS)
            assert [await w.answer for w in waiting] == [None] * 2
            assert bench.events.count("write 200") == turn + 1
        # Another one may share the turn of whoever was alone until now.
        lane.hold()
        first = bench.append(key=1, source=8)
        lane.settle()
        lane.hold()
        second = bench.append(key=2, source=7)
        lane.settle()
        assert [await first.answer, await second.answer] == [None] * 2
        assert bench.events.count("write 200") == 2 * LONE_APPENDS + 1

    run(test, here=True)


def test_what_a_turns_answer_leads_to_gets_a_turn_of_its_own() -> None:
    """A lone producer's next request may be started by the answer to the one before."""

    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        lane = bench.lane
        later: list[Waiting] = []

        def ask_again(_: Delivery) -> None:
            lane.hold()
            if len(later) < 20:
                later.append(bench.append(source=7))
            lane.settle()

        lane._announce = ask_again
        for _ in range(LONE_APPENDS + 1):
            bench.append(source=7)
        await until(lambda: len(later) == 20)
        assert [await w.answer for w in later] == [None] * 20
        assert bench.wal.turned_on == {threading.get_ident()}

    run(test, here=True)


def test_an_answer_that_fails_keeps_nobody_else_waiting() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

        def fail(_: PenstockError | None) -> None:
            raise ValueError("of one client")

        bench.lane.submit(AppendRequest(bench.append().appends, 0, 1e9, fail))
        assert await bench.append().answer is None
        await until(lambda: "readers woken" in bench.events)
        assert [str(context["exception"]) for context in told] == ["of one client"]

    run(test, here=True)


def test_what_is_held_when_the_lane_closes_is_written() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.lane.hold()
        waiting = bench.append(source=7)
        await bench.lane.close()
        assert await waiting.answer is None

    run(test, here=True)


def test_what_comes_while_the_thread_works_stands_behind_it() -> None:
    async def test(bench: Bench) -> None:
        commands = asyncio.ensure_future(bench.lane.commit([Noop()]))  # held at the gate
        await asyncio.sleep(0)
        later = bench.append()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not later.answer.done()
        bench.wal.gate.set()
        assert await commands == [Done()]
        assert await later.answer is None
        applied = [event for event in bench.events if event.startswith("apply")]
        assert applied in (["apply Noop", "apply CommitRuns"], ["apply CommitRuns Noop"])
        assert bench.wal.turned_on == {bench.lane._thread.ident}

    run(test, here=True)


def test_whoever_waits_for_a_command_finds_it_in_the_database() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        assert await bench.lane.commit([Noop()]) == [Done()]
        assert bench.events[:4] == ["apply Noop", "write an entry", "database", "views"]

    run(test)


def test_a_database_that_stays_behind_for_want_of_space_is_tried_again() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.order.behind_full = True
        assert await bench.append().answer is None
        bench.order.behind_full = False
        await until(lambda: "database" in bench.events)

    for here in (True, False):
        run(test, here=here)


def test_an_entry_that_no_frame_can_hold_is_durable_in_the_database() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.order.entry_bytes = bench.wal.frame_bytes_max + 1
        assert await bench.lane.commit([Noop()]) == [Done()]
        assert bench.events[:2] == ["apply Noop", "database synced"]
        await asyncio.sleep(0)
        bench.events.clear()
        assert await bench.append().answer is None
        assert bench.events[:3] == ["write 100", "apply CommitRuns", "database synced"]

    run(test)


def test_what_waits_shares_one_frame_one_sync_and_one_entry() -> None:
    async def test(bench: Bench) -> None:
        first = bench.append()  # the lane takes it and is held at the gate
        await taken(bench)
        others = [bench.append(key=n) for n in range(3)]
        noop = asyncio.ensure_future(bench.lane.commit([Noop(), Noop()]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        bench.wal.gate.set()
        assert await noop == [Done(), Done()]
        assert [await w.answer for w in (first, *others)] == [None] * 4
        assert sum(event.startswith("write") for event in bench.events) == 2
        assert "apply CommitRuns Noop Noop" in bench.events

    run(test)


def test_a_frame_is_bounded() -> None:
    async def test(bench: Bench) -> None:
        first = bench.append()
        await taken(bench)
        others = [bench.append(size=400) for _ in range(5)]
        bench.wal.gate.set()
        assert [await w.answer for w in (first, *others)] == [None] * 6
        writes = [int(event.split()[1]) for event in bench.events if event.startswith("write")]
        assert max(writes) <= 1000 and sum(writes) == 2100

    run(test)


def test_a_commit_is_bounded_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop takes up all of a commit in one turn."""
    monkeypatch.setattr(lane, "GROUP_BATCHES_MAX", 3)

    async def test(bench: Bench) -> None:
        first = bench.append()
        await taken(bench)
        others = [bench.append() for _ in range(8)]
        bench.wal.gate.set()
        assert [await w.answer for w in (first, *others)] == [None] * 9
        writes = [event for event in bench.events if event.startswith("write")]
        assert writes == ["write 100", "write 300", "write 300", "write 200"]

    run(test)


def test_a_turn_begins_at_once_where_all_have_come() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.lane.hold()
        waiting = [bench.append(key=n, source=n) for n in range(9)]
        bench.lane.settle(all_came=True)
        assert bench.events.count("write 900") == 1
        assert [await w.answer for w in waiting] == [None] * 9

    run(test, here=True)


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


def test_of_a_connection_without_a_producer_id_nothing_overtakes_what_a_full_wal_refused() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.full = True
        bench.wal.gate.set()
        first = bench.append(source=1, deadline_s=bench.clock.monotonic_s() - 1)
        second, other = bench.append(source=1), bench.append(source=2)
        assert isinstance(await first.answer, StorageFullError)
        bench.wal.full = False
        assert "earlier batch" in str(await second.answer)
        assert await other.answer is None
        assert await bench.append(source=1).answer is None

    run(test)


def test_a_command_passes_all_appends_that_a_full_wal_holds() -> None:
    async def test(bench: Bench) -> None:
        bench.wal.gate.set()
        bench.wal.full = True
        waiting = [bench.append(size=900) for _ in range(2000)]
        assert await bench.lane.commit([Noop()]) == [Done()]
        assert bench.events.count("full") < 1000, "each turn tries one frame, not all that is held"
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


def test_a_command_of_a_level_that_is_off_is_refused_before_its_turn() -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(LevelNotOnError, match="Heartbeat: feature level 2 is needed, 1 is on"):
            await bench.lane.commit([Noop(), Heartbeat()])
        assert bench.events == []
        await bench.lane.commit([Noop()])

    run(test)
