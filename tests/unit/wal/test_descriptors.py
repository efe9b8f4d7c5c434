"""A process that may open no more files is refused, loses nothing, and goes on once it may."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.model.errors import RetryableError, StorageFullError
from penstock.ports.device import Device
from penstock.system.files import PosixDevice
from penstock.wal import WalReader, WalWriter
from support.wal_frames import append

FILE_BYTES = 16 * 1024


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Files that are open stay so, and every further `open` fails with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_writer(device: Device) -> WalWriter:
    return WalWriter.open(
        device, file_bytes=FILE_BYTES, bytes_max=4 * FILE_BYTES, named={}, last_generation=0
    )


def append_or_refuse(writer: WalWriter, payload: bytes) -> bool:
    try:
        append(writer, [payload], length=len(payload))
    except StorageFullError:
        return False
    return True


def test_a_file_that_cannot_be_made_is_made_later(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    writer = open_writer(device)
    with no_descriptors():
        with pytest.raises(StorageFullError, match="too many open files"):
            append(writer, [b"x"], length=1)
        with pytest.raises(StorageFullError, match=r"just now.*too many open files"):
            append(writer, [b"x"], length=1)
    assert device.list("wal") == []
    assert any(append_or_refuse(writer, b"x") for _ in range(3))
    assert device.list("wal") == ["00000002.wal"]
    writer.close()


def test_a_file_that_is_there_and_cannot_be_opened_is_used_later(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    writer = open_writer(device)
    writer.prepare_spare()
    with no_descriptors():
        for _ in range(3):
            with pytest.raises(StorageFullError, match="too many open files"):
                append(writer, [b"x"], length=1)
    place = append(writer, [b"x"], length=1)
    assert place.generation == 1, "no header was written, so no generation is spent"
    assert device.list("wal") == ["00000001.wal"]
    writer.close()


def test_the_active_file_goes_on_without_descriptors(tmp_path: Path) -> None:
    writer = open_writer(PosixDevice(tmp_path))
    assert append_or_refuse(writer, b"x")
    with no_descriptors():
        assert append_or_refuse(writer, b"y")
    writer.close()


class SyncsNoFolder(PosixDevice):
    """To sync a folder takes a descriptor: here the last one goes just before."""

    refuses = True

    def sync_directory(self, folder: str) -> None:
        if not self.refuses:
            super().sync_directory(folder)
            return
        with no_descriptors():
            super().sync_directory(folder)


def test_a_file_whose_name_could_not_be_made_durable_does_not_stay(tmp_path: Path) -> None:
    device = SyncsNoFolder(tmp_path)
    writer = open_writer(device)
    with pytest.raises(StorageFullError, match="too many open files"):
        writer.prepare_spare()
    assert device.list("wal") == []
    device.refuses = False
    assert any(append_or_refuse(writer, b"x") for _ in range(3))
    writer.close()


def test_a_read_that_cannot_open_its_file_may_be_tried_again(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    writer, reader = open_writer(device), WalReader(device)
    place = append(writer, [b"here"], length=4)
    with no_descriptors(), pytest.raises(RetryableError, match="generation 1 at byte"):
        reader.read(place.generation, place.position, 4)
    assert reader.read(place.generation, place.position, 4) == b"here"
    with no_descriptors():
        assert reader.read(place.generation, place.position, 4) == b"here"
    reader.close()
    writer.close()
