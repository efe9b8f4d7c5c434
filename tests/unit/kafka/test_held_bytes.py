"""What connections hold in the lanes: counted once, given back whole, and who goes on for it."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kafka.net.holdings import FREE_BYTES, UNLIMITED, Holdings
from penstock.kafka.net.lanes import Lane, Lanes, Ticket

LIMIT = 4 * FREE_BYTES


class Server:
    """Lanes, a clock that stands still, and where waits are counted."""

    def __init__(self) -> None:
        self.data = Lanes(LIMIT)
        self.groups = Lanes(LIMIT)
        self.events: list[str] = []

    def monotonic_s(self) -> float:
        return 0.0

    def count(self, event: str, amount: int = 1) -> None:
        self.events.append(event)


class Client:
    """The owner of tickets."""

    def __init__(self, server: Server) -> None:
        self.granted: list[Ticket] = []
        self.appends = False
        clock: Any = server
        self.held = Holdings(server, self, clock, server)

    def room_granted(self, ticket: Ticket) -> None:
        assert ticket.is_granted
        self.granted.append(ticket)

    def is_appending(self) -> bool:
        return self.appends


def clients(count: int) -> tuple[Server, list[Client]]:
    server = Server()
    return server, [Client(server) for _ in range(count)]


def two_receivers() -> tuple[Server, Client, Client]:
    """Full lanes, and two clients that ask to receive a long request above the limit."""
    server, (one, other) = clients(2)
    server.data.take(LIMIT)
    for client in (one, other):
        client.held.set_partial(FREE_BYTES)
    assert one.held.may_receive(is_idle=True)
    assert not other.held.may_receive(is_idle=True)
    return server, one, other


def a_fetch_before_an_answer() -> tuple[Client, Client]:
    """A fetch whose frame counts, which was let in above the limit, and an answer that waits."""
    server, (one, other, first) = clients(3)
    assert first.held.reserve_answer(LIMIT + 1, of_groups=False)
    one.held.add_request(FREE_BYTES + 1, of_groups=False)
    server.data.take(LIMIT)
    assert not one.held.may_fetch()
    assert not other.held.reserve_answer(1, of_groups=False)
    first.held.leave()
    assert len(one.granted) == 1
    assert not other.granted
    return one, other


def test_a_request_above_what_is_free_is_given_back_whole() -> None:
    server, (one,) = clients(1)
    one.held.set_partial(FREE_BYTES)
    assert server.data.used_bytes == 0
    one.held.set_partial(FREE_BYTES + 7)
    assert server.data.used_bytes == 7
    one.held.set_partial_kind(of_groups=True)
    assert [server.data.used_bytes, server.groups.used_bytes] == [0, 7]
    one.held.set_partial(0)
    assert server.groups.used_bytes == 0


def test_what_holds_bytes_of_lanes_is_told() -> None:
    server, (one, other) = clients(2)
    held = one.held
    assert not held.holds_of(server.data)
    held.set_unsent(1)
    assert [held.holds_of(server.data), held.holds_of(server.groups)] == [True, False]
    held.set_unsent(0)
    held.add_request(FREE_BYTES + 1, of_groups=True)
    assert [held.holds_of(server.data), held.holds_of(server.groups)] == [False, True]
    held.add_request(-FREE_BYTES - 1, of_groups=True)
    assert held.reserve_answer(LIMIT + 1, of_groups=False)
    assert [held.holds_of(server.data), held.holds_of(server.groups)] == [True, False]
    assert not other.held.reserve_answer(LIMIT, of_groups=False)
    assert not other.held.holds_of(server.data), "it waits"


def test_while_the_lanes_are_full_an_idle_connection_receives_what_is_free() -> None:
    server, (one,) = clients(1)
    held = one.held
    assert held.receive_max() == UNLIMITED
    server.data.take(LIMIT)
    assert held.may_receive(is_idle=True)
    assert not held.may_receive(is_idle=False)
    held.set_partial(100)
    assert held.receive_max() == FREE_BYTES - 100
    server.data.take(-1)
    held.set_unsent(1)
    assert not held.may_receive(is_idle=True), "replies are unread"


def test_one_long_request_at_a_time_is_received_above_the_limit() -> None:
    server, one, other = two_receivers()
    assert one.held.receive_max() == UNLIMITED
    assert other.held.receive_max() == 1
    assert server.events == ["waited:request"]
    # With a request under way the place is left to the other.
    assert not one.held.may_receive(is_idle=False)
    assert len(other.granted) == 1
    assert other.held.may_receive(is_idle=True)


def test_a_request_that_is_no_longer_received_leaves_the_place_above() -> None:
    _, one, other = two_receivers()
    one.held.set_partial(0)
    one.held.may_receive(is_idle=True)
    assert len(other.granted) == 1


def test_the_place_above_is_kept_until_a_produce_is_answered() -> None:
    """Else the next one's bytes would be added to those above the limit, and so on."""
    server, (one, other) = clients(2)
    server.data.take(LIMIT)
    for client in (one, other):
        client.held.set_partial(FREE_BYTES)
        client.held.may_receive(is_idle=True)
    one.held.set_partial(0)
    one.held.add_request(LIMIT, of_groups=False)
    one.appends = True
    assert not one.held.may_receive(is_idle=False)
    assert not other.granted
    one.held.add_request(-LIMIT, of_groups=False)
    one.appends = False
    one.held.may_receive(is_idle=True)
    assert len(other.granted) == 1


def test_what_goes_on_without_its_peer_counts_whole_and_keeps_the_place_above() -> None:
    server, (one, other) = clients(2)
    server.data.take(LIMIT)
    for client in (one, other):
        client.held.set_partial(FREE_BYTES)
        client.held.may_receive(is_idle=True)
    one.held.set_partial(0)
    one.held.add_request(10, of_groups=False)
    one.held.add_request(LIMIT, of_groups=False)
    one.appends = True
    one.held.leave(LIMIT + 10)
    assert server.data.used_bytes == 2 * LIMIT + 10
    assert not other.held.may_receive(is_idle=True)
    one.held.orphans_answered(LIMIT)
    assert not other.granted
    one.held.orphans_answered(10)
    assert server.data.used_bytes == LIMIT
    assert len(other.granted) == 1


def test_a_place_above_that_was_given_back_is_asked_for_once_more() -> None:
    server, (one, other) = clients(2)
    server.data.take(LIMIT)
    for client in (one, other):
        client.held.set_partial(FREE_BYTES)
    assert one.held.may_receive(is_idle=True)
    server.data.take(-1)
    server.data.take(1)
    assert other.held.may_receive(is_idle=True)
    assert not one.held.may_receive(is_idle=True)


def test_a_fetch_that_was_let_in_above_the_limit_keeps_its_turn() -> None:
    one, other = a_fetch_before_an_answer()
    assert one.held.may_fetch()
    assert len(other.granted) == 1


def test_a_fetch_whose_frame_counts_goes_above_the_limit_and_holds_nothing() -> None:
    server, (one, other) = clients(2)
    server.data.take(LIMIT)
    assert not other.held.may_fetch()
    one.held.add_request(FREE_BYTES + 1, of_groups=False)
    assert one.held.may_fetch()
    assert server.data.reserve(Lane.ANSWER, 1, object(), now_s=0.0).is_above, "the place is free"
    assert not other.held.may_fetch()
    assert server.events == ["waited:fetch"]


def test_a_fetch_that_was_let_in_waits_once_more_where_the_room_is_gone() -> None:
    server, (one,) = clients(1)
    server.data.take(LIMIT)
    assert not one.held.may_fetch()
    server.data.take(-1)
    server.data.take(1)
    assert not one.held.may_fetch()
    server.data.take(-1)
    assert one.held.may_fetch()
    assert server.data.waiting_count(Lane.FETCH) == 0


def test_the_place_above_is_kept_until_all_of_an_answer_has_left() -> None:
    server, (one, other) = clients(2)
    assert one.held.reserve_answer(2 * LIMIT, of_groups=False)
    assert not other.held.reserve_answer(LIMIT, of_groups=False)
    one.held.answer_made()
    one.held.set_unsent(LIMIT)
    one.held.answer_left()
    assert server.data.used_bytes == LIMIT
    assert not other.granted
    one.held.set_unsent(0)
    one.held.answer_left()
    assert len(other.granted) == 1
    assert server.data.used_bytes == LIMIT


def test_the_next_one_is_told_as_an_answer_leaves() -> None:
    for left in (1, 0):
        _, (one, other) = clients(2)
        assert one.held.reserve_answer(2 * LIMIT, of_groups=False)
        assert not other.held.reserve_answer(LIMIT, of_groups=False)
        one.held.answer_made()
        one.held.answer_left(left)
        assert other.granted == [other.held.answer]


def test_the_next_one_is_told_as_a_connection_goes_that_received_above_the_limit() -> None:
    _, one, other = two_receivers()
    one.held.leave()
    assert len(other.granted) == 1


def test_the_next_one_is_told_as_a_connection_goes_that_might_have_fetched() -> None:
    one, other = a_fetch_before_an_answer()
    one.held.leave()
    assert len(other.granted) == 1


class AnyOrder(RuleBasedStateMachine):
    """Three connections that receive, answer, wait and leave in any order."""

    @initialize()
    def begin(self) -> None:
        self.server, self.clients = clients(3)
        self.held: dict[Client, dict[bool, int]] = {}
        self.partial: dict[Client, tuple[bool, int]] = {}
        self.orphans: list[list[Any]] = []
        for client in self.clients:
            self.forget(client)

    def forget(self, client: Client) -> None:
        self.held[client] = {False: 0, True: 0}
        self.partial[client] = (False, 0)

    @rule(
        at=st.integers(0, 2),
        byte_count=st.integers(0, 2 * LIMIT),
        of_groups=st.booleans(),
        is_less=st.booleans(),
    )
    def request(self, at: int, byte_count: int, of_groups: bool, is_less: bool) -> None:
        client = self.clients[at]
        whole = self.held[client]
        change = -min(byte_count, whole[of_groups]) if is_less else byte_count
        whole[of_groups] += change
        client.held.add_request(change, of_groups=of_groups)

    @rule(at=st.integers(0, 2), byte_count=st.integers(0, 2 * LIMIT), of_groups=st.booleans())
    def receive(self, at: int, byte_count: int, of_groups: bool) -> None:
        client = self.clients[at]
        self.partial[client] = (of_groups, byte_count)
        client.held.set_partial_kind(of_groups=of_groups)
        client.held.set_partial(byte_count)

    @rule(at=st.integers(0, 2), is_idle=st.booleans())
    def look(self, at: int, is_idle: bool) -> None:
        self.clients[at].held.may_receive(is_idle=is_idle)

    @rule(at=st.integers(0, 2))
    def fetch(self, at: int) -> None:
        self.clients[at].held.may_fetch()

    @rule(at=st.integers(0, 2), byte_count=st.integers(0, 2 * LIMIT), of_groups=st.booleans())
    def reserve(self, at: int, byte_count: int, of_groups: bool) -> None:
        held = self.clients[at].held
        if held.sending is None and (held.answer is None or held.answer.is_granted):
            held.reserve_answer(byte_count, of_groups=of_groups)

    @rule(at=st.integers(0, 2), unsent=st.integers(0, LIMIT), left=st.integers(0, LIMIT))
    def send(self, at: int, unsent: int, left: int) -> None:
        held = self.clients[at].held
        if held.answer is not None and held.answer.is_granted:
            held.answer_made()
        held.set_unsent(unsent)
        held.answer_left(left)

    @rule(at=st.integers(0, 2))
    def appends(self, at: int) -> None:
        self.clients[at].appends = not self.clients[at].appends

    @rule(at=st.integers(0, 2), going_on=st.integers(0, LIMIT))
    def leave(self, at: int, going_on: int) -> None:
        client = self.clients[at]
        going_on = min(going_on, self.held[client][False])
        client.held.leave(going_on)
        self.forget(client)
        self.orphans.append([client, going_on])
        self.clients[at] = Client(self.server)
        self.forget(self.clients[at])

    @rule(at=st.integers(0, 9), byte_count=st.integers(1, LIMIT))
    def answer_orphan(self, at: int, byte_count: int) -> None:
        if self.orphans:
            orphan = self.orphans[at % len(self.orphans)]
            byte_count = min(byte_count, orphan[1])
            orphan[1] -= byte_count
            orphan[0].held.orphans_answered(byte_count)

    @invariant()
    def counts_what_is_held(self) -> None:
        for of_groups, lanes in ((False, self.server.data), (True, self.server.groups)):
            used = sum(left for _, left in self.orphans) * (not of_groups)
            for client in self.clients:
                held = client.held
                is_kind, partial = self.partial[client]
                whole = self.held[client][of_groups] + partial * (is_kind is of_groups)
                used += max(0, whole - FREE_BYTES) + held.unsent_bytes * (not of_groups)
                used += sum(
                    ticket.byte_count
                    for ticket in (held.answer, held.sending)
                    if ticket is not None and ticket.is_granted and ticket.lanes is lanes
                )
            assert lanes.used_bytes == used

    def teardown(self) -> None:
        """Nothing is left of connections that are gone."""
        for client in self.clients:
            client.held.leave()
        for client, left in self.orphans:
            client.held.orphans_answered(left)
        for lanes in (self.server.data, self.server.groups):
            assert lanes.used_bytes == 0
            assert not any(lanes.waiting_count(lane) for lane in Lane)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=30)
