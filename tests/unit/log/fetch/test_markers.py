"""Markers are read at their offsets, wherever the records before and after them lie."""

import asyncio
from pathlib import Path

from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.records.batch import check_batch, stored_header
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.markers import marker_batch
from penstock.state.answers import TransactionSettled
from penstock.state.commands import ADDS_ITSELF, TRANSACTIONAL
from penstock.state.transaction_commands import EndTransaction, InitTransaction
from penstock.state.transactions import is_marker
from support.log_rig import ANY, NOW, Rig, opened_rig


class Producer:
    """A transactional producer of protocol V2, below the Kafka API."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name
        self.producer_id = self.epoch = -1
        self.sequence = 0

    async def begin(self) -> None:
        init = InitTransaction(transactional_id=self.name, timeout_ms=60_000)
        (answer,) = await self.rig.log.commit([init])
        self.settled(answer)

    async def write(self, key: PartitionKey, value: bytes) -> None:
        record = Record(offset_delta=0, timestamp=NOW, key=None, value=value, headers=())
        encoded = encode_batch(
            [record],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )
        batch = check_batch(memoryview(encoded), ANY, NOW)
        # As the API will say it: the attribute of the batch is refused at the border until then.
        batch.producer_epoch |= TRANSACTIONAL | ADDS_ITSELF
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.rig.log.append([PartitionAppend(key, batch)], timeout_ms=5_000, done=done)
        await answer
        self.sequence += 1

    async def end(self, *, commits: bool) -> None:
        end = EndTransaction(
            transactional_id=self.name,
            producer_id=self.producer_id,
            epoch=self.epoch,
            commits=commits,
            bumps=True,
        )
        (answer,) = await self.rig.log.commit([end])
        self.settled(answer)

    def settled(self, answer: object) -> None:
        assert isinstance(answer, TransactionSettled), answer
        self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.epoch, 0


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
    first, second = Producer(rig, "one"), Producer(rig, "two")
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
        third = Producer(rig, "three")
        await third.begin()
        await third.write(key, b"open")
    async with opened_rig(tmp_path) as rig:
        assert rig.log.last_stable_offset(key) == 7
        assert rig.log.high_watermark(key) == 8
        third.rig = rig
        await third.end(commits=True)
        assert rig.log.last_stable_offset(key) == 9
        assert (await read_batches(rig, key))[:7] == before
