"""A turn of the commit lane: when it begins, what shares it, and which thread it runs on."""

import asyncio
import threading

import pytest

from penstock.log.append import lane
from penstock.log.append.group_commit import GroupCommit
from penstock.log.append.lane import LONE_APPENDS
from penstock.state.answers import Done
from penstock.state.commands import Noop
from support.lane_bench import Bench, Waiting, run, taken, until


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

        def ask_again(_: GroupCommit) -> None:
            lane.hold()
            if len(later) < 20:
                later.append(bench.append(source=7))
            lane.settle()

        lane._on_answered = ask_again
        for _ in range(LONE_APPENDS + 1):
            bench.append(source=7)
        await until(lambda: len(later) == 20)
        assert [await w.answer for w in later] == [None] * 20
        assert bench.wal.turned_on == {threading.get_ident()}

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
