"""Damage beside the gaps that compaction leaves, and in runs that lie in two blocks."""

import os
from pathlib import Path

import pytest

from penstock.log.fetch.blocks import BlockKey
from penstock.log.findings import DamagedError
from penstock.model.ids import PartitionKey
from penstock.records.batch import stored_header
from penstock.state.rows import StoredRun
from support.cleaning import clean
from support.log_rig import Rig, run_rig
from support.rot import Read, consume, flip, object_path, read_parts, read_views, runs_of

BASE_OFFSET_LAST = 7
"""The last byte of a batch's base offset, counted from the batch's first byte."""


async def compacted(rig: Rig) -> tuple[PartitionKey, StoredRun]:
    """Batches of offsets 4 to 11 in one run, under a log start of 0."""
    (key,) = await rig.topic("t", cleanup_policy="compact")
    for number in range(12):
        await rig.append(key, b"v%d" % number * 30, keys=[b"%d" % (number % 8)])
    await rig.drain()
    assert await clean(rig, key)
    rig.forget_memory()
    (run,) = runs_of(rig, key)
    assert (run.base_offset, run.end_offset, rig.log.log_start(key)) == (4, 12, 0)
    return key, run


def places_of(rig: Rig, run: StoredRun) -> list[int]:
    """Where a run's batches begin in its object."""
    data = object_path(rig, run).read_bytes()
    at, found = run.position, []
    while at < run.position + run.length:
        found.append(at)
        at += stored_header(data, at).length
    return found


def look_again(rig: Rig, run: StoredRun, path: Path, block_bytes: int) -> None:
    """Let nothing of an object be in memory, or be known to be right."""
    os.utime(path)
    for number in range(run.object_bytes // block_bytes + 1):
        rig.log.blocks.drop(BlockKey(run.object_key, number))
    rig.clock.advance(7200)


@pytest.mark.slow
@pytest.mark.parametrize("read", [read_parts, read_views])
@pytest.mark.parametrize("block_bytes", [500, 1 << 20])
def test_a_flipped_base_offset_of_a_cleaned_run_gives_no_record_another_offset(
    tmp_path: Path, read: Read, block_bytes: int
) -> None:
    """The CRC does not see it, and the gap that it makes looks like one of compaction's."""

    async def test(rig: Rig) -> None:
        key, run = await compacted(rig)
        right, error = await consume(rig, key, read)
        assert error is None
        assert [offset for offset, _ in right] == list(range(4, 12))
        path = object_path(rig, run)
        for at in places_of(rig, run):
            for mask in (1, 2, 4, 8):
                flip(path, at + BASE_OFFSET_LAST, mask)
                look_again(rig, run, path, block_bytes)
                found, error = await consume(rig, key, read)
                assert set(found) <= set(right), (at, mask)
                assert isinstance(error, DamagedError)
                flip(path, at + BASE_OFFSET_LAST, mask)
                look_again(rig, run, path, block_bytes)
        assert await consume(rig, key, read) == (right, None)

    run_rig(tmp_path, test, block_bytes=block_bytes, block_cache_bytes=8 << 20)


@pytest.mark.parametrize("read", [read_parts, read_views])
async def test_a_reader_before_a_gap_is_told_of_the_damage_after_it(rig: Rig, read: Read) -> None:
    """There is nothing between the reader's offset and the damaged batch."""
    key, run = await compacted(rig)
    flip(object_path(rig, run), run.position + 65)
    found, error = await consume(rig, key, read)
    assert not found
    assert isinstance(error, DamagedError)
    assert error.damage.start == 4


@pytest.mark.parametrize("read", [read_parts, read_views])
@pytest.mark.options(block_bytes=16 << 10, block_cache_bytes=8 << 20, prefetch_blocks=0)
async def test_a_run_in_two_blocks_is_compared_with_its_sum_before_any_of_it_is_served(
    rig: Rig, read: Read
) -> None:
    key, other = await rig.topic("t", 2)
    for number in range(6):
        await rig.append(key, b"k%d" % number * 1000)
        await rig.append(other, b"o%d" % number * 1000)
    await rig.drain()
    rig.forget_memory()
    (one,), (two,) = runs_of(rig, key), runs_of(rig, other)
    assert two.position < 16 << 10 < two.position + two.length < two.position + (16 << 10)
    path = object_path(rig, one)
    data, found = bytearray(path.read_bytes()), path.stat()
    data[two.position : two.position + two.length] = data[one.position : one.position + one.length]
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    served, error = await consume(rig, other, read, 3000)
    assert not served, "these are records of the other partition"
    assert isinstance(error, DamagedError)
    # Without blocks that are loaded ahead: the first block is there, and the second is not.
