"""What goes into one call to the owner of blocks, and what of its answer is taken."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.model.errors import NotFoundError, RetryableError
from penstock.peers import BlockRange, OwnBlocks, ZoneStore
from penstock.peers.client import PeerAwayError
from penstock.peers.codec import RANGES_BYTES_MAX, RANGES_MAX, FrameKind
from penstock.peers.receive import Frame
from penstock.peers.zone import _Ask, _batches
from penstock.ports.objects import Versioned
from support.simulated.clock import ManualClock

FROM_STORE, FROM_PEER = b"s", b"p"


class Store:
    """An object of version 1 and any length."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def get_versioned(self, key: str, start: int, end: int) -> Versioned:
        self.calls.append((start, end))
        return Versioned(FROM_STORE * (end - start), "1")

    async def size(self, key: str) -> int:
        return 7

    async def delete(self, keys: Sequence[str]) -> None:
        self.calls.append(keys)


class Peer:
    """Answers each call by `script`; keeps the ranges' lengths."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.script: Callable[[Callable[[Frame], None], list[int]], Any] = answer

    async def call(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        on_frame: Callable[[Frame], None],
        payload_bytes_max: list[int],
    ) -> None:
        assert address == "two:1"
        self.calls.append(payload_bytes_max)
        waits = self.script(on_frame, payload_bytes_max)
        if waits is not None:
            await waits


def answer(on_frame: Callable[[Frame], None], lengths: list[int]) -> None:
    for index, length in enumerate(lengths):
        on_frame(Frame(FrameKind.VERSION, index, memoryview(b"1")))
        on_frame(Frame(FrameKind.DATA, index, memoryview(FROM_PEER * length)))
    on_frame(Frame(FrameKind.END, 0, memoryview(b"")))


class Rig:
    def __init__(self) -> None:
        self.store, self.peer = Store(), Peer()
        self.owner: int | None = 2
        self.asked_of: list[tuple[bytes, list[int]]] = []
        self.zone = ZoneStore(
            self.store,  # type: ignore[arg-type]
            agent_id=1,
            agents=lambda: {1: "one:1", 2: "two:1"},
            owner_of=self._owner_of,
            own=OwnBlocks(self.store, bytes_max=100),  # type: ignore[arg-type]
            calls=self.peer,
            block_bytes=10,
            clock=ManualClock(),
        )

    def _owner_of(self, key: bytes, members: Sequence[int]) -> int | None:
        self.asked_of.append((key, sorted(members)))
        return self.owner

    async def read(self, start: int, end: int) -> bytes:
        return bytes((await self.zone.get_versioned("k", start, end)).data)[:1]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        counts = self.zone.counts
        return counts.own, counts.peer, counts.refused, counts.away


@pytest.fixture
def rig() -> Rig:
    return Rig()


def asks(*lengths: int) -> list[_Ask]:
    loop = asyncio.new_event_loop()
    try:
        return [_Ask(BlockRange("k", 0, length), loop.create_future()) for length in lengths]
    finally:
        loop.close()


def test_a_call_has_so_many_ranges_and_bytes_at_most() -> None:
    half = RANGES_BYTES_MAX // 2
    for lengths, sizes in (
        ([1] * RANGES_MAX, [RANGES_MAX]),
        ([1] * (2 * RANGES_MAX + 1), [RANGES_MAX, RANGES_MAX, 1]),
        ([half, half, 1], [2, 1]),
        ([half, half + 1, half - 1], [1, 2]),
        ([1, RANGES_BYTES_MAX], [1, 1]),
    ):
        found = asks(*lengths)
        batches = _batches(found)
        assert [len(batch) for batch in batches] == sizes
        assert [ask for batch in batches for ask in batch] == found


async def test_blocks_that_are_asked_for_in_one_turn_go_in_one_call(rig: Rig) -> None:
    reads = [rig.read(0, 10), rig.read(10, 20), rig.read(20, 23)]
    assert await asyncio.gather(*reads) == [FROM_PEER] * 3
    assert rig.peer.calls == [[10, 10, 3]]
    assert rig.counts == (0, 3, 0, 0)
    assert [key for key, _ in rig.asked_of] == [b"k#0", b"k#1", b"k#2"]
    assert await rig.read(0, 10) == FROM_PEER
    assert len(rig.peer.calls) == 2
    assert not rig.store.calls


@pytest.mark.parametrize(("start", "end"), [(1, 5), (0, 11), (5, 10), (10, 10)])
async def test_what_is_no_block_is_the_store_s(rig: Rig, start: int, end: int) -> None:
    await rig.read(start, end)
    assert rig.store.calls == [(start, end)]
    assert not rig.peer.calls
    assert rig.counts == (0, 0, 0, 0)


@pytest.mark.parametrize("owner", [1, None])
async def test_own_blocks_are_read_once_and_kept(rig: Rig, owner: int | None) -> None:
    rig.owner = owner
    assert [await rig.read(0, 10) for _ in range(2)] == [FROM_STORE] * 2
    assert rig.store.calls == [(0, 10)]
    assert rig.counts == (2, 0, 0, 0)
    assert not rig.peer.calls


async def test_a_peer_that_is_away_is_counted_and_no_member_for_a_while(rig: Rig) -> None:
    def away(*_: Any) -> None:
        raise PeerAwayError("ask peer", "two:1", "silent")

    rig.peer.script = away
    assert await asyncio.gather(rig.read(0, 10), rig.read(10, 20)) == [FROM_STORE] * 2
    assert rig.counts == (0, 0, 0, 2)
    rig.owner = 1
    await rig.read(0, 10)
    assert [members for _, members in rig.asked_of] == [[1, 2], [1, 2], [1]]


async def test_an_error_of_a_call_is_no_error_of_its_readers(rig: Rig) -> None:
    def fail(*_: Any) -> None:
        raise RetryableError("ask peer", "two:1", "HTTP 503")

    rig.peer.script = fail
    assert await rig.read(0, 10) == FROM_STORE
    assert rig.counts == (0, 0, 1, 0)


@pytest.mark.parametrize("kind", [FrameKind.REFUSED, FrameKind.DAMAGED, FrameKind.MOVED])
async def test_words_of_a_block_s_length_are_no_block(rig: Rig, kind: FrameKind) -> None:
    def refuse(on_frame: Callable[[Frame], None], lengths: list[int]) -> None:
        on_frame(Frame(FrameKind.VERSION, 0, memoryview(b"1")))
        on_frame(Frame(kind, 0, memoryview(b"0123456789")))

    rig.peer.script = refuse
    assert await rig.read(0, 10) == FROM_STORE
    assert rig.counts == (0, 0, 1, 0)


async def test_frames_of_ranges_that_were_not_asked_for_are_passed_over(rig: Rig) -> None:
    def more(on_frame: Callable[[Frame], None], lengths: list[int]) -> None:
        on_frame(Frame(FrameKind.DATA, 1, memoryview(bytes(10))))
        on_frame(Frame(FrameKind.END, 0, memoryview(b"")))
        answer(on_frame, lengths)

    rig.peer.script = more
    assert await rig.read(0, 10) == FROM_PEER


async def test_a_reader_that_has_gone_takes_no_block_from_the_others(rig: Rig) -> None:
    go = asyncio.Event()

    async def later(on_frame: Callable[[Frame], None], lengths: list[int]) -> None:
        await go.wait()
        answer(on_frame, lengths)

    rig.peer.script = later
    gone, stays = (asyncio.ensure_future(rig.read(at, at + 10)) for at in (0, 10))
    await asyncio.sleep(0.001)
    gone.cancel()
    go.set()
    assert await stays == FROM_PEER
    assert gone.cancelled()


async def test_readers_of_a_zone_that_ends_read_the_store(rig: Rig) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    rig.peer.script = never
    reading = asyncio.ensure_future(rig.read(0, 10))
    await asyncio.sleep(0.001)
    assert rig.peer.calls
    await rig.zone.close()
    assert not rig.zone._tasks
    assert await asyncio.wait_for(reading, 1) == FROM_STORE


async def test_the_rest_of_the_port_is_the_store_s(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await rig.zone.size("k") == 7
    await rig.zone.delete(["k"])
    assert rig.store.calls == [["k"]]


async def test_an_object_that_is_gone_is_an_error_of_its_reader(rig: Rig) -> None:
    async def gone(key: str, start: int, end: int) -> Versioned:
        raise NotFoundError("get", key, "gone")

    rig.store.get_versioned = gone  # type: ignore[method-assign]
    rig.peer.script = lambda *_: None
    with pytest.raises(NotFoundError):
        await rig.read(0, 10)
