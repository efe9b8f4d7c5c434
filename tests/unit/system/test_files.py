"""The local file system keeps the device's contract, and syncs what it says it syncs."""

import errno
import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ports.device import Device
from penstock.system.files import PosixDevice, PosixFile, make_folder
from penstock.testing.conformance import DeviceSuite
from support.examples import examples


class TestPosixDevice(DeviceSuite):
    def make_device(self, folder: Path) -> Device:
        return PosixDevice(folder)


BLOCKS = 8192


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


@given(
    st.lists(
        st.tuples(st.integers(0, 2047), st.integers(1, 1500), st.booleans()), min_size=1, max_size=8
    )
)
@settings(max_examples=examples(0.5))
def test_long_and_short_synced_writes_beside_one_another_read_as_written(
    writes: list[tuple[int, int, bool]],
) -> None:
    """Positions and lengths are in blocks of 512 bytes: written past the page cache, which all
    reads go through; by less than whole blocks, through it."""
    with tempfile.TemporaryDirectory() as folder:
        file = PosixDevice(Path(folder)).open("f", create=True)
        expected = bytearray(2048 * 512 + 1500 * 512)
        file.write_at(0, [bytes(expected)])
        for number, (block, blocks, is_torn) in enumerate(writes):
            # Not of one buffer, nor of whole blocks each.
            body = bytes([number + 1]) * (blocks * 512)
            cut = 333 if is_torn else len(body)
            file.write_synced(block * 512, [body[:cut], memoryview(body)[cut:]])
            file.write_synced(block * 512 + 1, [body[1:7]])
            expected[block * 512 : block * 512 + len(body)] = body
            assert file.read_at(0, len(expected)) == expected
        assert bytes(file.view_at(0, len(expected))) == expected
        file.close()


@pytest.mark.skipif(sys.platform != "linux", reason="written through the page cache here")
@pytest.mark.parametrize("length", [512, 4096, 1 << 20, 5 << 20])
def test_a_synced_write_of_whole_blocks_is_one_call_for_each_piece_of_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    file = PosixDevice(tmp_path).open("f", create=True)
    written: list[int] = []
    whole_pwrite = os.pwrite

    def count(descriptor: int, data: memoryview, position: int) -> int:
        written.append(len(data))
        return whole_pwrite(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", count)
    file.write_synced(0, [b"x", bytes(length - 2), b"y"])
    if not written:
        pytest.skip("this file system can't be written past its cache")
    assert written == [4 << 20, 1 << 20] if length == 5 << 20 else [length]
    assert file.read_at(0, length) == b"x" + bytes(length - 2) + b"y"
    file.close()


def test_a_disk_that_refuses_to_be_written_directly_is_written_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "blocks of 4096 bytes")

    file = PosixDevice(tmp_path).open("f", create=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        file.write_synced(512, [b"x" * BLOCKS])
    file.write_synced(0, [b"y" * BLOCKS])
    assert file.read_at(0, BLOCKS + 512) == b"y" * BLOCKS + b"x" * 512
    file.close()


def test_a_full_disk_says_so_when_written_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    file = PosixDevice(tmp_path).open("f", create=True)
    if sys.platform != "linux":
        pytest.skip("written through the page cache here")
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="no space"):
        file.write_synced(0, [b"x" * BLOCKS])
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


can_tell = pytest.mark.skipif(
    not hasattr(os, "RWF_NOWAIT"), reason="this system doesn't tell what its page cache holds"
)


@can_tell
def test_what_was_warmed_can_be_peeked_at(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789" * 1000)
    file = PosixDevice(tmp_path).open("a")
    assert file.can_send()
    assert file.warm(0, 10_000)
    buffer = memoryview(bytearray(20))
    assert file.peek(9_985, buffer) == 15
    assert bytes(buffer[:15]) == b"567890123456789"[:15]
    assert file.peek(10_000, buffer) == 0


@can_tell
def test_a_file_that_ends_before_what_is_wanted_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    file = PosixDevice(tmp_path).open("a")
    assert not file.warm(0, 10_001)
    assert not file.warm(20_000, 20_001)
    assert bytes(file.view_at(9_990, 500_000)) == b"x" * 10


def test_a_file_is_sent_as_far_as_the_socket_takes_it(tmp_path: Path) -> None:
    data = os.urandom(4 << 20)
    (tmp_path / "a").write_bytes(data)
    file = PosixDevice(tmp_path).open("a")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = 5
        with pytest.raises(BlockingIOError):
            while True:
                sent += file.send(ours.fileno(), sent, len(data) - sent)
        assert 5 < sent < len(data)
        got = b""
        while len(got) < sent - 5:
            got += theirs.recv(1 << 20)
        assert got == data[5:sent]
        assert file.send(ours.fileno(), len(data), 10) == 0
