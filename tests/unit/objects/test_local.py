"""A local put is durable when it returns, and leaves nothing behind when it fails."""

import asyncio
import errno
import gc
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.objects import LocalStore
from penstock.ports.objects import ObjectStore
from penstock.system import PosixDevice
from support.simulated.device import SimulatedDevice
from support.simulated.randomness import SeededRandom


async def _keys(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


async def test_the_order_of_a_puts_effects() -> None:
    device = SimulatedDevice()
    await LocalStore(device).put("segments/00/k", [b"abc"])
    kinds = [(op.kind, op.name) for op in device.operations if op.kind != "make_folder"]
    assert kinds == [
        ("create", ".staging/0"),
        ("write", ".staging/0"),
        ("sync", ".staging/0"),
        ("rename", ".staging/0"),
        ("sync_directory", "segments/00"),
    ]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_order_of_a_puts_system_calls(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from penstock.objects import LocalStore\n"
        "from penstock.system import PosixDevice\n"
        "store = LocalStore(PosixDevice(pathlib.Path(sys.argv[1])))\n"
        "asyncio.run(store.put('segments/00/k', [b'x' * 5000]))\n"
    )
    trace = tmp_path / "trace"
    data = tmp_path / "data"
    calls = "trace=openat,pwritev,pwrite64,pwritev2,fdatasync,fsync,rename,renameat,renameat2"
    done = subprocess.run(
        ["strace", "-f", "-y", "-e", calls, "-o", str(trace), sys.executable, "-c", program, data],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip("this system lets no process trace another")
    assert done.returncode == 0, done.stderr
    names = re.escape(str(data))
    seen = re.findall(
        rf"(pwritev2?|pwrite64|fdatasync|fsync|rename\w*)\((?:\d+<{names}([^>]*)>|.*{names}.*)",
        trace.read_text(),
    )
    after_staging = seen[next(i for i, (call, _) in enumerate(seen) if call.startswith("pwrite")) :]
    calls_made = [
        (re.sub(r"pwrite.*", "write", re.sub("renameat2?", "rename", call)), name)
        for call, name in after_staging
    ]
    assert calls_made == [
        ("write", "/.staging/0"),
        ("fdatasync", "/.staging/0"),
        ("fsync", ""),  # the new folder segments/ in the root
        ("fsync", "/segments"),  # the new folder 00/ in segments/
        ("rename", ""),
        ("fsync", "/segments/00"),
    ]


@pytest.mark.parametrize("seed", range(15))
async def test_what_was_put_survives_a_power_loss(seed: int) -> None:
    random = SeededRandom(seed)
    device = SimulatedDevice()
    store = LocalStore(device)
    await store.put("a/old", [b"first" * 300])
    await store.put("a/old", [b"second" * 300])
    await store.put("a/new", [b"x" * 3000], if_absent=True)
    await store.put("a/gone", [b"x"])
    await store.delete(["a/gone"])
    after = LocalStore(device.power_loss(random))
    assert await _keys(after) == ["a/new", "a/old"]
    assert await after.get_range("a/old", 0, 1800) == b"second" * 300
    assert await after.get_range("a/new", 0, 3000) == b"x" * 3000
    assert await after.size("a/old") == 1800


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("kind", ["sync", "sync_directory", "rename"])
async def test_a_put_that_did_not_return_shows_all_or_nothing(seed: int, kind: str) -> None:
    device = SimulatedDevice()
    store = LocalStore(device)
    await store.put("a/other", [b"x"])
    device.fail(kind)
    with pytest.raises(RetryableError):
        await store.put("a/k", [b"y" * 3000])
    found = LocalStore(device.power_loss(SeededRandom(seed)))
    if "a/k" in await _keys(found):
        assert await found.get_range("a/k", 0, 3000) == b"y" * 3000
        assert await found.size("a/k") == 3000


_FAULTS: list[tuple[str, int, type[PenstockError]]] = [
    ("create", errno.ENOSPC, StorageFullError),
    ("write", errno.ENOSPC, StorageFullError),
    ("write", errno.EDQUOT, StorageFullError),
    ("write", errno.EIO, RetryableError),
    ("sync", errno.EIO, RetryableError),
    ("sync", errno.ENOSPC, StorageFullError),
    ("make_folder", errno.ENOSPC, StorageFullError),
    ("rename", errno.ENOSPC, StorageFullError),
    ("rename", errno.EACCES, RetryableError),
]


@pytest.mark.parametrize(("kind", "number", "expected"), _FAULTS)
async def test_a_failed_put_leaves_nothing_and_works_the_next_time(
    kind: str, number: int, expected: type[PenstockError]
) -> None:
    device = SimulatedDevice()
    store = LocalStore(device)
    await store.put("other/k", [b"x"])
    device.fail(kind, error_number=number)
    with pytest.raises(expected) as caught:
        await store.put("a/k", [b"abc"])
    assert type(caught.value) is expected
    assert device.list(".staging") == []
    assert await _keys(store) == ["other/k"]
    await store.put("a/k", [b"abc"])
    assert await store.get_range("a/k", 0, 3) == b"abc"


async def test_what_a_crash_left_staged_is_removed_by_the_first_put(tmp_path: Path) -> None:
    (tmp_path / ".staging").mkdir()
    (tmp_path / ".staging" / "0").write_bytes(b"half")
    store = LocalStore(PosixDevice(tmp_path))
    assert await _keys(store) == []
    assert (tmp_path / ".staging" / "0").exists()
    await store.put("k", [b"x"])
    assert list((tmp_path / ".staging").iterdir()) == []
    assert await _keys(store) == ["k"]


@pytest.mark.slow
async def test_reads_keep_few_files_open_and_none_of_deleted_objects(tmp_path: Path) -> None:
    store = LocalStore(PosixDevice(tmp_path))
    for number in range(200):
        await store.put(f"k/{number}", [b"%03d" % number])
    # What earlier tests left in cycles must not be closed meanwhile.
    gc.collect()
    before = _open_descriptors()
    for _ in range(2):
        for number in range(200):
            assert await store.get_range(f"k/{number}", 0, 3) == b"%03d" % number
    assert _open_descriptors() - before == 128
    await store.delete([f"k/{number}" for number in range(200)])
    assert _open_descriptors() - before == 0
    with pytest.raises(NotFoundError):
        await store.get_range("k/199", 0, 1)


async def test_reads_and_evictions_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor is not closed, nor its number given to another file, while it is read."""
    monkeypatch.setattr("penstock.objects.local._OPEN_FILES_MAX", 2)
    with ThreadPoolExecutor(8) as pool:
        store = LocalStore(PosixDevice(tmp_path), executor=pool)
        for number in range(10):
            await store.put(f"k/{number}", [bytes([number]) * 1000])
        wanted = [number % 10 for number in range(500)]
        found = await asyncio.gather(*(store.get_range(f"k/{n}", 0, 1000) for n in wanted))
        assert [bytes(data) for data in found] == [bytes([n]) * 1000 for n in wanted]


async def test_a_shortened_object_is_corrupt(tmp_path: Path) -> None:
    store = LocalStore(PosixDevice(tmp_path))
    await store.put("k", [b"0123456789"])
    await store.get_range("k", 0, 10)
    (tmp_path / "k").write_bytes(b"0123")
    with pytest.raises(CorruptDataError, match="k at byte 2"):
        await store.get_range("k", 2, 8)


async def test_an_object_that_another_process_replaced_is_read_from_its_new_file(
    tmp_path: Path,
) -> None:
    """An operator puts a copy in the place of a damaged one, by a rename as rsync and mv do it: the
    open descriptor would give the damaged bytes until the server is started again."""
    store = LocalStore(PosixDevice(tmp_path))
    await store.put("k", [b"damaged!"])
    before = await store.get_versioned("k", 0, 8)
    assert await store.warm("k", 0, 8)
    sent = store.open_file("k")
    (tmp_path / "copy").write_bytes(b"restored")
    (tmp_path / "copy").rename(tmp_path / "k")
    after = await store.get_versioned("k", 0, 8)
    assert (bytes(before.data), bytes(after.data)) == (b"damaged!", b"restored")
    assert before.version != after.version
    assert await store.warm("k", 0, 8)
    file = store.open_file("k")
    assert file is not None
    assert file is not sent
    assert file.read_at(0, 8) == b"restored"


async def test_an_object_that_another_process_deleted_is_not_read_nor_held(tmp_path: Path) -> None:
    store = LocalStore(PosixDevice(tmp_path))
    await store.put("k", [b"0123"])
    gc.collect()
    before = _open_descriptors()
    await store.get_range("k", 0, 4)
    (tmp_path / "k").unlink()
    with pytest.raises(NotFoundError):
        await store.get_range("k", 0, 4)
    assert _open_descriptors() == before


def test_a_simulated_device_knows_its_open_files() -> None:
    device = SimulatedDevice()
    file = device.open("k", create=True)
    assert device.has("k", file)
    device.open("other", create=True)
    device.rename("other", "k")
    assert not device.has("k", file)
    device.remove("k")
    assert not device.has("k", file)


async def test_a_listing_of_many_pages_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.objects.local._LIST_PAGE", 7)
    store = LocalStore(SimulatedDevice())
    keys = sorted(f"{n % 5}/{n % 3}/{n}" for n in range(60))
    for key in keys:
        await store.put(key, [])
    assert await _keys(store) == keys


def _open_descriptors() -> int:
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    return len(list(folder.iterdir()))
