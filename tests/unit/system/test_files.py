"""The local file system keeps the device's contract, and syncs what it says it syncs."""

import os
from pathlib import Path

import pytest

from penstock.ports.device import Device
from penstock.system.files import PosixDevice, PosixFile, make_folder
from penstock.testing.conformance import DeviceSuite


class TestPosixDevice(DeviceSuite):
    def make_device(self, folder: Path) -> Device:
        return PosixDevice(folder)


def test_a_partial_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write less than it was given; every byte is written all the same."""
    whole_pwritev, whole_pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(
        os, "pwritev", lambda fd, buffers, at: whole_pwritev(fd, [bytes(buffers[0])[:3]], at)
    )
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole_pwrite(fd, bytes(data)[:2], at))
    file = PosixDevice(tmp_path).open("f", create=True)
    file.write_at(5, [b"first part", b"", b"second", memoryview(b"third")])
    assert file.read_at(5, 100) == b"first partsecondthird"
    file.close()


def test_a_file_closes_when_its_last_reference_goes(tmp_path: Path) -> None:
    file = PosixDevice(tmp_path).open("f", create=True)
    descriptor = file._descriptor
    del file
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_new_folders_are_durable_from_the_top_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr("penstock.system.files.sync_folder", synced.append)
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_folder(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3


def test_a_file_in_place_of_a_folder_lists_as_empty(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    device.open("f", create=True).close()
    assert device.list("f") == []
    assert device.folders("f") == []


def test_status_is_of_files_only(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    file = device.open("a/f", create=True)
    file.write_at(0, [b"12345"])
    assert isinstance(file, PosixFile)
    file.close()
    assert device.stat("a/f").size_bytes == 5
    assert device.stat("a/f").modified_ms > 1_500_000_000_000
    for name in ("a", "b", "a/f/g"):
        with pytest.raises(OSError):
            device.stat(name)
