"""When a follower reads, waits and seals, and what it does on the event loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.model.errors import RetryableError
from penstock.ports.journal import JournalRow
from penstock.replica.follower import FollowerSettings
from support.simulated.clock import ManualClock
from support.simulated.inline_executor import InlineExecutor
from support.simulated.randomness import SeededRandom
from unit.replica.followers import Following, HeldReplica, follower_of

PATIENT = FollowerSettings(gap_ms=10_000)


class Calls:
    """Calls of one method of the journal: when, and with what."""

    def __init__(self, rig: Following, name: str) -> None:
        self.times_s: list[float] = []
        self.arguments: list[Any] = []
        self._clock = rig.clock
        self._real: Callable[..., Awaitable[Any]] = getattr(rig.connection, name)
        self.error: Exception | None = None
        setattr(rig.connection, name, self._call)

    async def _call(self, *arguments: Any) -> Any:
        self.times_s.append(self._clock.monotonic_s())
        self.arguments.append(arguments[0])
        if self.error is not None:
            raise self.error
        return await self._real(*arguments)


async def test_rows_without_gaps_are_read_by_pages_alone_after_one_look(rig: Following) -> None:
    await rig.append(*(b"%d" % number for number in range(20)))
    rows = Calls(rig, "row")
    follower = rig.start(HeldReplica(position=1, mark=rig.mark(1)), FollowerSettings(page_rows=4))
    await follower.heads.confirm(1)
    await asyncio.sleep(1)
    assert rows.arguments == [1]
    assert [len(batch) for batch in rig.batches] == [4, 4, 4, 4, 3]
    assert follower.time_ms == rig.replica.time_ms > 0


async def test_rows_behind_a_gap_confirm_no_head(rig: Following) -> None:
    await rig.append(b"a")
    rig.journal.take_position()
    await rig.append(b"c")
    follower = rig.start()
    await asyncio.sleep(5)
    assert rig.bodies == [b"a"]
    assert follower.heads.confirmed_s == float("-inf")


async def test_a_row_that_fills_a_gap_is_applied_without_a_seal(rig: Following) -> None:
    position, _ = rig.journal.take_position()
    await rig.append(b"b")
    seals, reads, rows = Calls(rig, "seal"), Calls(rig, "read"), Calls(rig, "row")
    rig.start(settings=PATIENT)
    await asyncio.sleep(0.1)
    assert len(reads.times_s) == 1, "what lies behind the gap is here"
    assert 10 < len(rows.times_s) < 60, "each 2 ms"
    rig.journal.end_transaction(position, JournalRow(position, 5, b"a"))
    await asyncio.sleep(0.01)
    assert rig.bodies == [b"a", b"b"]
    assert not seals.arguments


async def test_a_gap_that_was_filled_when_its_time_is_up_is_not_sealed(rig: Following) -> None:
    position, _ = rig.journal.take_position()
    await rig.append(b"b")
    seals, rows = Calls(rig, "seal"), Calls(rig, "row")
    rig.start(settings=FollowerSettings(gap_ms=1, gap_poll_ms=2))
    while not rows.times_s:
        await asyncio.sleep(0.0001)
    rig.journal.end_transaction(position, JournalRow(position, 5, b"a"))
    await asyncio.sleep(0.01)
    assert rig.bodies == [b"a", b"b"]
    assert not seals.arguments
    assert rig.running is not None
    assert not rig.running.done()


async def test_a_gap_is_sealed_sooner_where_somebody_waits_for_a_head(rig: Following) -> None:
    rig.leave_gap()
    await rig.append(b"b")
    follower = rig.start(settings=PATIENT)
    await asyncio.sleep(1.5)
    assert not rig.bodies
    await follower.heads.confirm(0.1)
    assert rig.bodies == [b"", b"b"]


async def test_each_gap_has_its_own_time_and_missing_positions_alone_are_sealed(
    rig: Following,
) -> None:
    seals = Calls(rig, "seal")
    rig.leave_gap()
    await rig.append(b"2")
    rig.leave_gap()
    await rig.append(b"4")
    rig.start(settings=FollowerSettings(gap_ms=50, page_rows=3))
    await asyncio.sleep(0.1)
    assert seals.arguments == [[1, 3]]
    await asyncio.sleep(1)
    rig.leave_gap()
    await rig.append(b"6")
    await asyncio.sleep(0.04)
    assert seals.arguments == [[1, 3]], "the second gap is young"
    await asyncio.sleep(0.06)
    assert rig.bodies == [b"", b"2", b"", b"4", b"", b"6"]


async def test_one_seal_has_a_page_of_positions_at_most(rig: Following) -> None:
    for _ in range(7):
        rig.leave_gap()
    await rig.append(b"8")
    seals = Calls(rig, "seal")
    follower = rig.start(settings=FollowerSettings(page_rows=3))
    await follower.heads.confirm(10)
    assert seals.arguments[0] == [1, 2, 3]
    assert all(len(positions) <= 3 for positions in seals.arguments)


async def test_tries_are_twice_as_far_apart_each_time_up_to_a_second(rig: Following) -> None:
    reads = Calls(rig, "read")
    reads.error = RetryableError("read", "journal", "away")
    follower = rig.start()
    await asyncio.sleep(6)
    gaps_ms = [
        round(1000 * (after - before))
        for before, after in zip(reads.times_s, reads.times_s[1:], strict=False)
    ]
    assert gaps_ms == [20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000]
    assert follower.answering_since_s is None
    assert "away" in follower.away_detail
    reads.error = None
    await asyncio.sleep(2)
    reads.times_s.clear()
    reads.error = RetryableError("read", "journal", "away")
    await asyncio.sleep(0.5)
    assert round(1000 * (reads.times_s[1] - reads.times_s[0])) == 20, "from the least again"


class CountingExecutor(InlineExecutor):
    """Counts what it is given."""

    count = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize("is_full", [False, True])
async def test_short_batches_are_applied_on_the_event_loop_while_there_is_space(
    rig: Following, *, is_full: bool
) -> None:
    """A commit that finds no space has all that waits applied again, which may take long."""
    executor = CountingExecutor(SeededRandom(1))
    rig.replica.is_full = is_full
    settings = FollowerSettings(inline_bytes_max=10)
    follower = rig.start(settings=settings, executor=executor)
    for body, count in ((b"short", 0), (b"short", int(is_full)), (b"x" * 11, 1 + is_full)):
        await rig.append(body)
        await follower.heads.confirm(1)
        assert executor.count == count


def test_a_slow_batch_delays_no_commit_while_there_is_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, replica = ManualClock(now_ms=5), HeldReplica()
    follower = follower_of(None, replica, clock=clock)
    commit = replica.commit

    def take_time() -> int:
        clock.advance(1)
        return commit()

    monkeypatch.setattr(replica, "commit", take_time)
    for position in (1, 2, 3):
        follower._apply_rows([JournalRow(position, 5, b"x")])
    assert replica.committed == [1, 2, 3]


def test_how_long_there_was_no_space_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock, replica = ManualClock(now_ms=5), HeldReplica()
    follower = follower_of(None, replica, clock=clock)
    clock.advance(100)
    replica.is_full = True
    with caplog.at_level(logging.INFO):
        for position in (1, 2, 3):
            follower._apply_rows([JournalRow(position, 5, b"x")])
            clock.advance(2)
        replica.is_full = False
        follower._apply_rows([JournalRow(4, 5, b"x")])
    assert caplog.messages[-1] == "the replica's disk has space again, after 6.0 s"


async def test_a_hint_that_failed_is_none(rig: Following) -> None:
    hints, reads = Calls(rig, "wait"), Calls(rig, "read")
    hints.error = RetryableError("wait", "journal", "no hints here")
    rig.start(settings=FollowerSettings(poll_ms=100))
    await asyncio.sleep(1.05)
    assert len(reads.times_s) <= 12, "the polls alone"


async def test_nothing_is_left_waiting_by_nudges_or_by_an_end_in_a_pause(rig: Following) -> None:
    follower = rig.start(settings=FollowerSettings(poll_ms=60_000))
    for _ in range(20):
        await asyncio.sleep(0.01)
        follower.nudge()
    await asyncio.sleep(0.01)
    assert len(rig.connection._waits) == 1
    rig.journal.go_away()
    await asyncio.sleep(3)
    assert rig.running is not None
    rig.running.cancel()
    await asyncio.sleep(3)
    assert rig.running.cancelled()
