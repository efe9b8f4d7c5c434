"""Markers and open transactions on the way through takeovers, scrubs and deletions."""

from penstock.log.damage.scrub import Scrubber
from penstock.state.answers import Done
from penstock.state.commands import Fence
from penstock.state.transactions import is_marker
from penstock.system.files import PosixDevice
from support.cluster_rig import Cluster, passing
from support.log_rig import Rig
from support.transactional_producer import TransactionalProducer, fill, read_batches


async def test_a_takeover_moves_markers_and_leaves_what_is_open(cluster: Cluster) -> None:
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    done, left = TransactionalProducer(one, "done"), TransactionalProducer(one, "left")
    await done.begin()
    await left.begin()
    await done.write(key, b"a")
    await done.end(commits=False)
    await left.write(key, b"b")
    await one.append(key, b"c")
    before = await read_batches(one, key)
    one.pause_heartbeats()
    await passing(0.1)
    await two.catch_up()
    (answer,) = await two.log.commit(
        [Fence(agent=1, epoch=one.order.epoch, seen_position=two.order.position)]
    )
    assert isinstance(answer, Done), answer
    device = PosixDevice(cluster.folder / "agent1")
    # Of the records alone: a marker lies in no WAL.
    assert await two.log.take_over(device, deadline_s=20) == sum(map(len, before)) - 78
    (run,) = two.queries.runs_from(key, 0, limit=9)
    assert (run.base_offset, run.end_offset, run.batch_count) == (0, 4, 4)
    assert await read_batches(two, key) == before
    assert two.log.last_stable_offset(key) == 2
    left.rig = two
    await left.end(commits=True)
    assert two.log.last_stable_offset(key) == two.log.high_watermark(key) == 5


async def test_records_of_an_open_transaction_may_be_deleted(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"0")
    producer = TransactionalProducer(rig, "one")
    await producer.begin()
    await producer.write(key, b"1")
    await rig.append(key, b"2")
    await rig.append(key, b"3")
    assert rig.log.last_stable_offset(key) == 1
    assert await rig.log.delete_records([(key, 3)]) == [3]
    assert rig.log.last_stable_offset(key) == rig.log.log_start(key) == 3
    await producer.write(key, b"4")
    await producer.end(commits=False)
    assert rig.log.last_stable_offset(key) == rig.log.high_watermark(key) == 6
    assert len(await read_batches(rig, key)) == 3
    await rig.log.let_queries_find()
    (found,) = rig.queries().aborted_between(key, 3, 6)
    assert (found.first_offset, found.marker_offset) == (1, 5)
    # All of it goes, the abort too.
    assert await rig.log.delete_records([(key, -1)]) == [6]
    await rig.log.let_queries_find()
    assert rig.queries().aborted_from(key, 0, limit=9) == []
    assert rig.log.last_stable_offset(key) == 6


async def test_the_scrubber_passes_markers_in_rows_and_in_segments(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await fill(rig, key)
    await rig.log.let_queries_find()
    own = rig.log.scrubber
    for drained in (False, True):
        if drained:
            await rig.drain()
        runs = rig.queries().runs_from(key, 0, limit=9)
        assert any(is_marker(run.generation) for run in runs) is not drained
        scrubber = Scrubber(
            queries=rig.queries,
            view=rig.view,
            examiner=rig.log.reader.examiner,
            clock=rig.clock,
            pool=rig.pool,
            bytes_per_s=1 << 20,
            reads_objects=lambda: True,
        )
        await scrubber.run_once()
        rig.clock.advance(1.0)
        await scrubber.run_once()
        assert (scrubber.run_count, scrubber.damaged_count) == (len(runs), 0)
    assert own.damaged_count == 0
