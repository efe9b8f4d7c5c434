"""An uploader takes markers along with the runs between which they lie."""

from penstock.model.ids import PartitionKey
from penstock.state.transactions import is_marker
from support.log_rig import Rig
from support.transactional_producer import TransactionalProducer, fill, read_batches


async def places(rig: Rig, key: PartitionKey) -> list[tuple[int, int, bool]]:
    """Base and end offset of each run, and whether it is a marker's row."""
    await rig.log.let_queries_find()
    return [
        (run.base_offset, run.end_offset, is_marker(run.generation))
        for run in rig.queries().runs_from(key, 0, limit=99)
    ]


async def test_records_and_markers_become_one_run(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await fill(rig, key)
    before = await read_batches(rig, key)
    await rig.drain()
    rig.forget_memory()
    assert await places(rig, key) == [(0, 7, False)]
    assert await read_batches(rig, key) == before
    (run,) = rig.queries().runs_from(key, 0, limit=99)
    assert (run.batch_count, run.length) == (7, sum(map(len, before)))
    await rig.log.reader.examiner.examine(run)


async def test_markers_come_along_from_rows_where_memory_has_no_records(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await fill(rig, key)
    before = await read_batches(rig, key)
    rig.forget_memory()
    await rig.drain()
    assert await places(rig, key) == [(0, 7, False)]
    rig.forget_memory()
    assert await read_batches(rig, key) == before


async def test_the_marker_that_follows_the_last_run_comes_along(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    producer = TransactionalProducer(rig, "one")
    await producer.begin()
    await producer.write(key, b"a")
    await producer.end(commits=True)
    await rig.drain()
    assert await places(rig, key) == [(0, 2, False)]


async def test_a_marker_whose_records_were_moved_before_comes_with_the_next_run(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    producer = TransactionalProducer(rig, "one")
    await producer.begin()
    await producer.write(key, b"a")
    await rig.drain()
    await producer.end(commits=False)
    await rig.append(key, b"b")
    assert await places(rig, key) == [(0, 1, False), (1, 2, True), (2, 3, False)]
    await rig.drain()
    assert await places(rig, key) == [(0, 1, False), (1, 3, False)]
    assert len(await read_batches(rig, key)) == 3


async def test_markers_of_other_partitions_stay(rig: Rig) -> None:
    one, other = await rig.topic("t", partitions=2)
    producer = TransactionalProducer(rig, "one")
    await producer.begin()
    await producer.write(other, b"a")
    await rig.drain()
    await producer.end(commits=True)
    await rig.append(one, b"b")
    await rig.drain()
    assert await places(rig, other) == [(0, 1, False), (1, 2, True)]
