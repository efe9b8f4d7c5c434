"""The block cache: bounded by bytes, least recently used, one load however many ask."""

import asyncio
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.fetch.blocks import Block, BlockCache, BlockKey
from penstock.log.settings import LogSettings
from penstock.model.errors import RetryableError


def cache_of(bytes_max: int) -> BlockCache:
    return BlockCache(LogSettings(block_cache_bytes=bytes_max))


async def load(cache: BlockCache, number: int, length: int, version: str = "1") -> None:
    async def read() -> Block:
        return Block(memoryview(bytes(length)), version)

    await cache.load(BlockKey("o", number), read)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 60)), max_size=40))
async def test_it_keeps_the_most_recently_used_within_its_bound(
    steps: list[tuple[bool, int, int]],
) -> None:
    cache = cache_of(100)
    model: OrderedDict[int, int] = OrderedDict()
    for is_load, number, length in steps:
        if is_load and number not in model:
            await load(cache, number, length)
            model[number] = length
            while sum(model.values()) > 100 and len(model) > 1:
                model.popitem(last=False)
        elif number in model:
            model.move_to_end(number)
            assert cache.get(BlockKey("o", number)) is not None
        else:
            assert cache.get(BlockKey("o", number)) is None
        assert cache.bytes == sum(model.values())
        assert cache.bytes <= 100


async def test_many_who_ask_share_one_load() -> None:
    cache = cache_of(100)
    go = asyncio.Event()
    count = 0

    async def read() -> Block:
        nonlocal count
        count += 1
        await go.wait()
        return Block(memoryview(b"block"), None)

    loads = [cache.load(BlockKey("o", 0), read) for _ in range(50)]
    go.set()
    await asyncio.gather(*loads)
    assert count == cache.load_count == 1


async def test_a_failed_load_tells_all_who_wait_and_may_be_tried_again() -> None:
    cache = cache_of(100)

    async def fail() -> Block:
        raise RetryableError("read", "o", "planned")

    first, second = (cache.load(BlockKey("o", 0), fail) for _ in range(2))
    for task in (first, second):
        with pytest.raises(RetryableError):
            await task
    await load(cache, 0, 5)
    assert cache.get(BlockKey("o", 0)) is not None


async def test_a_block_larger_than_the_cache_stays_for_who_asked() -> None:
    cache = cache_of(100)
    await load(cache, 0, 50)
    await load(cache, 1, 500)
    assert cache.get(BlockKey("o", 0)) is None
    assert cache.get(BlockKey("o", 1)) is not None
    await load(cache, 2, 5)
    assert cache.bytes == 5


async def test_a_block_that_is_loaded_again_counts_once() -> None:
    cache = cache_of(100)
    for _ in range(5):
        await load(cache, 0, 40)
    await load(cache, 1, 40)
    assert cache.bytes == 80
    assert cache.get(BlockKey("o", 0)) is not None


async def test_blocks_of_one_object_are_of_one_version() -> None:
    cache = cache_of(100)
    dropped: list[int] = []
    cache.on_dropped = lambda key: dropped.append(key.number)
    cache.put(BlockKey("other", 0), memoryview(bytes(7)), "1")
    for number in range(3):
        await load(cache, number, 10)
    assert cache.version_of("o") == "1"
    await load(cache, 1, 20, "2")
    assert cache.version_of("o") == "2"
    assert sorted(dropped) == [0, 1, 2]
    assert cache.bytes == 27
    cache.drop(BlockKey("o", 1))
    assert cache.version_of("o") is None
    assert cache.peek(BlockKey("other", 0)) is not None


async def test_close_ends_loads_under_way() -> None:
    cache = cache_of(100)

    async def read() -> Block:
        await asyncio.Event().wait()
        raise AssertionError

    task = cache.load(BlockKey("o", 0), read)
    await asyncio.sleep(0)
    await cache.close()
    assert task.cancelled()
