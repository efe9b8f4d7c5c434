"""Lanes before one limit: who goes on, in which order, and that none waits for ever."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from penstock.kafka.net.lanes import Lane, Lanes, Ticket

LIMIT = 100


def reserve(lanes: Lanes, lane: Lane, byte_count: int = 0, owner: object = None) -> Ticket:
    return lanes.reserve(lane, byte_count, owner or object(), now_s=0.0)


def test_what_fits_is_granted_at_once_and_what_does_not_waits() -> None:
    lanes = Lanes(LIMIT)
    first, above = reserve(lanes, Lane.ANSWER, 60), reserve(lanes, Lane.ANSWER, 60)
    waiting = reserve(lanes, Lane.ANSWER, 10)
    assert first.is_granted
    assert not first.is_above
    assert above.is_above
    assert not waiting.is_granted
    assert lanes.used_bytes == 120
    assert lanes.room_bytes == 0
    assert lanes.release(first) == [waiting]
    assert lanes.used_bytes == 70


def test_one_owner_goes_above_the_limit_with_all_that_it_needs() -> None:
    lanes, owner = Lanes(LIMIT), object()
    lanes.take(LIMIT)
    receiving = reserve(lanes, Lane.REQUEST, owner=owner)
    other = reserve(lanes, Lane.REQUEST)
    answer = reserve(lanes, Lane.ANSWER, 1000, owner)
    assert [receiving.is_above, other.is_granted, answer.is_above] == [True, False, True]
    assert not lanes.release(receiving)
    assert lanes.release(answer) == [other]


def test_an_answer_is_no_longer_above_once_less_than_the_limit_is_used() -> None:
    """Whoever reads the rest of it slowly keeps no other one from going above."""
    lanes = Lanes(LIMIT)
    first, second = reserve(lanes, Lane.ANSWER, 300), reserve(lanes, Lane.ANSWER, 200)
    assert lanes.resize(first, LIMIT) == []
    assert first.is_above
    assert lanes.resize(first, LIMIT - 1) == [second]
    assert [first.is_above, second.is_above] == [False, True]


def test_the_place_above_the_limit_is_free_again_also_where_nothing_waited_for_it() -> None:
    lanes = Lanes(LIMIT)
    lanes.take(LIMIT)
    slow = reserve(lanes, Lane.ANSWER, 10)
    assert not lanes.take(-20)
    assert not slow.is_above
    lanes.take(20)
    assert reserve(lanes, Lane.REQUEST).is_above


def test_a_fetch_never_goes_above_the_limit() -> None:
    lanes = Lanes(LIMIT)
    lanes.take(LIMIT)
    fetches = [reserve(lanes, Lane.FETCH) for _ in range(3)]
    assert not any(fetch.is_granted for fetch in fetches)
    assert lanes.take(-1) == fetches


def test_answers_wait_in_order_though_a_later_one_would_fit() -> None:
    lanes = Lanes(LIMIT)
    first = reserve(lanes, Lane.ANSWER, 300)
    long, short = reserve(lanes, Lane.ANSWER, 90), reserve(lanes, Lane.ANSWER, 1)
    assert lanes.resize(first, 50) == [long]
    assert [long.is_above, short.is_granted] == [True, False]


def test_one_that_leaves_its_lane_makes_way_for_the_next() -> None:
    lanes = Lanes(LIMIT)
    lanes.take(50)
    above = reserve(lanes, Lane.ANSWER, 51)
    lanes.resize(above, 0)
    long, short = reserve(lanes, Lane.ANSWER, 51), reserve(lanes, Lane.ANSWER, 50)
    assert lanes.release(long) == [short]
    assert not lanes.release(long)


def test_the_longest_wait_is_that_of_the_oldest_ticket() -> None:
    lanes = Lanes(LIMIT)
    lanes.take(LIMIT)
    assert lanes.longest_wait_s(9.0) == 0.0
    lanes.reserve(Lane.FETCH, 0, object(), now_s=2.0)
    lanes.reserve(Lane.FETCH, 0, object(), now_s=5.0)
    assert lanes.longest_wait_s(9.0) == 7.0


class AnyOrder(RuleBasedStateMachine):
    """Connections that take, ask, resize and leave in any order."""

    tickets: Bundle[Ticket] = Bundle("tickets")

    @initialize()
    def begin(self) -> None:
        self.lanes = Lanes(LIMIT)
        self.counted = 0
        self.alive: dict[Ticket, None] = {}
        self.waiting: dict[Lane, list[Ticket]] = {lane: [] for lane in Lane}

    @rule(byte_count=st.integers(0, 2 * LIMIT))
    def receive(self, byte_count: int) -> None:
        assert not self.lanes.take(byte_count)
        self.counted += byte_count

    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        byte_count = data.draw(st.integers(0, self.counted))
        self.counted -= byte_count
        self.granted(self.lanes.take(-byte_count))

    @rule(
        target=tickets,
        lane=st.sampled_from(Lane),
        byte_count=st.integers(0, 2 * LIMIT),
        owner=st.integers(0, 4),
    )
    def ask(self, lane: Lane, byte_count: int, owner: int) -> Ticket:
        before = self.lanes.used_bytes
        ticket = self.lanes.reserve(
            lane, byte_count if lane is Lane.ANSWER else 0, owner, now_s=0.0
        )
        self.alive[ticket] = None
        if not ticket.is_granted:
            self.waiting[lane].append(ticket)
        elif not ticket.is_above:
            assert not self.waiting[lane]
            assert before < LIMIT
            assert before + ticket.byte_count <= LIMIT
        return ticket

    @rule(ticket=tickets, byte_count=st.integers(0, 2 * LIMIT))
    def resize(self, ticket: Ticket, byte_count: int) -> None:
        if ticket.is_granted:
            self.granted(self.lanes.resize(ticket, byte_count))

    @rule(target=tickets, ticket=consumes(tickets))
    def leave(self, ticket: Ticket) -> Any:
        if ticket in self.waiting[ticket.lane]:
            self.waiting[ticket.lane].remove(ticket)
        self.alive.pop(ticket, None)
        self.granted(self.lanes.release(ticket))
        return multiple()

    def granted(self, tickets: Any) -> None:
        for ticket in tickets:
            assert ticket.is_granted
            # First come, first served, in each lane.
            assert self.waiting[ticket.lane].pop(0) is ticket

    @invariant()
    def counts_what_is_held(self) -> None:
        held = sum(ticket.byte_count for ticket in self.alive if ticket.is_granted)
        assert self.lanes.used_bytes == self.counted + held

    @invariant()
    def one_owner_is_above(self) -> None:
        above = [ticket for ticket in self.alive if ticket.is_above]
        assert len({ticket.owner for ticket in above}) <= 1
        assert all(ticket.is_granted and ticket.lane is not Lane.FETCH for ticket in above)

    @invariant()
    def nothing_waits_that_could_go_on(self) -> None:
        above = [ticket for ticket in self.alive if ticket.is_above]
        for lane, waiting in self.waiting.items():
            assert self.lanes.waiting_count(lane) == len(waiting)
            if waiting:
                assert self.lanes.used_bytes + (waiting[0].byte_count or 1) > LIMIT
                assert lane is Lane.FETCH or above

    def teardown(self) -> None:
        """None waits for ever when the others let go, and nothing leaks."""
        self.granted(self.lanes.take(-self.counted))
        self.counted = 0
        while self.alive:
            ticket = next(ticket for ticket in self.alive if ticket.is_granted)
            self.leave(ticket)
        assert self.lanes.used_bytes == 0
        assert not any(self.waiting.values())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=40)
