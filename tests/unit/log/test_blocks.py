"""The block cache: bounded by bytes, least recently used, one load however many ask."""

import asyncio
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.fetch.blocks import BlockCache, BlockKey
from penstock.log.limits import LogLimits
from penstock.model.errors import RetryableError


def cache_of(bytes_max: int) -> BlockCache:
    return BlockCache(LogLimits(block_cache_bytes=bytes_max))


async def load(cache: BlockCache, number: int, length: int) -> None:
    async def read() -> memoryview:
        return memoryview(bytes(length))

    await cache.load(BlockKey("o", number), read)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 60)), max_size=40))
def test_it_keeps_the_most_recently_used_within_its_bound(
    steps: list[tuple[bool, int, int]],
) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_many_who_ask_share_one_load() -> None:
    async def main() -> None:
        cache = cache_of(100)
        go = asyncio.Event()
        count = 0

        async def read() -> memoryview:
            nonlocal count
            count += 1
            await go.wait()
            return memoryview(b"block")

        loads = [cache.load(BlockKey("o", 0), read) for _ in range(50)]
        assert cache.is_loading(BlockKey("o", 0))
        go.set()
        await asyncio.gather(*loads)
        assert count == cache.load_count == 1
        assert not cache.is_loading(BlockKey("o", 0))

    asyncio.run(main())


def test_a_failed_load_tells_all_who_wait_and_may_be_tried_again() -> None:
    async def main() -> None:
        cache = cache_of(100)

        async def fail() -> memoryview:
            raise RetryableError("read", "o", "planned")

        first, second = (cache.load(BlockKey("o", 0), fail) for _ in range(2))
        for task in (first, second):
            with pytest.raises(RetryableError):
                await task
        await load(cache, 0, 5)
        assert cache.get(BlockKey("o", 0)) is not None

    asyncio.run(main())


def test_a_block_larger_than_the_cache_stays_for_who_asked() -> None:
    async def main() -> None:
        cache = cache_of(100)
        await load(cache, 0, 50)
        await load(cache, 1, 500)
        assert cache.get(BlockKey("o", 0)) is None
        assert cache.get(BlockKey("o", 1)) is not None
        await load(cache, 2, 5)
        assert cache.bytes == 5

    asyncio.run(main())


def test_a_block_that_is_loaded_again_counts_once() -> None:
    async def main() -> None:
        cache = cache_of(100)
        for _ in range(5):
            await load(cache, 0, 40)
        await load(cache, 1, 40)
        assert cache.bytes == 80
        assert cache.get(BlockKey("o", 0)) is not None

    asyncio.run(main())


def test_close_ends_loads_under_way() -> None:
    async def main() -> None:
        cache = cache_of(100)

        async def read() -> memoryview:
            await asyncio.Event().wait()
            raise AssertionError

        task = cache.load(BlockKey("o", 0), read)
        await asyncio.sleep(0)
        await cache.close()
        assert task.cancelled()

    asyncio.run(main())
