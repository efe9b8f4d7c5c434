"""What the uploader keeps of runs is what the database says of them."""

import asyncio

import pytest

from penstock.log.append.plan import PartitionAppend
from penstock.log.upload import pending as pending_module
from penstock.log.upload.pending import PendingRuns
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.records.batch import check_batch
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.read.queries import StoredRun
from support.batches import ANY
from support.log_rig import NOW, Rig
from support.simulated.randomness import SeededRandom


def batch(key: PartitionKey, *, producer: tuple[int, int], size: int = 5) -> PartitionAppend:
    record = Record(offset_delta=0, timestamp=NOW + size, key=None, value=bytes(size), headers=())
    data = encode_batch(
        [record], producer_id=producer[0], producer_epoch=0, base_sequence=producer[1]
    )
    return PartitionAppend(key, check_batch(memoryview(data), ANY, NOW))


async def send(rig: Rig, appends: list[PartitionAppend]) -> None:
    answer: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    rig.log.append(appends, timeout_ms=5_000, done=answer.set_result)
    assert await answer is None


@pytest.mark.slow
async def test_they_equal_the_databases_whatever_is_stored_repeated_or_refused(rig: Rig) -> None:
    random = SeededRandom(7)
    keys = await rig.topic("t", partitions=3)
    sequences = dict.fromkeys(keys, 0)
    statuses = set()
    for turn in range(60):
        appends = []
        for _ in range(1 + random.below(6)):
            key = keys[random.below(3)]
            kind = random.below(4)
            sequence = sequences[key]
            if kind == 0:
                sequence += 5  # out of order
            elif kind == 1 and sequence:
                sequence -= 1  # a repeat
            else:
                sequences[key] += 1
            appends.append(batch(key, producer=(9, sequence), size=random.below(50)))
        await send(rig, appends)
        statuses |= {append.status for append in appends}
        await rig.log.let_queries_find()
        kept = rig.log.uploader._pending
        assert kept.is_complete
        assert kept._runs == rig.queries().wal_runs()
        assert kept.length == rig.log.uploader.pending_bytes
        if turn == 30:
            await rig.drain()
            assert kept._runs == []
    assert len(statuses) == 3


def run(position: int, length: int = 10) -> StoredRun:
    return StoredRun(PartitionKey(1), position, position + 1, 1, "", position, length, 5, 1)


def test_commits_while_the_database_is_read_are_kept_once() -> None:
    pending = PendingRuns()
    pending.add([run(1)])
    assert not pending.is_complete
    pending.begin_reading()
    for position in (3, 4):
        pending.add([run(position)])
    pending.complete([run(1), run(2), run(3)])
    assert pending.is_complete
    assert [run.position for run in pending._runs] == [1, 2, 3, 4]
    assert pending.length == 40


def test_the_head_is_dropped_only_if_nothing_was_forgotten_meanwhile() -> None:
    pending = PendingRuns()
    pending.begin_reading()
    pending.complete([run(n) for n in range(5)])
    head = pending.head(25)
    assert (head.count, head.length, [r.position for r in head.runs]) == (2, 20, [0, 1])
    assert pending.head(1).count == 1, "at least one"
    pending.add([run(9)])
    pending.drop(head)
    assert [run.position for run in pending._runs] == [2, 3, 4, 9]
    head = pending.head(25)
    pending.begin_reading()
    pending.complete([run(7)])
    pending.drop(head)
    assert [run.position for run in pending._runs] == [7]


def test_too_many_are_left_to_the_database(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(pending_module, "RUNS_MAX", 3)
    pending = PendingRuns()
    pending.begin_reading()
    pending.complete([])
    pending.add([run(n) for n in range(4)])
    assert not pending.is_complete
    assert pending.length == 0
