"""What is named as regions of files is what reading gives, wherever the bytes are just then."""

import asyncio
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.fetch import regions
from penstock.log.fetch.reader import Missing
from penstock.log.fetch.regions import FileRegion, FileRuns, PartsRead
from penstock.model.ids import PartitionKey
from penstock.objects.local import LocalStore
from penstock.ports.objects import FileStore
from penstock.state.rows import StoredRun
from penstock.system.files import PosixDevice, PosixFile
from support.batches import make_batch
from support.checks import run_checks
from support.examples import examples
from support.log_rig import Rig, run_rig

pytestmark = pytest.mark.skipif(
    not hasattr(os, "RWF_NOWAIT"), reason="this system doesn't tell what its page cache holds"
)

BATCHES = st.lists(
    st.tuples(
        st.lists(st.sampled_from((0, 10, 400, 5_000, 70_000)), min_size=1, max_size=3),
        st.sampled_from(("", "", "drain")),
    ),
    min_size=1,
    max_size=12,
)


def data_of(read: Any) -> bytes:
    """The bytes of what was read; those of regions as their files have them."""
    parts = read.parts if isinstance(read, PartsRead) else read.views
    return b"".join(
        part.file.read_at(part.position, part.length) if isinstance(part, FileRegion) else part
        for part in parts
    )


async def loaded_parts(rig: Rig, key: PartitionKey, offset: int, bytes_max: int) -> Any:
    """`read_parts`, once what must be loaded is."""
    for _ in range(100):
        found = rig.log.reader.read_parts(key, offset, bytes_max)
        if not isinstance(found, Missing):
            return found
        await asyncio.shield(found.load)
    raise AssertionError("it is never there")


async def stored_batches(rig: Rig, key: PartitionKey) -> list[tuple[int, bytes]]:
    """(end offset, bytes) of all batches, as the block cache gives them."""
    found = []
    offset = 0
    while offset < rig.log.high_watermark(key):
        read = await rig.log.reader.read_loaded(key, offset, 1)
        assert read is not None
        offset = read.end_offset
        found.append((offset, data_of(read)))
    return found


def evict(folder: Path) -> None:
    """Have the page cache forget the objects."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@pytest.mark.slow
@settings(max_examples=examples(0.4))
@given(
    BATCHES,
    st.sampled_from((4096, 100_000, 1 << 20)),
    st.sampled_from((0, 2_000, 1 << 30)),
    st.integers(),
)
def test_parts_hold_the_same_bytes_as_views(
    batches: list[tuple[list[int], str]], stretch_bytes: int, copied_bytes: int, seed: int
) -> None:
    """At every offset and for limits of any size: as many whole batches as fit, and the same."""

    async def test(rig: Rig) -> None:
        random = Random(seed)
        store = rig.store
        assert isinstance(store, FileStore)
        reader = rig.log.reader
        reader._files = FileRuns(store, stretch_bytes=stretch_bytes, checks=reader._checks)
        keys = await rig.topic("t", 2)
        for sizes, then in batches:
            for key in keys:
                await rig.append(key, *(random.randbytes(size) for size in sizes))
            if then == "drain":
                await rig.drain()
        await rig.drain()
        rig.forget_memory()
        for key in keys:
            expected = await stored_batches(rig, key)
            checked = 0  # once: what wasn't yet may be left for the next fetch
            while checked < rig.log.high_watermark(key):
                checked = (await loaded_parts(rig, key, checked, 1)).end_offset
            for offset in range(rig.log.high_watermark(key)):
                for bytes_max in (1, random.randrange(1, 300_000), 1 << 30):
                    cold = random.random() < 0.5
                    if cold:
                        evict(rig.path / "objects")
                    else:
                        async for info in rig.store.list(""):
                            assert await store.warm(info.key, 0, info.size_bytes)
                    parts = await loaded_parts(rig, key, offset, bytes_max)
                    found = data_of(parts)
                    assert len(found) == parts.length
                    wanted = [batch for batch in expected if batch[0] > offset]
                    fit = [wanted.pop(0)]
                    while wanted and sum(len(b) for _, b in fit) + len(wanted[0][1]) <= bytes_max:
                        fit.append(wanted.pop(0))
                    if cold:  # what is on disk only may be left for the next fetch
                        del fit[1 + [end for end, _ in fit].index(parts.end_offset) :]
                    assert found == b"".join(data for _, data in fit)
                    assert parts.end_offset == fit[-1][0]

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(regions, "_COPIED_BYTES_MAX", copied_bytes)
        run_rig(Path(folder), test, block_bytes=1 << 20, block_cache_bytes=64 << 20)


async def test_nothing_of_a_segment_is_held_in_memory(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, bytes(100_000))
    await rig.drain()
    rig.forget_memory()
    read = await loaded_parts(rig, key, 0, 1 << 20)
    assert [type(part) for part in read.parts] == [FileRegion]
    assert rig.log.blocks.bytes == 0
    assert rig.log.reader.read_parts(key, 0, 1 << 20).parts[0].file is read.parts[0].file


class PagedFile:
    """A file of whose pages some are in memory, as the test says."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pages: set[int] = set()

    def can_send(self) -> bool:
        return True

    def peek(self, position: int, buffer: memoryview) -> int:
        end = position
        while end < min(position + len(buffer), len(self.data)) and end // PAGE in self.pages:
            end = min((end // PAGE + 1) * PAGE, position + len(buffer), len(self.data))
        buffer[: end - position] = self.data[position:end]
        return end - position

    def read_at(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def warm(self, start: int, end: int) -> bool:
        self.pages |= set(range(start // PAGE, (end - 1) // PAGE + 1))
        return end <= len(self.data)

    def identity(self) -> int:
        return 1

    def send(self, descriptor: int, position: int, length: int) -> int:
        raise NotImplementedError


PAGE = 4096


class PagedStore:
    """A store of one `PagedFile`; `forgetful` drops its pages as soon as they were loaded."""

    def __init__(self, file: PagedFile, *, forgetful: bool) -> None:
        self.file: PagedFile | None = None
        self.opened = file
        self.forgetful = forgetful

    def open_file(self, key: str) -> PagedFile | None:
        return self.file

    def may_open(self) -> bool:
        return True

    async def warm(self, key: str, start: int, end: int) -> bool:
        self.file = self.opened
        self.file.warm(start, end)
        if self.forgetful:
            self.file.pages.clear()
        return True


@given(
    st.lists(st.integers(0, 300_000), min_size=1, max_size=8),
    st.lists(st.integers(0, 300), max_size=40),
    st.sampled_from((1, 5_000, 1 << 20)),
    st.sampled_from((1, 50_000, 1 << 30)),
    st.booleans(),
    st.sampled_from((1, 2, 1000)),
    st.integers(0, 7),
)
def test_what_is_on_disk_only_is_loaded_before_it_is_named(
    sizes: list[int],
    pages: list[int],
    stretch_bytes: int,
    bytes_max: int,
    forgetful: bool,
    skipped: int,
    wanted: int,
) -> None:
    """Each load brings a reader on, even if the page cache loses it all again at once."""
    batches = []
    for base_offset, size in enumerate(sizes):
        value = Random(size).randbytes(size)
        batches.append(bytes(make_batch(value, offset=base_offset, epoch=0, time=0)))
    data = b"head" + b"".join(batches)
    wanted %= len(sizes)

    async def test() -> None:
        file = PagedFile(data)
        file.pages |= set(pages)
        pool = ThreadPoolExecutor(1)
        runs = FileRuns(
            PagedStore(file, forgetful=forgetful),
            stretch_bytes=stretch_bytes,
            checks=run_checks(pool),
        )
        run = StoredRun(
            partition_key=PartitionKey(1),
            base_offset=0,
            end_offset=len(sizes),
            generation=0,
            object_key="a",
            position=4,
            length=len(data) - 4,
            max_timestamp=0,
            batch_count=len(sizes),
            object_bytes=len(data),
        )
        loads = 0
        while True:
            before = set(file.pages)
            found = runs.read(
                PartitionKey(1), run, wanted, bytes_max, first=True, may_load=loads < 50
            )
            if not isinstance(found, asyncio.Task):
                break
            loads += 1
            await found
        assert isinstance(found, PartsRead)
        taken = b"".join(batches[wanted : found.end_offset])
        assert data_of(found) == taken
        assert found.end_offset == wanted + 1 or len(taken) <= bytes_max
        for part in found.parts:
            if isinstance(part, FileRegion) and not loads:
                last = part.position + part.length - 1
                assert {part.position // PAGE, last // PAGE} <= before
        assert loads >= wanted // skipped
        pool.shutdown()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regions, "_SKIPPED_MAX", skipped)
        asyncio.run(test())


def test_where_files_cannot_be_sent_runs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, and on file systems that don't tell what is cached."""
    monkeypatch.setattr(PosixFile, "can_send", lambda _: False)

    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        await rig.append(key, b"x" * 100_000)
        await rig.drain()
        rig.forget_memory()
        read = await loaded_parts(rig, key, 0, 1 << 20)
        assert all(isinstance(part, memoryview) for part in read.parts)
        assert data_of(read).endswith(b"x" * 100 + b"\0")

    run_rig(tmp_path, test)


async def test_a_deleted_object_can_still_be_sent_but_not_be_found(tmp_path: Path) -> None:
    store = LocalStore(PosixDevice(tmp_path))
    await store.put("a", [b"0123456789"])
    assert store.open_file("a") is None
    assert await store.warm("a", 0, 10)
    file = store.open_file("a")
    assert file is not None
    await store.delete(["a"])
    assert store.open_file("a") is None
    assert file.read_at(2, 3) == b"234"


@pytest.mark.slow
async def test_replies_under_way_hold_no_more_files_than_there_are_descriptors_for(
    tmp_path: Path,
) -> None:
    """A file that one of them holds is found again, not opened once more."""
    store = LocalStore(PosixDevice(tmp_path))
    held = []
    for number in range(200):
        if not store.may_open():
            break
        await store.put(f"{number}", [b"x"])
        assert await store.warm(f"{number}", 0, 1)
        held.append(store.open_file(f"{number}"))
    assert len(held) == 160
    assert store.open_file("0") is held[0]
    held.clear()
    assert store.may_open()
