"""Places, slots and times of an HTTP port, without HTTP."""

import enum
from collections import Counter
from dataclasses import dataclass, field

import pytest

from penstock.app.http.gate import (
    BODY_BYTES_PER_S,
    HttpEnding,
    HttpGate,
    HttpLimits,
    HttpRefusal,
    HttpState,
    Phase,
)
from penstock.model.errors import OverloadedError
from support.simulated.clock import ManualClock


@dataclass(eq=False)
class Rig:
    clock: ManualClock
    counts: Counter[enum.StrEnum]
    gate: HttpGate


@dataclass(eq=False)
class Peer:
    rig: Rig
    phase: Phase = Phase.HEAD
    client_host: str = "10.0.0.1"
    body_bytes: int = 0
    unsent_bytes: int = 0
    peer_name: str = "10.0.0.1:1"
    was_cut: bool = False
    since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.since_s = self.rig.clock.monotonic_s()
        self.rig.gate.enter(self)

    def state(self, now_s: float) -> HttpState:
        return HttpState(self.phase, self.since_s, self.body_bytes, self.unsent_bytes)

    def cut(self) -> None:
        self.was_cut = True


@pytest.fixture
def rig() -> Rig:
    clock = ManualClock()
    counts: Counter[enum.StrEnum] = Counter()

    def count(port: str, happened: enum.StrEnum) -> None:
        assert port == "http"
        counts[happened] += 1

    limits = HttpLimits(connections_max=4, bodies_bytes_max=1000)
    return Rig(clock, counts, HttpGate("http", limits, clock, count))


def test_the_longest_waiting_half_request_makes_room(rig: Rig) -> None:
    peers = []
    for _ in range(4):
        peers.append(Peer(rig))
        rig.clock.advance(1)
    # One that is worked on stays.
    peers[0].phase = Phase.ANSWER
    probe = Peer(rig)
    assert [peer.was_cut for peer in peers] == [False, True, False, False]
    assert not probe.was_cut
    assert len(rig.gate) == 4
    assert rig.counts == {HttpEnding.ROOM: 1}


def test_of_the_address_that_has_the_most(rig: Rig) -> None:
    stranger = Peer(rig, client_host="10.0.0.2")
    rig.clock.advance(1)
    peers = [Peer(rig) for _ in range(3)]
    Peer(rig, client_host="10.0.0.3")
    assert not stranger.was_cut
    assert [peer.was_cut for peer in peers] == [True, False, False]


def test_then_one_whose_body_is_missing_then_one_that_takes_no_answer(rig: Rig) -> None:
    taking = Peer(rig, Phase.ANSWER, unsent_bytes=10)
    stuck = Peer(rig, Phase.ANSWER, unsent_bytes=10)
    body = Peer(rig, Phase.BODY)
    idle = Peer(rig, Phase.IDLE)
    rig.clock.advance(2)
    rig.gate.look()
    taking.unsent_bytes = 5
    rig.clock.advance(1)
    rig.gate.look()
    cut = []
    for _ in range(4):
        Peer(rig, Phase.ANSWER)
        cut.append([peer.was_cut for peer in (idle, body, stuck, taking)])
    assert cut == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, False],
    ]
    assert rig.counts[HttpRefusal.CONNECTIONS] == 1


def test_slots_are_half_of_the_places_and_then_a_half_sent_body_gives_its_own(rig: Rig) -> None:
    gate = rig.gate
    peers = [Peer(rig, Phase.BODY), Peer(rig, Phase.BODY)]
    assert [gate.take_slot("/") for _ in range(2)] == [True, True]
    # Just begun: its body may be on its way.
    assert not gate.take_slot("/")
    assert rig.counts == {HttpRefusal.REQUESTS: 1}
    rig.clock.advance(1)
    assert gate.take_slot("/")
    assert [peer.was_cut for peer in peers] == [True, False]
    for _ in range(3):
        gate.give_slot()
    peers[1].phase = Phase.ANSWER
    assert [gate.take_slot("/") for _ in range(3)] == [True, True, False]


def test_heads_and_bodies_have_their_time_and_bodies_more_for_what_came(rig: Rig) -> None:
    head, body, long = Peer(rig), Peer(rig, Phase.BODY), Peer(rig, Phase.BODY)
    idle = Peer(rig, Phase.IDLE)
    long.body_bytes = 20 * BODY_BYTES_PER_S
    cut_s: dict[str, int] = {}
    for second in range(1, 61):
        rig.clock.advance(1)
        rig.gate.look()
        for name, peer in (("head", head), ("body", body), ("long", long), ("idle", idle)):
            if peer.was_cut:
                cut_s.setdefault(name, second)
    assert cut_s == {"head": 10, "body": 30, "long": 50}
    assert rig.counts == {HttpEnding.HEAD: 1, HttpEnding.BODY: 2}


def test_an_answer_of_which_nothing_is_taken_ends(rig: Rig) -> None:
    stuck, slow = (Peer(rig, Phase.ANSWER, unsent_bytes=100) for _ in range(2))
    left = Peer(rig, Phase.IDLE, unsent_bytes=100)
    for _ in range(31):
        slow.unsent_bytes -= 1
        rig.gate.look()
        rig.clock.advance(1)
    rig.gate.look()
    assert stuck.was_cut
    assert left.was_cut
    assert not slow.was_cut
    assert rig.counts == {HttpEnding.STALLED: 2}


def test_bodies_in_memory_are_bounded_together(rig: Rig) -> None:
    rig.gate.take_body("/a", 900)
    with pytest.raises(OverloadedError, match=r"900 bytes .* and 1000 are allowed"):
        rig.gate.take_body("/b", 101)
    rig.gate.take_body("/b", 100)
    rig.gate.take_body("/a", -900)
    rig.gate.take_body("/b", 101)
    assert rig.gate.bodies_bytes == 201
    assert rig.counts == {HttpRefusal.BODIES: 1}
