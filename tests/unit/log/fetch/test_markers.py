"""Markers are read at their offsets, wherever the records before and after them lie."""

from pathlib import Path

from penstock.model.ids import PartitionKey
from penstock.records.batch import stored_header
from penstock.records.markers import marker_batch
from penstock.state.transactions import is_marker
from support.log_rig import Rig, opened_rig
from support.transactional_producer import TransactionalProducer


async def read_batches(rig: Rig, key: PartitionKey) -> list[bytes]:
    """Every batch from the log start to the high watermark, by base offset without gaps."""
    at = rig.log.log_start(key)
    found = []
    while at < rig.log.high_watermark(key):
        read = await rig.log.reader.read_loaded(key, at, 200)
        assert read is not None, at
        data = b"".join(read.views)
        position = 0
        while position < len(data):
            header = stored_header(data, position)
            assert header.base_offset == at
            found.append(data[position : position + header.length])
            position += header.length
            at = header.end_offset
    return found


async def fill(rig: Rig, key: PartitionKey) -> list[tuple[int, int, bool]]:
    """Records with two markers between; offset, producer id and outcome of these."""
    first, second = TransactionalProducer(rig, "one"), TransactionalProducer(rig, "two")
    await first.begin()
    await second.begin()
    await rig.append(key, b"plain")
    await first.write(key, b"a")
    assert rig.log.last_stable_offset(key) == 1
    await second.write(key, b"b")
    await first.end(commits=True)
    assert rig.log.last_stable_offset(key) == 2
    await second.write(key, b"c")
    await second.end(commits=False)
    await rig.append(key, b"plain")
    assert rig.log.last_stable_offset(key) == rig.log.high_watermark(key) == 7
    return [(3, first.producer_id, True), (5, second.producer_id, False)]


async def assert_markers(
    rig: Rig, key: PartitionKey, expected: list[tuple[int, int, bool]]
) -> list[bytes]:
    batches = await read_batches(rig, key)
    assert len(batches) == 7
    rows = {
        run.base_offset: run
        for run in rig.queries().runs_from(key, 0, limit=99)
        if is_marker(run.generation)
    }
    for offset, producer_id, commits in expected:
        assert batches[offset] == marker_batch(
            base_offset=offset,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=1,
            commits=commits,
            time_ms=rows[offset].max_timestamp,
        )
        await rig.log.reader.examiner.examine(rows[offset])
    return batches


async def test_markers_are_read_between_records_of_any_place(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    expected = await fill(rig, key)
    before = await assert_markers(rig, key, expected)
    await rig.drain()
    rig.log.reader.forget_places(key)
    for partition in list(rig.log.reads.tail.partitions()):
        rig.log.reads.tail.forget(partition)
    assert await assert_markers(rig, key, expected) == before


async def test_what_is_open_and_what_has_ended_outlives_a_crash(tmp_path: Path) -> None:
    async with opened_rig(tmp_path, drain=False) as rig:
        (key,) = await rig.topic("t")
        expected = await fill(rig, key)
        before = await assert_markers(rig, key, expected)
        third = TransactionalProducer(rig, "three")
        await third.begin()
        await third.write(key, b"open")
    async with opened_rig(tmp_path) as rig:
        assert rig.log.last_stable_offset(key) == 7
        assert rig.log.high_watermark(key) == 8
        third.rig = rig
        await third.end(commits=True)
        assert rig.log.last_stable_offset(key) == 9
        assert (await read_batches(rig, key))[:7] == before
