"""Reads give the same batches from memory, the WAL and segments, at every offset and size."""

import asyncio
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.fetch.tail import TailRead
from penstock.model.ids import PartitionKey
from penstock.records.batch import stored_header
from support.examples import examples
from support.log_rig import Rig, run_rig

APPENDS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 400), min_size=1, max_size=4),
        st.sampled_from(("none", "none", "gzip", "snappy", "lz4", "zstd")),
        st.sampled_from(("", "", "drain", "forget")),
    ),
    min_size=1,
    max_size=12,
)


async def check_read(
    rig: Rig, key: PartitionKey, offset: int, bytes_max: int, bounds: list[tuple[int, int]]
) -> None:
    """Whole batches, from the one that holds the offset on, within bytes_max but the first."""
    read = await rig.log.reader.read_loaded(key, offset, bytes_max)
    assert isinstance(read, TailRead)
    data = b"".join(read.views)
    assert len(data) == read.length
    position, found = 0, []
    while position < len(data):
        header = stored_header(data, position)
        found.append((header.base_offset, header.end_offset))
        position += header.length
        assert position <= bytes_max or len(found) == 1
    first = next(index for index, (_, end) in enumerate(bounds) if offset < end)
    assert found == bounds[first : first + len(found)]
    assert read.end_offset == found[-1][1]


@settings(max_examples=examples(0.4))
@given(APPENDS, st.sampled_from((100, 700, 4096)), st.integers(200, 20_000), st.integers())
def test_every_offset_is_read_the_same_from_wherever_it_lies(
    appends: list[tuple[list[int], str, str]], block_bytes: int, cache_bytes: int, seed: int
) -> None:
    """Blocks are smaller than batches here, and batches larger than the block cache.

    The cache holds two blocks at least: a batch's first bytes may lie in both.
    """
    cache_bytes = max(cache_bytes, 2 * block_bytes)

    async def test(rig: Rig) -> None:
        random = Random(seed)
        (key,) = await rig.topic("t")
        expected: list[tuple[int, bytes]] = []
        bounds = []
        for sizes, codec, then in appends:
            values = [random.randbytes(size) for size in sizes]
            done = await rig.append(key, *values, codec=codec)
            start = len(expected)
            assert done.base_offset == start
            expected += [(start + index, value) for index, value in enumerate(values)]
            bounds.append((start, len(expected)))
            if then == "drain":
                await rig.drain()
            elif then == "forget":
                rig.forget_memory()
        for stage in ("mixed", "stored", "segments"):
            if stage != "mixed":
                rig.forget_memory()
            if stage == "segments":
                await rig.drain()
            assert await rig.read_all(key) == expected, stage
            for offset in range(len(expected)):
                await check_read(rig, key, offset, random.choice((1, 300, 5_000, 1 << 20)), bounds)
            assert rig.log.blocks.bytes <= max(cache_bytes, 8_000)

    with tempfile.TemporaryDirectory() as folder:
        run_rig(Path(folder), test, block_bytes=block_bytes, block_cache_bytes=cache_bytes)


@pytest.mark.slow
async def test_what_moves_while_it_is_read_is_found_again(rig: Rig) -> None:
    """Readers go on over drains, recycled files and joined runs."""
    (key,) = await rig.topic("t")
    expected: list[tuple[int, bytes]] = []

    async def read(at: int) -> None:
        read = await rig.log.reader.read_loaded(key, at, 30_000)
        assert isinstance(read, TailRead)
        assert stored_header(read.views[0], 0).base_offset == at

    for number in range(60):
        value = b"%d" % number + bytes(9_000)
        done = await rig.append(key, value)
        expected.append((done.base_offset, value))
        if number % 6 == 5:
            rig.forget_memory()
            places = [read(at) for at in range(0, number, 5)]
            await asyncio.gather(*places[::2], rig.drain(), *places[1::2])
    assert await rig.read_all(key) == expected


async def test_an_offset_that_was_trimmed_just_now_gives_nothing(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"a")
    await rig.drain()
    rig.forget_memory()
    assert await rig.log.delete_records([(key, -1)]) == [1]
    assert await rig.log.reader.read_loaded(key, 0, 100) is None
