"""What an agent keeps for its zone is bounded, shared and never wrong."""

import asyncio

import pytest
from obstore.store import MemoryStore

from penstock.model.errors import NotFoundError, OverloadedError
from penstock.objects.bucket import BucketStore
from penstock.peers import BlockRange, OwnBlocks, blocks
from support.zone_rig import CountingStore


async def test_blocks_are_kept_up_to_a_bound_and_the_least_recently_used_goes() -> None:
    store = CountingStore(BucketStore(MemoryStore()))
    await store.put("k", [bytes(400)])
    own = OwnBlocks(store, bytes_max=300)
    ranges = [BlockRange("k", at, at + 100) for at in range(0, 400, 100)]
    for wanted in ranges[:3]:
        await own.read(wanted)
    await own.read(ranges[0])
    assert (own.load_count, own.hit_count, own.bytes) == (3, 1, 300)
    await own.read(ranges[3])  # puts out the second
    assert own.bytes == 300
    await own.read(ranges[0])
    assert own.load_count == 4
    await own.read(ranges[1])
    assert own.load_count == 5
    await own.close()


async def test_an_error_is_told_to_all_and_not_kept() -> None:
    store = CountingStore(BucketStore(MemoryStore()), delay_s=0.01)
    own = OwnBlocks(store, bytes_max=1000)
    wanted = BlockRange("k", 0, 4)
    found = await asyncio.gather(*(own.read(wanted) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in found] == [NotFoundError] * 3
    await store.put("k", [b"here"])
    assert bytes((await own.read(wanted)).data) == b"here"
    await own.close()


async def test_peers_are_refused_before_an_agents_own_reads_are() -> None:
    store = CountingStore(BucketStore(MemoryStore()), delay_s=0.01)
    await store.put("k", [bytes(100)])
    own = OwnBlocks(store, bytes_max=1000, loads_max=1)
    first = asyncio.ensure_future(own.read(BlockRange("k", 0, 10)))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await own.read(BlockRange("k", 10, 20), may_refuse=True)
    joined = own.read(BlockRange("k", 0, 10), may_refuse=True)
    assert len((await own.read(BlockRange("k", 20, 30))).data) == 10
    assert (await joined).data == (await first).data == bytes(10)
    await own.close()


async def test_blocks_that_are_kept_of_an_object_are_of_the_version_that_was_read_last() -> None:
    store = BucketStore(MemoryStore())
    await store.put("k", [b"0123456789"])
    own = OwnBlocks(store, bytes_max=1000)
    first, second = BlockRange("k", 0, 5), BlockRange("k", 5, 10)
    old = await own.read(first)
    assert not own.is_stale("k", old.version)
    assert not own.is_stale("other", old.version)
    await store.put("k", [b"abcdefghij"])
    assert (await own.read(first)).version == old.version, "nothing says that it is another"
    assert bytes((await own.read(second)).data) == b"fghij"
    assert own.is_stale("k", old.version)
    assert bytes((await own.read(first)).data) == b"abcde"
    assert own.bytes == 10
    # Another read of this agent, past what is kept, met another object again.
    own.saw("k", "third")
    assert own.bytes == 0
    await own.close()


def test_how_many_objects_versions_are_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_SEEN_MAX", 2)
    own = OwnBlocks(CountingStore(BucketStore(MemoryStore())), bytes_max=10)
    own.saw("a", "1")
    own.saw("b", "1")
    own.saw("a", "1")
    own.saw("c", "1")
    assert [own.is_stale(key, "2") for key in "abc"] == [True, False, True]
    assert not own.is_stale("a", "1")


async def test_what_ends_keeps_nothing_and_loads_nothing() -> None:
    store = CountingStore(BucketStore(MemoryStore()), delay_s=0.01)
    await store.put("k", [bytes(100)])
    own = OwnBlocks(store, bytes_max=1000, loads_max=2)
    wanted = BlockRange("k", 0, 10)
    first, joined = (asyncio.ensure_future(own.read(wanted, may_refuse=True)) for _ in "ab")
    await asyncio.wait([first, joined])
    assert (own.load_count, own.hit_count, own.bytes) == (1, 1, 10)
    under_way = asyncio.ensure_future(own.read(BlockRange("k", 10, 20), may_refuse=True))
    await asyncio.sleep(0)
    await own.close()
    assert own.bytes == 0
    await asyncio.wait([under_way])
    assert under_way.cancelled()
    await own.read(wanted)
    assert (own.load_count, own.bytes) == (3, 10)
