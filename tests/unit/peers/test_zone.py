"""Who is asked, and for how long a peer that was silent is passed over."""

from collections.abc import Callable

from obstore.store import MemoryStore

from penstock.model.errors import RetryableError
from penstock.objects.bucket import BucketStore
from penstock.peers import OwnBlocks, ZoneStore
from penstock.peers.client import PeerAwayError
from penstock.peers.codec import BlockRange, FrameKind
from penstock.peers.receive import Frame, UnknownCallError
from penstock.peers.zone import AVOID
from penstock.placement.rendezvous import owner_of
from support.simulated.clock import ManualClock


class ScriptedCalls:
    """Raises what it is told to; counts calls by address."""

    def __init__(self) -> None:
        self.error: RetryableError | None = None
        self.version: bytes | None = b"1"
        self.calls: list[str] = []

    async def call(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        on_frame: Callable[[Frame], None],
        payload_bytes_max: list[int],
    ) -> None:
        self.calls.append(address)
        if self.error is not None:
            raise self.error
        for index, length in enumerate(payload_bytes_max):
            if self.version is not None:
                on_frame(Frame(FrameKind.VERSION, index, memoryview(self.version)))
            on_frame(Frame(FrameKind.DATA, index, memoryview(bytearray(b"p" * length))))


def _rig() -> tuple[ZoneStore, ScriptedCalls, ManualClock]:
    store = BucketStore(MemoryStore())
    calls, clock = ScriptedCalls(), ManualClock()
    zone = ZoneStore(
        store,
        agent_id=1,
        agents=lambda: {2: "two:1"},
        owner_of=owner_of,
        own=OwnBlocks(store, bytes_max=100),
        calls=calls,
        block_bytes=10,
        clock=clock,
    )
    return zone, calls, clock


async def test_a_silent_peer_is_avoided_for_longer_each_time_and_an_answer_ends_that() -> None:
    zone, calls, clock = _rig()
    await zone.put("k", [b"0123456789"])

    async def asked() -> bool:
        before = len(calls.calls)
        assert len(await zone.get_range("k", 0, 10)) == 10
        return len(calls.calls) > before

    calls.error = PeerAwayError("ask peer", "two:1", "silent")
    for expected_s in (1.0, 2.0, 4.0, 8.0, 16.0, AVOID.most_s, AVOID.most_s):
        assert await asked()
        await clock.wait(expected_s - 0.01)
        assert not await asked()
        await clock.wait(0.02)
    calls.error = None
    assert await asked()
    calls.error = PeerAwayError("ask peer", "two:1", "silent")
    assert await asked()
    await clock.wait(1.01)
    assert await asked(), "a second again, after an answer"


async def test_a_peer_that_answers_with_an_error_is_asked_again() -> None:
    zone, calls, _ = _rig()
    await zone.put("k", [b"0123456789"])
    calls.error = RetryableError("ask peer", "two:1", "HTTP 503")
    for _ in range(3):
        assert bytes(await zone.get_range("k", 0, 10)) == b"0123456789"
    assert len(calls.calls) == 3
    assert zone.counts.refused == 3


async def test_a_block_of_another_length_is_not_taken() -> None:
    zone, calls, _ = _rig()
    await zone.put("k", [b"0123456789"])
    real = calls.call

    async def short(*args, on_frame, **options):  # type: ignore[no-untyped-def]
        await real(
            *args,
            on_frame=lambda frame: on_frame(Frame(frame.kind, frame.index, frame.payload[:-1])),
            **options,
        )

    calls.call = short  # type: ignore[method-assign]
    assert bytes(await zone.get_range("k", 0, 10)) == b"0123456789"


async def test_a_block_of_another_version_than_the_store_gave_is_not_taken() -> None:
    zone, calls, _ = _rig()
    await zone.put("k", [b"0123456789"])
    # Nothing is known of the object yet: keys mean the same bytes for ever.
    assert await zone.get_versioned("k", 0, 10) == (b"p" * 10, "1")
    # Not one block, such as the end of an object: it is read from the store.
    right = await zone.get_versioned("k", 3, 7)
    assert bytes(right.data) == b"3456"
    assert right.version not in {None, "1"}
    for version in (b"1", b"", None):
        calls.version = version
        found = await zone.get_versioned("k", 0, 10)
        assert (bytes(found.data), found.version) == (b"0123456789", right.version)
    assert zone.counts.refused == 3
    calls.version = str(right.version).encode()
    assert await zone.get_versioned("k", 0, 10) == (b"p" * 10, right.version)


async def test_a_block_without_a_word_of_its_version_is_not_taken() -> None:
    zone, calls, _ = _rig()
    await zone.put("k", [b"0123456789"])
    calls.version = b""
    assert await zone.get_versioned("k", 0, 10) == (b"p" * 10, None), "its store says none"
    calls.version = None
    assert bytes((await zone.get_versioned("k", 0, 10)).data) == b"0123456789"
    assert zone.counts.refused == 1


async def test_what_was_not_right_here_is_not_given_to_peers_either() -> None:
    zone, _, _ = _rig()
    await zone.put("k", [b"0123456789"])
    wanted = BlockRange("k", 0, 10)
    kept = await zone._own.read(wanted)
    assert (await zone._own.read(wanted)).data is kept.data
    assert bytes((await zone.get_directly("k", 0, 10)).data) == b"0123456789"
    assert (await zone._own.read(wanted)).data is not kept.data


async def test_a_peer_of_a_release_that_says_no_versions_is_avoided() -> None:
    """Its blocks belong to the next in the ranking meanwhile."""
    zone, calls, clock = _rig()
    await zone.put("k", [b"0123456789"])
    calls.error = UnknownCallError("ask peer", "its answer", "HTTP 404")
    for _ in range(3):
        assert bytes(await zone.get_range("k", 0, 10)) == b"0123456789"
    assert len(calls.calls) == 1
    assert (zone.counts.refused, zone.counts.away, zone.counts.own) == (1, 0, 2)
    calls.error = None
    await clock.wait(1.01)
    await zone.get_range("k", 0, 10)
    assert len(calls.calls) == 2
