"""The whole log on a directory: what was acknowledged is read back from wherever it lies by now."""

import asyncio
from pathlib import Path

import pytest

from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import (
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PenstockError,
)
from penstock.model.ids import PartitionKey, partition_key
from penstock.records.batch import check_batch
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.answers import BatchStatus, Refusal
from penstock.state.commands import DeleteTopic
from support.batches import ANY
from support.log_rig import NOW, Rig, run_rig


def only_partition(rig: Rig) -> PartitionKey:
    (topic,) = rig.view.topics()
    return partition_key(topic.topic_key, 0)


def test_records_are_read_back_from_memory_the_wal_and_segments(tmp_path: Path) -> None:
    expected = [(offset, b"v%d" % offset) for offset in range(60)]

    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        for start in range(0, 60, 3):
            append = await rig.append(key, *(value for _, value in expected[start : start + 3]))
            assert append.base_offset == start
        assert await rig.read_all(key) == expected
        rig.forget_memory()
        assert await rig.read_all(key) == expected, "from the WAL"
        await rig.drain()
        assert rig.queries().wal_runs() == []
        rig.forget_memory()
        assert await rig.read_all(key) == expected, "from the segment"
        for offset in range(60):
            assert (await rig.read_all(key, offset))[0] == expected[offset]

    run_rig(tmp_path, test)


@pytest.mark.options(segment_age_ms=3600000, segment_bytes=64 << 20)
async def test_a_wal_file_is_freed_only_once_the_journal_files_hold_its_entries(rig: Rig) -> None:
    """Its frames are what holds the entries until then, and are written over."""
    (key,) = await rig.topic("t")
    journal = rig.journal._replica._journal
    assert journal is not None
    freed: list[int] = []
    release = rig.wal.release
    loop, was_freed = asyncio.get_running_loop(), asyncio.Event()

    def noted(generation: int) -> None:
        freed.append(journal._synced)
        release(generation)
        loop.call_soon_threadsafe(was_freed.set)

    rig.wal.release = noted  # type: ignore[method-assign]
    for _ in range(6):
        await rig.append(key, bytes(400_000))
    position = rig.journal.position
    assert not freed
    assert journal._synced < position, "frames alone hold some of them"
    await rig.drain()
    await asyncio.wait_for(was_freed.wait(), 60)
    assert min(freed) >= position


@pytest.mark.parametrize("drain", [False, True])
def test_a_restart_goes_on_where_it_was(tmp_path: Path, *, drain: bool) -> None:
    async def first(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        await rig.append(key, b"a", b"b")

    async def second(rig: Rig) -> None:
        key = only_partition(rig)
        assert (await rig.append(key, b"c")).base_offset == 2
        assert await rig.read_all(key) == [(0, b"a"), (1, b"b"), (2, b"c")]

    async def third(rig: Rig) -> None:
        assert len(await rig.read_all(only_partition(rig))) == 3

    for test in (first, second, third):
        run_rig(tmp_path, test, drain=drain)


async def test_a_producers_retry_gets_the_first_answer_and_is_stored_once(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    first = await rig.append(key, b"a", producer=(5, 0, 0))
    again = await rig.append(key, b"a", producer=(5, 0, 0))
    gap = await rig.append(key, b"c", producer=(5, 0, 2))
    assert (first.status, first.base_offset) == (BatchStatus.STORED, 0)
    assert (again.status, again.base_offset) == (BatchStatus.DUPLICATE, 0)
    assert (gap.status, gap.base_offset) == (
        BatchStatus.REFUSED,
        Refusal.OUT_OF_ORDER_SEQUENCE,
    )
    assert await rig.read_all(key) == [(0, b"a")]
    await rig.drain()
    rig.forget_memory()
    assert await rig.read_all(key) == [(0, b"a")]


async def test_deleted_records_are_gone_and_their_object_is_deleted_after_the_grace(
    rig: Rig,
) -> None:
    (key,) = await rig.topic("t")
    for value in (b"a", b"b", b"c"):
        await rig.append(key, value)
        await rig.drain()
    (first, *_) = rig.queries().runs_from(key, 0, limit=1)
    assert await rig.log.delete_records([(key, 1)]) == [1]
    assert rig.log.log_start(key) == 1
    await rig.log.keeper.run_once()
    assert await rig.store.size(first.object_key) > 0, "the grace has not passed"
    rig.clock.advance(61)
    await rig.log.keeper.run_once()
    with pytest.raises(NotFoundError):
        await rig.store.size(first.object_key)
    assert await rig.read_all(key) == [(1, b"b"), (2, b"c")]
    assert await rig.log.delete_records([(key, -1)]) == [3]
    assert await rig.log.delete_records([(key, 4)]) == [-Refusal.OFFSET_OUT_OF_RANGE]


async def test_a_deleted_topic_leaves_nothing_behind(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"a")
    await rig.drain()
    await rig.append(key, b"b")
    (topic,) = rig.view.topics()
    await rig.log.commit([DeleteTopic(topic_id=bytes(topic.topic_id))])
    assert rig.view.head(key) is None
    await rig.log.keeper.run_once()
    rig.clock.advance(61)
    await rig.log.keeper.run_once()
    assert [info async for info in rig.store.list("segments/")] == []
    (anew,) = await rig.topic("t")
    assert anew != key
    assert (await rig.append(anew, b"new")).base_offset == 0
    assert await rig.read_all(anew) == [(0, b"new")]


@pytest.mark.options(segment_bytes=1000000)
async def test_the_wal_recycles_its_files_under_more_data_than_it_holds(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    value = bytes(200_000)
    for number in range(80):  # 16 MB through a WAL of 8 MiB
        append: PartitionAppend = await rig.append(key, value)
        assert append.base_offset == number
    assert len(await rig.read_all(key)) == 80
    assert len(list((rig.path / "wal").glob("*.wal"))) <= 8


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    seen: list[int] = []

    async def test(rig: Rig) -> None:
        seen.extend([(await rig.log.allocate_producer_id())[0] for _ in range(25)])

    run_rig(tmp_path, test, producer_id_block=10)
    run_rig(tmp_path, test, producer_id_block=10)
    assert len(set(seen)) == 50


async def test_retention_by_time_and_size_trims_whole_runs(rig: Rig) -> None:
    (old,) = await rig.topic("old", retention_ms="1000")
    (big,) = await rig.topic("big", retention_ms="-1", retention_bytes="250")
    (kept,) = await rig.topic("kept", cleanup_policy="compact", retention_ms="1")
    for key in (old, big, kept):
        for number in range(3):
            await rig.append(key, bytes(100), timestamp=NOW + number * 1000)
    rig.clock.advance(2.5)
    assert await rig.log.keeper.trim_expired() == 2
    assert rig.log.log_start(old) == 2
    assert rig.log.log_start(big) == 1
    assert rig.log.log_start(kept) == 0


async def test_retention_by_count_trims_to_the_exact_offset(rig: Rig) -> None:
    (few,) = await rig.topic("few", penstock_retention_messages="3")
    (kept,) = await rig.topic("kept", cleanup_policy="compact", penstock_retention_messages="3")
    for key in (few, kept):
        await rig.append(key, b"0", b"1", b"2")
        await rig.drain()
        await rig.append(key, b"3", b"4")
    keeper = rig.log.keeper
    assert await keeper.trim_expired() == 1
    # The batch that the start is in is served whole, as in Kafka, and consumers skip the rest.
    assert rig.log.log_start(few) == 2
    assert rig.log.log_start(kept) == 0
    assert await keeper.trim_expired() == 0
    await rig.append(few, b"5", b"6", b"7")
    assert await keeper.trim_expired() == 1
    assert (rig.log.log_start(few), rig.log.high_watermark(few)) == (5, 8)


async def test_a_little_of_a_large_request_does_not_keep_all_of_it_in_memory(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    batch = encode_batch([Record(offset_delta=0, timestamp=NOW, key=None, value=b"x", headers=())])
    frame = memoryview(bytearray(batch) + bytearray(1 << 20))
    append = PartitionAppend(key, check_batch(frame[: len(batch)], ANY, NOW))
    answer: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    rig.log.append([append], timeout_ms=1000, done=answer.set_result)
    assert await answer is None
    read = rig.log.tail.read(key, 0, 1 << 20)
    assert read is not None and memoryview(read.views[0].obj).nbytes == len(batch)
    assert await rig.read_all(key) == [(0, b"x")]


@pytest.mark.options(waiting_bytes_max=100)
async def test_appends_that_wait_are_bounded_in_bytes(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    with pytest.raises(OverloadedError, match="0 bytes wait already, 100 may"):
        await rig.append(key, bytes(200))
    assert (await rig.append(key, b"")).base_offset == 0


async def test_an_append_that_no_wal_file_holds_is_refused_at_once(rig: Rig) -> None:
    """No room that is made would be enough for it, and the WAL's writer would end the process."""
    (key,) = await rig.topic("t")
    most = rig.wal.frame_bytes_max
    with pytest.raises(
        InvalidRequestError,
        match=rf"append WAL: 12500\d\d\d bytes .*takes {most} .*wal_file_bytes",
    ):
        await rig.append(key, bytes(12_500_000))
    near = most - 200
    header_bytes = (await rig.append(key, bytes(near))).batch.length - near
    with pytest.raises(InvalidRequestError, match=rf"{most + 1} bytes in one append"):
        await rig.append(key, bytes(most - header_bytes + 1))
    longest = await rig.append(key, bytes(most - header_bytes))
    assert longest.batch.length == most
    assert longest.base_offset == 1


def test_an_error_that_is_not_ours_does_not_end_the_uploader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        await rig.append(key, b"a")
        with monkeypatch.context() as patch:
            patch.setattr(rig.store, "put", _fails)
            assert not await rig.log.uploader.drain(0.2)
            assert rig.log.uploader.last_error == "not one of ours"
        await rig.drain()
        assert rig.queries().wal_runs() == []

    run_rig(tmp_path, test)
    assert "not one of ours" in caplog.text


async def _fails(*_: object, **__: object) -> None:
    raise OSError("not one of ours")


async def test_a_fetch_of_many_cold_partitions_loads_no_more_than_the_cache_holds(rig: Rig) -> None:
    keys = await rig.topic("t", 40)
    for key in keys:
        await rig.append(key, bytes(10_000))
    await rig.drain()
    rig.forget_memory()
    assert rig.log.loads_max == 4
    found = [rig.log.read(key, 0, 1 << 20, may_load=False) for key in keys]
    assert found == [None] * 40 and rig.log.blocks.load_count == 0
