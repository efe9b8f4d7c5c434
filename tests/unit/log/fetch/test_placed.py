"""An object's index names a run by topic, partition, place and offsets, or it is another's."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from obstore.store import MemoryStore

from penstock.log.fetch.object_reads import ObjectReads
from penstock.log.fetch.placed import PlacedRuns, Proof
from penstock.model.ids import PartitionKey
from penstock.objects.bucket import BucketStore
from penstock.ports.objects import Versioned
from penstock.segment import build_segment
from penstock.segment.format import Mark, SegmentRun
from penstock.state.rows import StoredRun
from support.simulated.clock import ManualClock

TOPIC = bytes([7] * 16)
KEY = PartitionKey((1 << 20) + 3)
AGAIN_S = 60.0


async def test_only_the_run_that_the_index_names_is_named() -> None:
    built = build_segment(
        [
            SegmentRun(
                topic_id=TOPIC,
                partition=3,
                base_offset=100,
                end_offset=130,
                record_count=30,
                batch_count=3,
                max_timestamp=60,
                parts=[bytes(300)],
                length=300,
                marks=[Mark(base_offset=100, position=0, max_timestamp=-1)],
            )
        ]
    )
    run = StoredRun(
        KEY, 100, 130, 0, "o", built.positions[0], 300, 60, 3, object_bytes=built.size_bytes
    )
    clock = ManualClock()
    topics = {KEY: TOPIC, PartitionKey((2 << 20) + 3): bytes([8] * 16)}
    store = BucketStore(MemoryStore())
    await store.put("o", built.parts)
    version = (await store.get_versioned("o", 0, 1)).version
    assert version is not None

    async def names(found: StoredRun) -> bool:
        reads = ObjectReads(store, clock, again_s=AGAIN_S)
        placed = PlacedRuns(reads, topic_id_of=topics.get, now_s=clock.monotonic_s, again_s=AGAIN_S)
        assert await placed.prove(found, "another") is Proof.OTHER_VERSION
        answer = await placed.prove(found, version) is Proof.NAMED
        assert placed.is_known(found, version) is answer
        assert not placed.is_known(found, "another")
        clock.advance(AGAIN_S)
        assert not placed.is_known(found, version)
        return answer

    assert await names(run)
    # A part of it, as after a join that was undone, is in its place, too.
    assert await names(replace(run, base_offset=110, length=200, position=run.position + 100))
    others = [
        replace(run, partition_key=PartitionKey((2 << 20) + 3)),
        replace(run, partition_key=PartitionKey(KEY + 1)),
        replace(run, base_offset=99),
        replace(run, end_offset=131),
        replace(run, position=run.position - 1),
        replace(run, length=301),
    ]
    topics[PartitionKey(KEY + 1)] = TOPIC
    assert not any([await names(other) for other in others])
    # Offsets in a raw object count from its runs' first records.
    assert await names(replace(run, base_offset=1000, end_offset=1030, raw=1))
    # An index that can't be read proves nothing.
    damaged = bytearray(b"".join(built.parts))
    damaged[-50] ^= 1
    await store.put("o", [damaged])
    version = (await store.get_versioned("o", 0, 1)).version
    assert not await names(run)


@pytest.mark.slow
def test_a_long_index_is_that_of_one_version() -> None:
    """It takes two reads, between which the object may be replaced."""
    built = build_segment(
        [
            SegmentRun(
                topic_id=TOPIC,
                partition=number,
                base_offset=100,
                end_offset=101,
                record_count=1,
                batch_count=1,
                max_timestamp=60,
                parts=[bytes(70)],
                length=70,
                marks=[Mark(base_offset=100, position=0, max_timestamp=-1)],
            )
            for number in range(4000)
        ]
    )
    data = b"".join(built.parts)
    run = StoredRun(
        KEY, 100, 101, 0, "o", built.positions[3], 70, 60, 1, object_bytes=built.size_bytes
    )

    class Replaced:
        def __init__(self, *versions: str) -> None:
            self.versions = list(versions)

        async def get_directly(self, _key: str, start: int, end: int) -> Versioned:
            return Versioned(data[start:end], self.versions.pop(0))

    async def proof(*versions: str) -> Proof:
        store: Any = Replaced(*versions)
        placed = PlacedRuns(
            store, topic_id_of=lambda _: TOPIC, now_s=ManualClock().monotonic_s, again_s=AGAIN_S
        )
        found = await placed.prove(run, "one")
        assert not store.versions
        assert placed.is_known(run, "one") is (found is Proof.NAMED)
        return found

    assert asyncio.run(proof("one", "one")) is Proof.NAMED
    assert asyncio.run(proof("one", "another")) is Proof.OTHER_VERSION
