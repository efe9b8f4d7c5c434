"""Bits that flip on the way, from a peer or a cache, are healed by asking the store itself."""

from random import Random
from typing import Any

import pytest
from obstore.store import MemoryStore
from typing_extensions import Buffer

from penstock.log.findings import DamagedError, DamageKind
from penstock.objects.bucket import BucketStore
from penstock.peers import OwnBlocks, ZoneStore
from penstock.peers.codec import BlockRange
from penstock.placement.rendezvous import owner_of
from penstock.ports.objects import Versioned, get_directly
from support.cluster_rig import Cluster, ClusterAgent, ScriptedStore
from support.simulated.clock import ManualClock


def flipped(data: Buffer, random: Random) -> bytes:
    """The same with one bit turned, outside what nothing needs (offset and label of a batch that
    are written when it is read)."""
    damaged = bytearray(data)
    damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    return bytes(damaged)


class Caches(ScriptedStore):
    """A store whose replies come from peers that turn a bit, save those of the store itself."""

    def __init__(self, cluster: Cluster, *, everywhere: bool = False) -> None:
        super().__init__(cluster.loop)
        self.objects = cluster.store.objects
        self.everywhere = everywhere
        self.random = Random(1)
        self.direct: list[str] = []

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        return flipped(await super().get_range(key, start, end), self.random)

    async def get_directly(self, key: str, start: int, end: int) -> Versioned:
        self.direct.append(key)
        found = await super().get_range(key, start, end)
        return Versioned(flipped(found, self.random) if self.everywhere else found, None)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["wal", "object"])
@pytest.mark.parametrize("size", [10, 30_000])
async def test_what_came_damaged_is_read_from_the_store_itself(
    cluster: Cluster, durability: str, size: int
) -> None:
    """Raw objects and segments that the WAL was moved to; the damaged reply may hit anything."""
    one = await cluster.agent(1, wal=True, durability=durability)
    (key,) = await one.topic("t")
    values = [bytes([number]) * size for number in range(8)]
    for value in values:
        await one.append(key, value)
    if durability == "wal":
        assert await one.log.uploader.drain(5)  # type: ignore[union-attr]
    for seed in range(10):
        caches = Caches(cluster)
        caches.random = Random(seed)
        two = await cluster.agent(10 + seed, store=caches, block_bytes=16 << 10)
        assert await two.read_all(key) == list(enumerate(values))
        assert not two.log.damages.known()


@pytest.mark.parametrize("durability", ["wal", "object"])
async def test_what_is_damaged_in_the_store_too_is_an_error(
    cluster: Cluster, durability: str
) -> None:
    one = await cluster.agent(1, wal=True, durability=durability)
    (key,) = await one.topic("t")
    for number in range(4):
        await one.append(key, b"%d" % number * 500)
    if durability == "wal":
        assert await one.log.uploader.drain(5)  # type: ignore[union-attr]
    caches = Caches(cluster, everywhere=True)
    two = await cluster.agent(2, store=caches)
    caches.random = Random(5)
    with pytest.raises(DamagedError):
        await two.read_all(key)
    (damage, *_) = two.log.damages.known()
    assert damage.kind is DamageKind.DAMAGED_OBJECT
    assert caches.direct


class NoCalls:
    """Nobody else is in the zone."""

    async def call(self, *_: Any, **__: Any) -> None:
        raise AssertionError("a peer was asked")


class Peers:
    """Asks the owner's log; turns a bit of the first `wrong` replies."""

    def __init__(self, owner: ClusterAgent, wrong: int) -> None:
        self.owner = owner
        self.wrong = wrong
        self.calls = 0

    async def read(
        self, agent: int, wal_key: int, generation: int, position: int, length: int
    ) -> Buffer:
        assert agent == self.owner.agent_id
        self.calls += 1
        data = bytearray(await self.owner.log.read_own_wal(wal_key, generation, position, length))
        if self.calls <= self.wrong:
            data[-1] ^= 1
        return data


async def test_a_damaged_reply_from_another_agents_wal_is_asked_for_once_more(
    cluster: Cluster,
) -> None:
    one = await cluster.agent(1, wal=True, durability="wal")
    (key,) = await one.topic("t")
    await one.append(key, b"a")
    peers = Peers(one, wrong=1)
    two = await cluster.agent(2, remote_wal=peers)
    assert await two.read_all(key) == [(0, b"a")]
    assert peers.calls == 2
    three = await cluster.agent(3, remote_wal=Peers(one, wrong=100))
    with pytest.raises(DamagedError, match="t-0 offsets 0 to 0"):
        await three.read_all(key)
    (damage,) = three.log.damages.known()
    assert damage.kind is DamageKind.DAMAGED_WAL


async def test_a_zones_store_reads_past_what_it_keeps_and_gives_peers_that_no_more() -> None:
    store = BucketStore(MemoryStore())
    own = OwnBlocks(store, bytes_max=100)
    zone = ZoneStore(
        store,
        agent_id=1,
        agents=dict,
        owner_of=owner_of,
        own=own,
        calls=NoCalls(),
        block_bytes=10,
        clock=ManualClock(),
    )
    await zone.put("k", [b"0123456789"])
    assert bytes(await zone.get_range("k", 0, 10)) == b"0123456789"
    await store.put("k", [b"abcdefghij"])
    assert bytes(await zone.get_range("k", 0, 10)) == b"0123456789"
    assert bytes((await get_directly(zone, "k", 0, 10)).data) == b"abcdefghij"
    assert bytes((await own.read(BlockRange("k", 0, 10))).data) == b"abcdefghij"
    assert own.bytes == 10
    await zone.close()
    await own.close()
