"""The commit lane: order of effects, a full WAL, and what happens on a failure."""

import asyncio
import threading
from typing import Any

import pytest

from penstock.log.append.group_commit import AppendRequest
from penstock.log.append.plan import PartitionAppend, plan_frame, run_commits
from penstock.model.errors import FatalStorageError, PenstockError, RetryableError, StorageFullError
from penstock.model.ids import PartitionKey
from penstock.state.answers import Done
from penstock.state.commands import Heartbeat, Noop
from penstock.state.levels import LevelNotOnError
from support.lane_bench import Bench, batch, run, until


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
        late, patient = bench.append(deadline_s=1), bench.append(deadline_s=1000)
        bench.clock.advance(2)
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


@pytest.mark.slow
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
        bench.wal.gate.set()
        with pytest.raises(LevelNotOnError, match="Heartbeat: feature level 2 is needed, 1 is on"):
            await bench.lane.commit([Noop(), Heartbeat()])
        assert bench.events == []
        await bench.lane.commit([Noop()])

    run(test)
