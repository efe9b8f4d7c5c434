"""Each call is told once: what, how it ended, how long, how many bytes."""

import pytest

from penstock.model.errors import NotFoundError
from penstock.objects import LocalStore, Metered
from support.simulated.clock import ManualClock
from support.simulated.device import SimulatedDevice
from support.simulated.faulty import Faulty
from support.simulated.randomness import SeededRandom


class _Meter:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bool, int]] = []

    def measured(self, *, operation: str, outcome: str, seconds: float, bytes_count: int) -> None:
        self.seen.append((operation, outcome, seconds > 0, bytes_count))


async def test_calls_are_measured() -> None:
    clock, meter = ManualClock(), _Meter()
    slow = Faulty(
        LocalStore(SimulatedDevice()),
        random=SeededRandom(1),
        delay_percent=100,
        delay_s_max=1.0,
        wait=clock.wait,
    )
    store = Metered(slow, clock=clock, meter=meter)
    await store.put("k", [b"ab", memoryview(b"cde")])
    await store.get_range("k", 1, 4)
    await store.size("k")
    with pytest.raises(NotFoundError):
        await store.get_range("none", 0, 9)
    assert [info.key async for info in store.list("")] == ["k"]
    await store.delete(["k"])
    assert meter.seen == [
        ("put", "ok", True, 5),
        ("get", "ok", True, 3),
        ("size", "ok", True, 0),
        ("get", "NotFoundError", True, 0),
        ("list", "ok", False, 0),
        ("delete", "ok", True, 0),
    ]
