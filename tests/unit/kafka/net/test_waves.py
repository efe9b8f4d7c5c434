"""Which Produce requests wait for those of other connections, and for how long."""

import asyncio
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.net.waves import BYTES_MAX, CONNECTIONS_MIN, SPAN_S, ProduceWaves
from support.simulated.clock import ManualClock

PRODUCE = memoryview(b"\0\0 produce")
FETCH = memoryview(b"\0\1 fetch")
NEVER_S = 3600.0


class Turns:
    """A log that writes down when a turn may begin."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def hold(self) -> None:
        self._events.append("hold")

    def settle(self, *, all_came: bool = False) -> None:
        self._events.append("settle" if all_came else "settle for now")


class Connection:
    def __init__(self, name: int, events: list[str]) -> None:
        self.name = name
        self.taken: list[tuple[bytes, float]] = []
        self._events = events

    def take_up(self, frames: Iterable[memoryview], arrived_s: float) -> None:
        self._events.append(f"take {self.name}")
        self.taken += ((bytes(frame), arrived_s) for frame in frames)


class Bench:
    def __init__(self, wait_s: float = NEVER_S, connections: int = 12) -> None:
        self.events: list[str] = []
        self.clock = ManualClock()
        self.waves = ProduceWaves(wait_s, Turns(self.events), self.clock)
        self.connections = [Connection(name, self.events) for name in range(connections)]

    def send(self, name: int, frame: memoryview = PRODUCE) -> bool:
        """Whether it waits; if not, its connection takes it up, as the real one does."""
        connection = self.connections[name]
        if self.waves.keep(connection, [frame]):
            return True
        connection.take_up([frame], self.clock.monotonic_s())
        return False

    def in_company(self) -> None:
        """So many send that the next one waits."""
        for name in range(CONNECTIONS_MIN - 1):
            assert not self.send(name)
        assert self.send(CONNECTIONS_MIN - 1)


async def test_few_connections_never_wait_however_much_they_send() -> None:
    bench = Bench()
    for turn in range(100):
        assert not bench.send(turn % (CONNECTIONS_MIN - 1))


async def test_many_that_send_seldom_never_wait() -> None:
    bench = Bench()
    for turn in range(100):
        assert not bench.send(turn % 12)
        bench.clock.advance(SPAN_S / (CONNECTIONS_MIN - 2))


async def test_what_waits_is_taken_up_in_one_turn_in_the_order_of_arrival() -> None:
    bench = Bench(wait_s=0.001)
    bench.in_company()
    bench.clock.advance(0.25)
    assert bench.send(3)
    assert bench.send(7, memoryview(b"\0\0 more"))
    bench.events.clear()
    while "settle" not in bench.events:
        await asyncio.sleep(0.001)
    assert bench.events == ["hold", "take 7", "take 3", "settle"]
    # The time of arrival is that of the first of a connection, so that waiting is measured.
    assert bench.connections[7].taken == [(b"\0\0 produce", 0.0), (b"\0\0 more", 0.0)]
    assert bench.connections[3].taken[-1] == (b"\0\0 produce", 0.25)


async def test_who_waited_and_met_nobody_waits_no_more() -> None:
    bench = Bench(wait_s=0.001)
    bench.in_company()
    while "settle" not in bench.events:
        await asyncio.sleep(0.001)
    assert not bench.send(CONNECTIONS_MIN - 1)


async def test_another_request_of_a_connection_waits_for_nobody_and_overtakes_nothing() -> None:
    bench = Bench()
    bench.in_company()
    assert bench.send(2)
    assert not bench.send(2, FETCH)
    assert [frame for frame, _ in bench.connections[2].taken[-2:]] == [
        bytes(PRODUCE),
        bytes(FETCH),
    ]
    assert bench.connections[7].taken == [], "the others wait on"


async def test_enough_bytes_are_worth_a_turn_at_once() -> None:
    bench = Bench()
    bench.in_company()
    big = memoryview(bytes(BYTES_MAX // 2))
    assert bench.send(1, big)
    assert "settle" not in bench.events
    assert bench.send(2, big)
    assert bench.events[-5:] == ["hold", "take 7", "take 1", "take 2", "settle"]
    # What was released before counts no more.
    assert bench.send(3, big)
    bench.waves.release(bench.connections[3])
    assert bench.send(4, big)
    assert bench.events[-1] == "take 3"


async def test_without_a_wait_nobody_waits() -> None:
    bench = Bench(wait_s=0.0)
    for turn in range(100):
        assert not bench.send(turn % 12)


@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from([PRODUCE, FETCH]), st.sampled_from([0, 0, 9]))
    )
)
async def test_every_request_is_taken_up_once_and_in_its_connections_order(
    arrivals: list[tuple[int, memoryview, int]],
) -> None:
    bench = Bench()
    sent: dict[int, list[bytes]] = {name: [] for name in range(12)}
    for number, (name, kind, pause_ms) in enumerate(arrivals):
        frame = memoryview(bytes(kind[:2]) + str(number).encode())
        bench.clock.advance(pause_ms / 1000)
        sent[name].append(bytes(frame))
        bench.send(name, frame)
    for connection in bench.connections:
        bench.waves.release(connection)
        assert [frame for frame, _ in connection.taken] == sent[connection.name]
