"""Who is asked, and for how long a peer that was silent is passed over."""

import asyncio
from collections.abc import Callable

from obstore.store import MemoryStore

from penstock.model.errors import RetryableError
from penstock.objects.bucket import BucketStore
from penstock.peers import OwnBlocks, ZoneStore
from penstock.peers.client import PeerAwayError
from penstock.peers.receive import Frame
from penstock.peers.zone import AVOID_S_MAX
from penstock.placement.rendezvous import owner_of
from penstock.testing import ManualClock


class ScriptedCalls:
    """Raises what it is told to; counts calls by address."""

    def __init__(self) -> None:
        self.error: RetryableError | None = None
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
            on_frame(Frame(1, index, memoryview(bytearray(b"p" * length))))


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


def test_a_silent_peer_is_avoided_for_longer_each_time_and_an_answer_ends_that() -> None:
    async def main() -> None:
        zone, calls, clock = _rig()
        await zone.put("k", [b"0123456789"])

        async def asked() -> bool:
            before = len(calls.calls)
            assert len(await zone.get_range("k", 0, 10)) == 10
            return len(calls.calls) > before

        calls.error = PeerAwayError("ask peer", "two:1", "silent")
        for expected_s in (1.0, 2.0, 4.0, 8.0, 16.0, AVOID_S_MAX, AVOID_S_MAX):
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

    asyncio.run(main())


def test_a_peer_that_answers_with_an_error_is_asked_again() -> None:
    async def main() -> None:
        zone, calls, _ = _rig()
        await zone.put("k", [b"0123456789"])
        calls.error = RetryableError("ask peer", "two:1", "HTTP 503")
        for _ in range(3):
            assert bytes(await zone.get_range("k", 0, 10)) == b"0123456789"
        assert len(calls.calls) == 3
        assert zone.counts.refused == 3

    asyncio.run(main())


def test_a_block_of_another_length_is_not_taken() -> None:
    async def main() -> None:
        zone, calls, _ = _rig()
        await zone.put("k", [b"0123456789"])
        real = calls.call

        async def short(*args, on_frame, **options):  # type: ignore[no-untyped-def]
            await real(
                *args,
                on_frame=lambda frame: on_frame(Frame(1, frame.index, frame.payload[:-1])),
                **options,
            )

        calls.call = short  # type: ignore[method-assign]
        assert bytes(await zone.get_range("k", 0, 10)) == b"0123456789"

    asyncio.run(main())
