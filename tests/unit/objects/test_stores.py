"""Every store keeps the contract, decorated or not."""

from pathlib import Path

from obstore.store import LocalStore as ObstoreLocalStore
from obstore.store import MemoryStore

from penstock.objects import LocalStore, Metered, Retrying
from penstock.objects.bucket import BucketStore
from penstock.objects.prefixed import Prefixed
from penstock.ports.objects import ObjectStore
from penstock.system import PosixDevice
from penstock.testing.conformance import ObjectStoreSuite
from support.simulated.clock import ManualClock
from support.simulated.device import SimulatedDevice
from support.simulated.faulty import Faulty
from support.simulated.randomness import SeededRandom


class _NoMeter:
    def measured(
        self, *, operation: str, outcome: str, seconds: float, bytes_count: int
    ) -> None: ...


class TestLocal(ObjectStoreSuite):
    def make_store(self, folder: Path) -> ObjectStore:
        return LocalStore(PosixDevice(folder))


class TestLocalOnASimulatedDevice(ObjectStoreSuite):
    has_versions = False

    def make_store(self, folder: Path) -> ObjectStore:
        return LocalStore(SimulatedDevice())


class TestMemory(ObjectStoreSuite):
    def make_store(self, folder: Path) -> ObjectStore:
        return BucketStore(MemoryStore())


class TestPrefixed(ObjectStoreSuite):
    has_versions = False

    def make_store(self, folder: Path) -> ObjectStore:
        return Prefixed(LocalStore(PosixDevice(folder)), "a/prefix/")


class TestDecorated(ObjectStoreSuite):
    def make_store(self, folder: Path) -> ObjectStore:
        clock = ManualClock()
        metered = Metered(LocalStore(PosixDevice(folder)), clock=clock, meter=_NoMeter())
        return Retrying(metered, clock=clock, random=SeededRandom(0), wait=clock.wait)


class TestRetryingOverFaults(ObjectStoreSuite):
    """A quarter of all calls fails, another's replies are lost, and nobody notices."""

    has_versions = False

    def make_store(self, folder: Path) -> ObjectStore:
        clock = ManualClock()
        faulty = Faulty(
            LocalStore(SimulatedDevice()),
            random=SeededRandom(3),
            fail_percent=25,
            lost_percent=25,
            delay_percent=25,
            delay_s_max=0.1,
            wait=clock.wait,
        )
        return Retrying(
            faulty, clock=clock, random=SeededRandom(4), deadline_s=1e6, wait=clock.wait
        )


async def test_what_was_not_chosen_is_still_true(tmp_path: Path) -> None:
    """obstore's own local store leaves nothing else behind than we do, should one point it at
    the same directory: keys are plain files."""

    await LocalStore(PosixDevice(tmp_path)).put("a/b", [b"x"])
    assert bytes(await BucketStore(ObstoreLocalStore(tmp_path)).get_range("a/b", 0, 1)) == b"x"
