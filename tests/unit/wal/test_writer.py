"""Frames, files and their recycling, full disks, failed syncs."""

import errno
import threading

import pytest

from penstock.model.errors import (
    FatalStorageError,
    InvalidRequestError,
    RetryableError,
    StorageFullError,
)
from penstock.wal import WalPlace, WalReader, WalWriter
from support.simulated.device import SimulatedDevice
from support.wal_frames import append

FILE_BYTES = 16 * 1024


def _open(
    device: SimulatedDevice,
    *,
    named: dict[int, int] | None = None,
    bytes_max: int = 4 * FILE_BYTES,
    last_generation: int = 0,
    fsync: bool = True,
) -> WalWriter:
    return WalWriter.open(
        device,
        file_bytes=FILE_BYTES,
        bytes_max=bytes_max,
        named=named or {},
        last_generation=last_generation,
        fsync=fsync,
    )


def _append(writer: WalWriter, payload: bytes) -> WalPlace:
    return append(writer, [payload], length=len(payload))


def test_a_frame_is_read_back_from_its_place() -> None:
    device = SimulatedDevice()
    writer, reader = _open(device), WalReader(device)
    first = append(writer, [b"one", memoryview(b"-two-")[1:4]], length=6)
    second = append(writer, [bytearray(b"three")], length=5)
    assert reader.read(first.generation, first.position, 6) == b"onetwo"
    assert reader.read(first.generation, first.position + 3, 3) == b"two"
    assert reader.read(second.generation, second.position, 5) == b"three"


def test_frames_never_share_a_sector() -> None:
    writer = _open(SimulatedDevice())
    places = [_append(writer, bytes(length)) for length in (1, 400, 456, 457, 1000)]
    starts = [place.position - 56 for place in places]
    assert starts == [4096, 4608, 5120, 5632, 6656]
    assert all(start % 512 == 0 for start in starts)


def test_writes_end_at_page_boundaries() -> None:
    """Otherwise the kernel reads the rest of the page from the disk before it writes."""
    device = SimulatedDevice()
    writer = _open(device)
    device.operations.clear()
    for length in (1, 5000, 3, 3000):
        _append(writer, bytes(length))
    frames = [op for op in device.operations if op.kind == "write"]
    for operation in frames:
        assert isinstance(operation.detail, tuple)
        assert sum(operation.detail) % 4096 == 0


def test_a_header_is_durable_before_the_first_frame_and_each_frame_when_it_is_written() -> None:
    device = SimulatedDevice()
    writer = _open(device)
    writer.prepare_spare()
    device.operations.clear()
    append(writer, [b"x"], length=1)
    append(writer, [b"y"], length=1)
    kinds = [(operation.kind, operation.detail) for operation in device.operations]
    assert kinds == [
        ("write", (0, 4096)),
        ("sync", ""),
        ("write", (4096, 4096)),
        ("sync", ""),
        ("write", (4608, 3584)),
        ("sync", ""),
    ]


def test_a_new_file_is_whole_and_durable_before_it_has_its_name() -> None:
    device = SimulatedDevice()
    writer = _open(device)
    writer.prepare_spare()
    kinds = [operation.kind for operation in device.operations if operation.kind != "write"]
    assert kinds[:2] == ["create", "make_folder"]
    assert kinds[-3:] == ["sync", "rename", "sync_directory"]
    assert set(kinds[2:-3]) <= {"sync"}
    assert device.list("wal") == ["00000001.wal"]
    assert not writer.needs_spare()


def test_without_fsync_nothing_is_synced_but_folders() -> None:
    device = SimulatedDevice()
    writer = _open(device, fsync=False)
    _append(writer, b"x")
    assert "sync" not in {operation.kind for operation in device.operations}


def test_opening_writes_nothing() -> None:
    device = SimulatedDevice()
    assert _open(device).active_generation == 1
    assert device.operations == []


def test_the_next_file_is_a_new_generation() -> None:
    device = SimulatedDevice()
    writer, reader = _open(device), WalReader(device)
    size = writer.frame_bytes_max
    assert size == FILE_BYTES - 4096 - 56
    places = [_append(writer, bytes([n]) * size) for n in range(3)]
    assert [place.generation for place in places] == [1, 2, 3]
    assert writer.active_generation == 3
    for n, place in enumerate(places):
        assert reader.read(place.generation, place.position, size) == bytes([n]) * size


def test_generations_are_greater_than_any_that_the_state_has_seen() -> None:
    assert _append(_open(SimulatedDevice(), last_generation=41), b"x").generation == 42


def test_a_full_wal_refuses_and_goes_on_once_a_file_is_released() -> None:
    device = SimulatedDevice()
    writer = _open(device, bytes_max=2 * FILE_BYTES)
    size = writer.frame_bytes_max
    assert writer.free_bytes >= 2 * size
    _append(writer, bytes(size))
    _append(writer, bytes(size))
    assert writer.free_bytes < 512
    for _ in range(2):
        with pytest.raises(StorageFullError):
            append(writer, [bytes(100)], length=100)
    # The full file is over, so that whoever frees files may look at it.
    assert writer.active_generation == 3
    writer.release(1)
    place = _append(writer, b"again")
    assert place.generation == 3
    assert len(device.list("wal")) == 2


def test_the_active_file_is_never_recycled() -> None:
    """A frame that is written and not yet journaled is named by nothing, and must be safe."""
    device = SimulatedDevice()
    writer = _open(device, bytes_max=FILE_BYTES)
    size = writer.frame_bytes_max
    _append(writer, b"a")
    writer.release(writer.active_generation)
    assert _append(writer, b"b").generation == 1
    with pytest.raises(StorageFullError):
        append(writer, [bytes(size)], length=size)
    assert writer.active_generation == 2
    writer.release(1)
    assert _append(writer, bytes(size)).generation == 2
    assert device.list("wal") == ["00000001.wal"]


def test_releasing_what_is_unknown_or_released_already_does_nothing() -> None:
    writer = _open(SimulatedDevice(), bytes_max=2 * FILE_BYTES)
    size = writer.frame_bytes_max
    _append(writer, bytes(size))
    _append(writer, bytes(size))
    for generation in (0, 1, 1, 99):
        writer.release(generation)
    assert _append(writer, bytes(size)).generation == 3
    with pytest.raises(StorageFullError):
        append(writer, [b"x"], length=1)


def test_a_released_file_is_rewritten_in_place() -> None:
    device = SimulatedDevice()
    writer = _open(device)
    size = writer.frame_bytes_max
    _append(writer, bytes(size))
    _append(writer, bytes(size))
    writer.release(1)
    device.operations.clear()
    _append(writer, bytes(size))
    assert {operation.kind for operation in device.operations} == {"write", "sync"}
    assert device.used_bytes() == 2 * FILE_BYTES


def test_a_full_disk_while_making_a_file_leaves_nothing_behind() -> None:
    device = SimulatedDevice(capacity_bytes=FILE_BYTES + 1000)
    writer = _open(device)
    size = writer.frame_bytes_max
    first = _append(writer, bytes(size))
    with pytest.raises(StorageFullError):
        append(writer, [b"x"], length=1)
    assert device.used_bytes() == FILE_BYTES
    device.capacity_bytes = None
    with pytest.raises(StorageFullError, match="just now"):
        append(writer, [b"x"], length=1)
    assert _append(writer, b"there is room").generation > first.generation


def test_a_full_disk_while_writing_a_frame_names_nothing_and_stays_usable() -> None:
    device = SimulatedDevice()
    writer, reader = _open(device), WalReader(device)
    first = _append(writer, b"before")
    device.fail("write", error_number=errno.ENOSPC)
    with pytest.raises(StorageFullError):
        append(writer, [b"lost" * 300], length=1200)
    second = _append(writer, b"after")
    assert second.position == first.position + 512
    assert reader.read(second.generation, second.position, 5) == b"after"
    _open(device, named={1: second.position + 5})


def test_a_full_disk_while_writing_a_header_spends_the_generation() -> None:
    device = SimulatedDevice()
    writer = _open(device)
    writer.prepare_spare()
    device.fail("write", error_number=errno.EDQUOT)
    with pytest.raises(StorageFullError):
        append(writer, [b"x"], length=1)
    assert _append(writer, b"x").generation == 2


@pytest.mark.parametrize("kind", ["sync", "write"])
def test_after_a_failure_the_writer_refuses_everything(kind: str) -> None:
    device = SimulatedDevice()
    writer = _open(device)
    _append(writer, b"x")
    device.fail(kind)
    with pytest.raises(FatalStorageError):
        _append(writer, b"y")
    for _ in range(2):
        with pytest.raises(FatalStorageError):
            append(writer, [b"z"], length=1)
        with pytest.raises(FatalStorageError):
            writer.write([b"z"], length=1)


def test_a_failed_sync_of_a_header_is_fatal() -> None:
    device = SimulatedDevice()
    writer = _open(device)
    writer.prepare_spare()
    device.fail("sync")
    with pytest.raises(FatalStorageError):
        append(writer, [b"x"], length=1)
    with pytest.raises(FatalStorageError):
        append(writer, [b"x"], length=1)


def test_a_place_is_where_the_frame_then_lies() -> None:
    """The entry names it before it is written; asked again with more, it may be in another file."""
    device = SimulatedDevice()
    writer, reader = _open(device), WalReader(device)
    size = writer.frame_bytes_max
    place = writer.place(100, position=1)
    assert place == writer.place(200, position=1)
    assert writer.room == size
    assert writer.write([b"batch"], length=5, entry=b"entry", position=1, time_ms=9) == place
    assert reader.read(place.generation, place.position, 10) == b"batchentry"
    following = writer.place(size, position=2)
    assert following.generation == place.generation + 1
    assert writer.write([], length=0, entry=bytes(size), position=2, time_ms=9) == following


@pytest.mark.parametrize("length", [0, FILE_BYTES - 4096 - 56 + 1])
def test_frames_that_can_not_be_are_refused(length: int) -> None:
    writer = _open(SimulatedDevice())
    with pytest.raises(InvalidRequestError):
        append(writer, [bytes(length)], length=length)


@pytest.mark.parametrize(
    ("file_bytes", "bytes_max"), [(5000, 1 << 20), (4096, 1 << 20), (8192, 8191)]
)
def test_sizes_that_can_not_be_are_refused(file_bytes: int, bytes_max: int) -> None:
    with pytest.raises(InvalidRequestError):
        WalWriter.open(
            SimulatedDevice(),
            file_bytes=file_bytes,
            bytes_max=bytes_max,
            named={},
            last_generation=0,
        )


def test_a_closed_writer_refuses() -> None:
    writer = _open(SimulatedDevice())
    _append(writer, b"x")
    writer.close()
    writer.close()
    with pytest.raises(FatalStorageError, match="closed"):
        append(writer, [b"x"], length=1)


def test_a_reader_of_a_recycled_file_is_told_so() -> None:
    device = SimulatedDevice()
    writer, reader = _open(device), WalReader(device)
    size = writer.frame_bytes_max
    first = _append(writer, b"a" * size)
    second = _append(writer, b"b" * size)
    assert reader.read(1, first.position, 3) == b"aaa"
    writer.release(1)
    assert reader.read(1, first.position, 3) == b"aaa"
    third = _append(writer, b"c" * size)
    for _ in range(2):
        with pytest.raises(RetryableError, match="recycled"):
            reader.read(1, first.position, 3)
    assert reader.read(2, second.position, 3) == b"bbb"
    assert reader.read(third.generation, third.position, 3) == b"ccc"
    with pytest.raises(RetryableError, match="recycled"):
        reader.read(77, 4136, 3)
    reader.close()
    assert reader.read(2, second.position, 3) == b"bbb"


def test_spares_are_made_in_one_thread_while_another_commits() -> None:
    device = SimulatedDevice()
    writer = _open(device, bytes_max=8 * FILE_BYTES)
    size = writer.frame_bytes_max
    stop = threading.Event()

    def make_spares() -> None:
        while not stop.is_set():
            if writer.needs_spare():
                writer.prepare_spare()

    thread = threading.Thread(target=make_spares)
    thread.start()
    try:
        for n in range(200):
            place = _append(writer, bytes([n]) * size)
            writer.release(place.generation - 2)
    finally:
        stop.set()
        thread.join(20)
    names = device.list("wal")
    assert len(names) <= 5
    assert all(device.stat(f"wal/{name}").size_bytes == FILE_BYTES for name in names)
