"""What a follower does while its replica finds no space, and what it commits at which row."""

import asyncio
from typing import Any

import pytest

from penstock.model.errors import StorageFullError
from penstock.ports.journal import JournalRow
from penstock.replica.follower import Follower, FollowerSettings
from support.simulated.clock import ManualClock
from unit.replica.followers import Following, HeldReplica, follower_of

ROWS = [JournalRow(position, 5, b"%d" % position) for position in range(1, 5)]
AGAIN_S = FollowerSettings().full_again_ms / 1000


@pytest.mark.parametrize("rows_max", [0, 2])
async def test_rows_that_found_no_space_confirm_no_head_and_are_tried_each_second(
    rig: Following, rows_max: int
) -> None:
    await rig.append(b"a", b"b", b"c")
    rig.replica.rows_max = rows_max
    follower = rig.start()
    await asyncio.sleep(10 * AGAIN_S)
    assert rig.bodies == [b"a", b"b", b"c"][:rows_max], "what found space is delivered"
    assert follower.position == rows_max
    assert follower.heads.confirmed_s == float("-inf")
    assert 8 <= rig.replica.tried.count(rows_max + 1) <= 12
    assert follower.answering_since_s == pytest.approx(0, abs=0.1), "the journal is there"
    rig.replica.rows_max = None
    await follower.heads.confirm(2 * AGAIN_S)
    assert rig.bodies == [b"a", b"b", b"c"]


def applied(follower: Follower[bytes], *rows: JournalRow) -> tuple[int, StorageFullError | None]:
    followed, failure = follower._apply_rows(list(rows))
    return len(followed), failure


def test_a_commit_that_found_no_space_is_tried_again_after_a_second() -> None:
    clock, replica = ManualClock(now_ms=5), HeldReplica()
    follower = follower_of(None, replica, clock=clock)
    replica.is_full = True
    assert applied(follower, ROWS[0]) == (1, None), "the row was applied: it is delivered"
    clock.advance(AGAIN_S - 0.001)
    assert applied(follower, ROWS[1]) == (1, None)
    assert replica.commit_count == 1
    clock.advance(0.001)
    replica.is_full = False
    assert applied(follower, ROWS[2]) == (1, None)
    assert replica.committed == [3]
    assert applied(follower, ROWS[3]) == (1, None)
    assert len(replica.committed) == 2, "there is space: each batch is committed"


@pytest.mark.parametrize("is_slow_commit", [True, False])
def test_while_there_is_no_space_a_tenth_of_the_time_goes_into_trying(
    monkeypatch: pytest.MonkeyPatch, *, is_slow_commit: bool
) -> None:
    """Each commit that fails has all that waits for it applied again, which takes its time."""
    clock, replica = ManualClock(now_ms=5), HeldReplica()
    follower = follower_of(None, replica, clock=clock)
    replica.is_full = True
    if not is_slow_commit:
        assert applied(follower, ROWS[0]) == (1, None)
    slow: Any = replica.commit if is_slow_commit else replica.apply

    def take_time(*args: Any, **kwargs: Any) -> Any:
        clock.advance(0.5)
        return slow(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(replica, slow.__name__, take_time)
        assert applied(follower, ROWS[replica.position]) == (1, None)
    count = replica.commit_count
    clock.advance(10 * 0.5 - 0.001)
    assert applied(follower, ROWS[replica.position]) == (1, None)
    assert replica.commit_count == count
    clock.advance(0.001)
    assert applied(follower, ROWS[replica.position]) == (1, None)
    assert replica.commit_count == count + 1


def test_rows_before_the_one_that_found_no_space_are_told_with_the_error() -> None:
    clock, replica = ManualClock(now_ms=5), HeldReplica()
    replica.rows_max = 2
    count, failure = applied(follower_of(None, replica, clock=clock), *ROWS)
    assert count == 2
    assert isinstance(failure, StorageFullError)


def test_a_state_that_is_kept_is_committed_with_its_row_and_without_those_after_it() -> None:
    class Wanted:
        """Keeps the states of rows 1 and 3."""

        def __init__(self) -> None:
            self.pinned: list[tuple[int, int]] = []

        def wants(self, outcome: bytes) -> bool:
            return outcome in (b"1", b"3")

        def pin(self, position: int) -> None:
            self.pinned.append((position, replica.committed[-1]))

    replica, pins = HeldReplica(), Wanted()
    follower = follower_of(None, replica, clock=ManualClock(now_ms=5), pins=pins)
    assert applied(follower, *ROWS) == (4, None)
    assert pins.pinned == [(1, 1), (3, 3)]
    assert replica.committed == [1, 3, 4]
