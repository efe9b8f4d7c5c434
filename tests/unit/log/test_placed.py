"""An object's index names a run by topic, partition, place and offsets, or it is another's."""

import asyncio

from msgspec.structs import replace
from obstore.store import MemoryStore

from penstock.log.fetch.placed import PlacedRuns
from penstock.metadata.rows import StoredRun
from penstock.model.ids import PartitionKey
from penstock.objects.bucket import BucketStore
from penstock.segment import build_segment
from penstock.segment.format import Mark, SegmentRun
from penstock.testing.clock import ManualClock

TOPIC = bytes([7] * 16)
KEY = PartitionKey((1 << 20) + 3)
AGAIN_S = 60.0


def test_only_the_run_that_the_index_names_is_named() -> None:
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

    async def test() -> None:
        store = BucketStore(MemoryStore())
        await store.put("o", built.parts)

        async def names(found: StoredRun) -> bool:
            placed = PlacedRuns(
                store, topic_id_of=topics.get, now_s=clock.monotonic_s, again_s=AGAIN_S
            )
            answer = await placed.names(found)
            assert placed.is_known(found) is answer
            clock.advance(AGAIN_S)
            assert not placed.is_known(found)
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

    asyncio.run(test())
