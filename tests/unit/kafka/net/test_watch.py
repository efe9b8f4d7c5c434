"""Who must go when the lanes is full: the slowest first, and no more than make room."""

from dataclasses import dataclass, field

from penstock.kafka.net.lanes import Lanes
from penstock.kafka.net.movement import Ending, Movement, Patience, Sample
from penstock.kafka.net.watch import Watch

LIMIT = 8000


@dataclass(eq=False)
class Peer:
    """A connection that holds `held` bytes and sends `bytes_per_s`."""

    lanes: Lanes
    held: int
    bytes_per_s: float = 1
    moving: bool = True
    began: int = 1000
    endings: list[Ending] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lanes.take(self.held)

    def sample(self, now_s: float) -> Sample | None:
        if not self.moving:
            return None
        received = self.began + int(now_s * self.bytes_per_s)
        return Sample(now_s, 1, received, 1 << 20, 0, 0, 0)

    def holds_of(self, lanes: Lanes) -> bool:
        return lanes is self.lanes

    def end_slow(self, ending: Ending, movement: Movement) -> None:
        self.endings.append(ending)
        self.lanes.take(-self.held)
        self.moving = False


def watched(*peers: Peer, stall_s: float = 1000.0) -> Watch:
    watch = Watch(Patience(stall_s=stall_s, request_s=1000.0), peers[0].lanes)
    for peer in peers:
        watch.add(peer)
    return watch


def looks(watch: Watch, count: int) -> None:
    for second in range(count):
        watch.look(float(second))


def test_the_slowest_go_until_an_eighth_is_free() -> None:
    lanes = Lanes(LIMIT)
    peers = [Peer(lanes, 1000, bytes_per_s=speed) for speed in (9, 3, 7, 1, 5, 8, 2, 6)]
    looks(watched(*peers), 2)
    assert [peer.bytes_per_s for peer in peers if peer.endings] == [1]
    assert lanes.room_bytes == LIMIT // 8


def test_nobody_goes_while_there_is_room() -> None:
    lanes = Lanes(LIMIT)
    peers = [Peer(lanes, 999) for _ in range(8)]
    looks(watched(*peers), 20)
    assert not any(peer.endings for peer in peers)


def test_a_budget_that_is_full_for_a_moment_costs_nobody() -> None:
    lanes = Lanes(LIMIT)
    peer = Peer(lanes, 100)
    watch = watched(peer)
    watch.look(0)
    lanes.take(LIMIT)
    watch.look(1)
    lanes.take(-LIMIT)
    watch.look(2)
    lanes.take(LIMIT)
    watch.look(3)
    assert not peer.endings
    watch.look(4)
    assert peer.endings == [Ending.SLOW_REQUEST]


def test_fast_ones_stay_though_the_budget_is_full() -> None:
    lanes = Lanes(LIMIT)
    fast = [Peer(lanes, 1000, bytes_per_s=1e6) for _ in range(8)]
    slow = Peer(lanes, 10, bytes_per_s=5)
    looks(watched(*fast, slow), 10)
    assert slow.endings == [Ending.SLOW_REQUEST]
    assert not any(peer.endings for peer in fast)


def test_one_that_moves_nothing_any_more_is_forgotten_and_one_that_is_gone_too() -> None:
    lanes = Lanes(LIMIT)
    done, gone, still = Peer(lanes, 1), Peer(lanes, 1), Peer(lanes, 1, bytes_per_s=0)
    watch = watched(done, gone, still, stall_s=5)
    watch.look(0)
    done.moving = False
    watch.discard(gone)
    looks(watch, 10)
    assert not done.endings
    assert not gone.endings
    assert still.endings == [Ending.STALLED]
