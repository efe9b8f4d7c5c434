"""What a new connection is known to have seen, with and without a stall before it."""

from penstock.kafka.net.accepting import STALL_S, AcceptedPositions
from support.simulated.clock import ManualClock


class Loop:
    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=1_000_000)
        self.position = 1
        self.accepted = AcceptedPositions(lambda: self.position, self.clock)

    def run(self, seconds: float) -> None:
        """The loop runs for so long, and notes the position ten times a second."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.accepted.note()


def test_a_connection_has_seen_what_is_applied_when_it_is_accepted() -> None:
    loop = Loop()
    loop.run(5)
    loop.position = 2
    assert loop.accepted.of_new() == 2


def test_after_a_stall_connections_count_as_opened_before_it() -> None:
    for notes_first in (False, True):
        loop = Loop()
        loop.run(1)
        loop.clock.advance(STALL_S)
        # The replica catches up before the loop comes to the backlog.
        loop.position = 9
        if notes_first:
            loop.accepted.note()
        assert loop.accepted.of_new() == 1
        loop.run(STALL_S / 2)
        assert loop.accepted.of_new() == 1
        loop.run(STALL_S)
        assert loop.accepted.of_new() == 9


def test_two_stalls_in_a_row_leave_the_position_before_the_first() -> None:
    loop = Loop()
    loop.run(1)
    for position in (5, 6):
        loop.clock.advance(STALL_S)
        loop.position = position
        assert loop.accepted.of_new() == 1
