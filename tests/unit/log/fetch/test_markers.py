"""Markers are read at their offsets, wherever the records before and after them lie."""

from pathlib import Path

from penstock.model.ids import PartitionKey
from penstock.records.markers import marker_batch
from penstock.state.transactions import is_marker
from support.log_rig import Rig, opened_rig
from support.transactional_producer import TransactionalProducer, fill, read_batches


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
    rig.forget_memory()
    assert await assert_markers(rig, key, expected) == before
    await rig.drain()
    rig.forget_memory()
    assert await read_batches(rig, key) == before


async def test_markers_are_kept_in_memory_with_the_records_around_them(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await fill(rig, key)
    read = rig.log.tail.read(key, 0, 1 << 20)
    assert read is not None
    assert read.end_offset == 7
    assert [bytes(view) for view in read.views] == await read_batches(rig, key)


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
