"""No damaged byte is served: each is found, named and an error of its partition alone."""

import asyncio
import logging
import os
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.fetch.blocks import BlockKey
from penstock.log.findings import DamagedError, DamageKind
from penstock.records.batch import stored_header
from penstock.state.rows import StoredRun
from support.log_rig import Rig, run_rig
from support.rot import (
    Read,
    consume,
    flip,
    object_path,
    read_parts,
    read_views,
    runs_of,
    values_of,
    wal_path,
)


@pytest.mark.parametrize("read", [read_parts, read_views])
@pytest.mark.parametrize("size", [100, 60_000])
@pytest.mark.options(block_bytes=1 << 20, block_cache_bytes=8 << 20)
async def test_a_flipped_bit_of_a_segment_is_an_error_of_that_partition_alone(
    rig: Rig, caplog: pytest.LogCaptureFixture, read: Read, size: int
) -> None:
    """What lies before it is served; log, counter and status name it."""
    key, other = await rig.topic("t", 2)
    values = [bytes([number]) * size for number in range(20)]
    for value in values:
        await rig.append(key, value)
        await rig.append(other, value)
    await rig.drain()
    rig.forget_memory()
    (run,) = runs_of(rig, key)
    flip(object_path(rig, run), run.position + run.length * 13 // 20 + 70)
    found, error = await consume(rig, key, read)
    assert found == list(enumerate(values[:13]))
    assert isinstance(error, DamagedError)
    damage = error.damage
    assert (damage.start, damage.kind) == (13, DamageKind.DAMAGED_OBJECT)
    assert damage.end in (14, 20)
    assert damage.place == run.object_key
    assert damage.position == run.position + run.length * 13 // 20
    lines = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(lines) == 1
    assert "t-0 offsets 13 to" in lines[0]
    assert run.object_key in lines[0]
    (row,) = rig.log.damages.status()["ranges"]
    assert (row["partition"], row["start"], row["place"]) == ("t-0", 13, run.object_key)
    assert await consume(rig, other, read) == (list(enumerate(values)), None)
    # Past the damage it goes on.
    rest = await read(rig, key, 14, 1 << 20)
    assert values_of(rest)[0] == (14, values[14])


@pytest.mark.parametrize("read", [read_parts, read_views])
async def test_a_missing_object_is_damage(
    rig: Rig, caplog: pytest.LogCaptureFixture, read: Read
) -> None:
    key, other = await rig.topic("t", 2)
    await rig.append(key, b"a", b"b")
    await rig.drain()
    await rig.append(other, b"c")
    await rig.drain()
    rig.forget_memory()
    (run,) = runs_of(rig, key)
    object_path(rig, run).unlink()
    found, error = await consume(rig, key, read)
    assert not found
    assert isinstance(error, DamagedError)
    assert (error.damage.kind, error.damage.start, error.damage.end) == (
        DamageKind.MISSING_OBJECT,
        0,
        2,
    )
    assert run.object_key in caplog.text
    assert await consume(rig, other, read) == ([(0, b"c")], None)


@pytest.mark.parametrize("read", [read_parts, read_views])
async def test_an_object_that_was_cut_off_is_damage(rig: Rig, read: Read) -> None:
    (key,) = await rig.topic("t")
    for number in range(10):
        await rig.append(key, bytes([number]) * 10_000)
    await rig.drain()
    rig.forget_memory()
    (run,) = runs_of(rig, key)
    os.truncate(object_path(rig, run), run.position + run.length // 2)
    found, error = await consume(rig, key, read)
    assert [offset for offset, _ in found] == list(range(len(found)))
    assert isinstance(error, DamagedError)
    assert error.damage.start <= 5


@pytest.mark.parametrize("read", [read_parts, read_views])
async def test_a_flipped_bit_of_a_wal_file_is_found(rig: Rig, read: Read) -> None:
    (key,) = await rig.topic("t")
    for number in range(5):
        await rig.append(key, b"%d" % number, b"x" * 100)
    await rig.log.let_queries_find()
    rig.forget_memory()
    run = runs_of(rig, key)[3]
    assert run.generation
    flip(wal_path(rig, run), run.position + run.length - 1)
    found, error = await consume(rig, key, read)
    assert [offset for offset, _ in found] == list(range(run.base_offset))
    assert isinstance(error, DamagedError)
    assert error.damage.kind is DamageKind.DAMAGED_WAL
    assert (error.damage.start, error.damage.end) == (run.base_offset, run.end_offset)


async def test_what_is_right_again_is_served_and_forgotten(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """A second after it was found, damage is looked at again."""
    (key,) = await rig.topic("t")
    await rig.append(key, b"x" * 1000)
    await rig.drain()
    rig.forget_memory()
    (run,) = runs_of(rig, key)
    flip(object_path(rig, run), run.position + 500)
    for _ in range(3):
        assert isinstance((await consume(rig, key, read_parts))[1], DamagedError)
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1
    flip(object_path(rig, run), run.position + 500)
    assert isinstance((await consume(rig, key, read_parts))[1], DamagedError)
    rig.clock.advance(1.5)
    assert await consume(rig, key, read_parts) == ([(0, b"x" * 1000)], None)
    assert not rig.log.damages.known()


@pytest.mark.parametrize("read", [read_parts, read_views])
@pytest.mark.options(block_bytes=1 << 20, block_cache_bytes=8 << 20)
async def test_a_second_read_checks_nothing_and_one_after_the_hour_does(
    rig: Rig, read: Read
) -> None:
    (key,) = await rig.topic("t")
    for number in range(50):
        await rig.append(key, bytes([number]) * 2000)
    await rig.drain()
    rig.forget_memory()

    def checked() -> int:
        reader = rig.log.reader
        assert reader._files is not None
        return reader._files.checked_bytes + reader._objects.check_count

    await consume(rig, key, read)
    once = checked()
    assert once
    assert (await consume(rig, key, read, 1)) == (await consume(rig, key, read))
    rig.clock.advance(60)
    await consume(rig, key, read)
    assert checked() == once, "a file that is looked at again is the same"
    rig.clock.advance(3601)
    await consume(rig, key, read)
    assert checked() > once


@pytest.mark.options(segment_age_ms=1 << 40)
async def test_of_a_damaged_run_of_the_wal_what_comes_before_the_damage_is_served(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await asyncio.gather(*(rig.append(key, b"v%d" % number) for number in range(8)))
    await rig.log.let_queries_find()
    run = runs_of(rig, key)[-1]
    assert run.batch_count > 2, "several batches of one turn are a run"
    size = run.length // run.batch_count
    flip(wal_path(rig, run), run.position + 2 * size + 65)
    rig.forget_memory()
    for read in (read_parts, read_views):
        found, error = await consume(rig, key, read)
        assert [offset for offset, _ in found] == list(range(run.base_offset + 2))
        assert isinstance(error, DamagedError)
        assert error.damage.start == run.base_offset + 2


@pytest.mark.options(block_bytes=1 << 20, block_cache_bytes=8 << 20)
async def test_blocks_that_come_while_others_are_checked_are_checked_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was right of the first ones says nothing of those that took their place."""
    (key,) = await rig.topic("t")
    values = [bytes([number]) * 10_000 for number in range(4)]
    for value in values:
        await rig.append(key, value)
    await rig.drain()
    rig.forget_memory()
    (run,) = runs_of(rig, key)
    checks, name = rig.log.reader._checks, BlockKey(run.object_key, 0)
    in_pool, replaced = checks.in_pool, 0

    async def replace_block(work: Any) -> Any:
        nonlocal replaced
        found = await in_pool(work)
        block = rig.log.blocks.peek(name)
        if not replaced and block is not None:
            replaced += 1
            rotten = bytearray(block)
            rotten[run.position + 500] ^= 1
            version = rig.log.blocks.version_of(run.object_key)
            rig.log.blocks.put(name, memoryview(rotten), version)
        return found

    monkeypatch.setattr(checks, "in_pool", replace_block)
    assert await consume(rig, key, read_views) == (list(enumerate(values)), None)
    assert replaced


@pytest.mark.options(block_bytes=8 << 10, block_cache_bytes=8 << 20)
async def test_a_block_that_left_while_its_run_was_read_again_is_checked_when_another_comes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is read again from the store block by block: a small cache may drop the first, and a
    peer's reply may come in its place, before the last is there."""
    (key,) = await rig.topic("t")
    values = [bytes([number]) * 10_000 for number in range(4)]
    for value in values:
        await rig.append(key, value)
    await rig.drain()
    rig.forget_memory()
    (run,) = runs_of(rig, key)
    flipped, version = await rig.log.reader._objects._read(run, 0, 0)
    rotten = bytearray(flipped)
    rotten[run.position + 500] ^= 1
    name = BlockKey(run.object_key, 0)
    rig.log.blocks.put(name, memoryview(rotten), version)
    checks = rig.log.reader._checks
    in_pool, count = checks.in_pool, 0

    async def replace_block(work: Any) -> Any:
        nonlocal count
        found = await in_pool(work)
        if rig.log.blocks.peek(name) is not None and count < 5:
            count += 1
            rig.log.blocks.put(name, memoryview(rotten), version)
        return found

    monkeypatch.setattr(checks, "in_pool", replace_block)
    assert await consume(rig, key, read_views) == (list(enumerate(values)), None)
    assert count


async def test_a_file_that_somebody_writes_to_is_checked_again(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"x" * 100_000)
    await rig.drain()
    rig.forget_memory()
    assert (await consume(rig, key, read_parts))[1] is None
    (run,) = runs_of(rig, key)
    flip(object_path(rig, run), run.position + 500)
    rig.clock.advance(1.5)
    found, error = await consume(rig, key, read_parts)
    assert not found
    assert isinstance(error, DamagedError)


@pytest.mark.parametrize("read", [read_parts, read_views])
@pytest.mark.parametrize("durability", ["wal", "object"])
@pytest.mark.options(flush_interval_ms=1)
async def test_objects_that_changed_places_are_found(rig: Rig, read: Read, durability: str) -> None:
    """Each batch is whole, begins at the offset that is due and has its CRC: the sum that the
    state keeps of the run says that it is another partition's."""
    keys = await rig.topic("t", 2, penstock_durability=durability)
    for key in keys:
        for number in range(3):
            await rig.append(key, b"%d" % (key * 1000 + number))
        await rig.drain()
    rig.forget_memory()
    paths = [[object_path(rig, run) for run in runs_of(rig, key)] for key in keys]
    for one, other in zip(*paths, strict=True):
        kept = one.rename(one.with_suffix(".kept"))
        other.rename(one)
        kept.rename(other)
    for key in keys:
        assert all(run.sum is not None for run in runs_of(rig, key))
        found, error = await consume(rig, key, read)
        assert not found
        assert isinstance(error, DamagedError)
        assert "sum differs" in str(error)
        # From the middle of a run too.
        with pytest.raises(DamagedError):
            await read(rig, key, 2, 1000)


@pytest.mark.parametrize("index", [True, False])
async def test_a_longer_run_of_another_partition_is_found_by_its_index_or_its_sum(
    rig: Rig, index: bool
) -> None:
    """Before any of it is served; without an index at its end. From then on nothing of it is
    served, wherever a reader begins."""
    keys = await rig.topic("t", 2)
    for key in keys:
        for number in range(20):
            await rig.append(key, bytes([key % 250, number]) * 2_000)
        await rig.drain()
    rig.forget_memory()
    one, other = (object_path(rig, runs_of(rig, key)[0]) for key in keys)
    other.replace(one)
    if not index:
        flip(one, one.stat().st_size - 1)
    for read in (read_parts, read_views):
        found, error = await consume(rig, keys[0], read)
        assert isinstance(error, DamagedError)
        assert not (index and found)
        for offset in (0, 7, 19):
            rig.clock.advance(2)
            with pytest.raises(DamagedError):
                await read(rig, keys[0], offset, 1000)


APPENDS = st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=3), min_size=1, max_size=10)


@pytest.mark.slow
@given(APPENDS, st.sampled_from(("wal", "object", "raw")), st.booleans(), st.integers(0, 1 << 64))
def test_any_flipped_bit_of_a_run_is_found(
    appends: list[list[int]], place: str, parts: bool, seed: int
) -> None:
    """Whatever is delivered before the error is right."""

    async def test(rig: Rig) -> None:
        random = Random(seed)
        durability = "object" if place == "raw" else "wal"
        (key,) = await rig.topic("t", penstock_durability=durability)
        expected: list[tuple[int, bytes | None]] = []
        for sizes in appends:
            values = [random.randbytes(size) for size in sizes]
            await rig.append(key, *values)
            expected += list(enumerate(values, len(expected)))
        if place == "object":
            await rig.drain()
        await rig.log.let_queries_find()
        rig.forget_memory()
        runs = runs_of(rig, key)
        run = random.choice(runs)
        at = random.randrange(run.length)
        if random.random() < 0.5:  # headers are few bytes of many
            at = min(random.randrange(61), run.length - 1)
        if run.generation or run.raw:
            # Nothing needs these: they are written anew when the run is read.
            start = await _batch_start(rig, run, at)
            if at - start < 8 or 12 <= at - start < 16:
                return
        path = wal_path(rig, run) if run.generation else object_path(rig, run)
        flip(path, run.position + at, 1 << random.randrange(8))
        found, error = await consume(rig, key, read_parts if parts else read_views)
        assert found == expected[: len(found)]
        assert isinstance(error, DamagedError)
        assert run.base_offset <= error.damage.start < run.end_offset
        assert rig.log.damages.known()

    with tempfile.TemporaryDirectory() as folder:
        run_rig(Path(folder), test, block_bytes=700, block_cache_bytes=1 << 20, flush_interval_ms=1)


async def _batch_start(rig: Rig, run: StoredRun, at: int) -> int:
    """The position in the run of the batch that a byte of it is in."""
    if run.generation:
        data = rig.wal_reader.read(run.file_generation, run.position, run.length)
    else:
        end = run.position + run.length
        data = bytes(await rig.store.get_range(run.object_key, run.position, end))
    start = 0
    while True:
        size = stored_header(data, start).length
        if at < start + size:
            return start
        start += size
