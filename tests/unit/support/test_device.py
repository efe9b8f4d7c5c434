"""The simulated device keeps the contract, and forgets exactly what was not synced."""

import errno
from pathlib import Path

import pytest

from penstock.ports.device import Device
from penstock.testing.conformance import DeviceSuite
from support.simulated.device import SimulatedDevice
from support.simulated.randomness import SeededRandom


class TestSimulatedDevice(DeviceSuite):
    def make_device(self, folder: Path) -> Device:
        return SimulatedDevice()


def _written(data: bytes, *, sync: bool) -> SimulatedDevice:
    device = SimulatedDevice()
    file = device.open("a/f", create=True)
    device.sync_directory("a")
    file.write_at(0, [data])
    if sync:
        file.sync()
    return device


def _content(device: SimulatedDevice, name: str = "a/f") -> bytes:
    return device.open(name).read_at(0, 1 << 20)


@pytest.mark.parametrize("seed", range(20))
def test_synced_bytes_survive(seed: int) -> None:
    assert _content(_written(b"x" * 3000, sync=True).power_loss(SeededRandom(seed))) == b"x" * 3000


def test_unsynced_sectors_survive_or_not_one_by_one() -> None:
    found = {
        _content(_written(b"x" * 1024, sync=False).power_loss(SeededRandom(seed)))
        for seed in range(40)
    }
    assert found == {b"", b"x" * 512, bytes(512) + b"x" * 512, b"x" * 1024}


def test_unsynced_names_survive_or_not() -> None:
    def listing(seed: int) -> list[str]:
        device = SimulatedDevice()
        device.open("a/old", create=True).close()
        device.sync_directory("a")
        device.rename("a/old", "a/new")
        return device.power_loss(SeededRandom(seed)).list("a")

    found = {tuple(listing(seed)) for seed in range(40)}
    assert ("old",) in found
    assert ("new",) in found


def test_a_synced_folder_keeps_names_and_removals() -> None:
    for seed in range(20):
        device = _written(b"x", sync=True)
        device.rename("a/f", "a/g")
        device.sync_directory("a")
        assert device.power_loss(SeededRandom(seed)).list("a") == ["g"]


def test_a_failed_sync_loses_the_bytes_even_if_the_next_one_succeeds() -> None:
    device = SimulatedDevice()
    file = device.open("f", create=True)
    device.sync_directory("")
    file.write_at(0, [b"x" * 512])
    device.fail("sync")
    with pytest.raises(OSError) as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()
    assert _content(device.power_loss(SeededRandom(0)), "f") == b""


def test_a_full_device_says_so_after_half_the_bytes() -> None:
    device = SimulatedDevice(capacity_bytes=1000)
    file = device.open("f", create=True)
    file.write_at(0, [b"x" * 900])
    with pytest.raises(OSError) as caught:
        file.write_at(900, [b"y" * 200])
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 1000
    file.write_at(0, [b"z" * 900])
    assert file.read_at(0, 900) == b"z" * 900


def test_faults_come_at_the_nth_call_and_once() -> None:
    device = SimulatedDevice()
    file = device.open("f", create=True)
    device.fail("write", after=1, error_number=errno.ENOSPC)
    file.write_at(0, [b"1"])
    with pytest.raises(OSError):
        file.write_at(1, [b"2"])
    file.write_at(1, [b"3"])
    assert file.read_at(0, 9) == b"13"


def test_operations_are_recorded_in_order() -> None:
    device = _written(b"abc", sync=True)
    assert [(op.kind, op.name, op.detail) for op in device.operations] == [
        ("create", "a/f", ""),
        ("make_folder", "a", ""),
        ("sync_directory", "a", ""),
        ("write", "a/f", (0, 3)),
        ("sync", "a/f", ""),
    ]


def test_a_seed_decides_everything() -> None:
    one = _written(bytes(range(256)) * 64, sync=False)
    contents = [_content(one.power_loss(SeededRandom(7))) for _ in range(2)]
    assert contents[0] == contents[1]
