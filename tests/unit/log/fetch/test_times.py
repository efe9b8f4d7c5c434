"""Look-ups by time equal a look at every record: out of order, compressed, stamped, trimmed."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.append.plan import PartitionAppend
from penstock.log.fetch.times import LOOKED_AT_MAX
from penstock.records.batch import check_batch
from penstock.records.decode import CODECS
from support.batches import ANY, make_batch
from support.examples import examples
from support.log_rig import NOW, Rig, run_rig
from support.raw_batches import batch, record, varint

BATCHES = st.lists(
    st.tuples(st.integers(-9, 9), st.integers(1, 3), st.sampled_from(("none", "gzip", "zstd"))),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=examples(0.4))
@given(BATCHES, st.booleans(), st.integers(0, 6))
def test_they_equal_a_look_at_every_record(
    batches: list[tuple[int, int, str]], drain: bool, trim: int
) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        stamps: list[tuple[int, int]] = []
        for index, (shift, count, codec) in enumerate(batches):
            values = [b"v"] * count
            await rig.append(key, *values, timestamp=NOW + shift, codec=codec)
            stamps += [(len(stamps) + i, NOW + shift + i) for i in range(count)]
            if drain and index % 3 == 0:
                await rig.drain()
        start = min(trim, len(stamps))
        assert await rig.log.delete_records([(key, start)]) == [start]
        stamps = stamps[start:]
        rig.forget_memory()
        for at in range(NOW - 11, NOW + 14):
            expected = next((stamp for stamp in stamps if stamp[1] >= at), None)
            assert await rig.log.offset_for_time(key, at) == expected, at - NOW
        greatest = max(stamps, key=lambda stamp: (stamp[1], -stamp[0]), default=None)
        assert await rig.log.offset_of_max_timestamp(key) == greatest

    with tempfile.TemporaryDirectory() as folder:
        run_rig(Path(folder), test)


async def test_a_batch_that_cannot_be_decoded_answers_by_its_header(rig: Rig) -> None:
    """Its records are announced as gzip and are not: its topic's aren't validated."""

    def garbled() -> bytearray:
        batch = make_batch(b"v", b"v", b"v", time=NOW + 10, step=1)
        batch[22] |= CODECS.index("gzip")
        batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
        return batch

    (key,) = await rig.topic("t")
    await rig.append(key, b"a", b"b")
    append = PartitionAppend(key, check_batch(memoryview(garbled()), ANY, NOW))
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    rig.log.append([append], timeout_ms=5_000, done=lambda error: done.set_result(None))
    await done
    assert await rig.log.offset_of_max_timestamp(key) == (2, NOW + 12)
    await rig.append(key, b"c", timestamp=NOW + 20)
    rig.forget_memory()
    assert await rig.log.offset_for_time(key, NOW + 1) == (1, NOW + 1)
    assert await rig.log.offset_for_time(key, NOW + 11) == (2, NOW + 12)
    assert await rig.log.offset_for_time(key, NOW + 13) == (5, NOW + 20)
    assert await rig.log.delete_records([(key, 3)]) == [3]
    assert await rig.log.offset_for_time(key, NOW) == (3, NOW + 12)


@pytest.mark.slow
async def test_a_batch_of_too_many_records_answers_by_its_header(rig: Rig) -> None:
    """A look-up costs a bound: 3 million empty records were 7 s of a thread."""
    count = LOOKED_AT_MAX + 1
    block = b"".join(record(n, time_delta=varint(n)) for n in range(count))

    async def append(rig: Rig, key: Any, records: int, last: int) -> None:
        whole = batch(
            block[:records], last + 1, codec="zstd", base_timestamp=NOW, max_timestamp=NOW + last
        )
        append = PartitionAppend(key, check_batch(memoryview(whole), ANY, NOW))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rig.log.append([append], timeout_ms=5_000, done=lambda error: done.set_result(None))
        await done

    few, many = await rig.topic("t", 2)
    last = LOOKED_AT_MAX
    await append(rig, few, len(block) - len(record(last, time_delta=varint(last))), last - 1)
    await append(rig, many, len(block), last)
    assert await rig.log.offset_for_time(few, NOW + 5) == (5, NOW + 5)
    assert await rig.log.offset_for_time(many, NOW + 5) == (0, NOW + last)
