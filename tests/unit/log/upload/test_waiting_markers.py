"""Markers that no run brings along go into segments of their own."""

from penstock.state.commands import DeleteTopic
from penstock.state.transactions import is_marker
from support.cluster_rig import Cluster
from support.log_rig import Rig
from support.transactional_producer import TransactionalProducer, read_batches


async def test_markers_without_a_run_in_a_wal_before_them_are_moved(rig: Rig) -> None:
    keys = await rig.topic("t", partitions=3)
    producer = TransactionalProducer(rig, "one")
    await producer.begin()
    for key in keys:
        await producer.write(key, b"a")
    await rig.drain()
    await producer.end(commits=False)
    before = [await read_batches(rig, key) for key in keys]
    assert await rig.log.waiting_markers.run_once() == 3
    rig.forget_memory()
    assert [await read_batches(rig, key) for key in keys] == before
    for key in keys:
        runs = rig.queries().runs_from(key, 0, limit=9)
        assert [(run.end_offset, run.generation, run.raw) for run in runs] == [(1, 0, 0), (2, 0, 0)]
    assert await rig.log.waiting_markers.run_once() == 0


async def test_a_marker_waits_for_the_runs_before_it(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    producer = TransactionalProducer(rig, "one")
    await producer.begin()
    await producer.write(key, b"a")
    await producer.end(commits=True)
    assert await rig.log.waiting_markers.run_once() == 0
    await rig.drain()
    assert not rig.queries().markers_page((-1, -1), limit=9)


async def test_markers_of_a_deleted_topic_are_left_alone(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    producer = TransactionalProducer(rig, "one")
    await producer.begin()
    await producer.write(key, b"a")
    await rig.drain()
    await producer.end(commits=True)
    topic_id = rig.log.topic_id_of(key)
    assert topic_id is not None
    await rig.log.commit([DeleteTopic(topic_id=topic_id)])
    assert await rig.log.waiting_markers.run_once() == 0


async def test_in_a_cluster_whose_records_go_to_objects_one_agent_moves_them(
    cluster: Cluster,
) -> None:
    first, second = await cluster.agent(1), await cluster.agent(2)
    (key,) = await first.topic("t")
    producer = TransactionalProducer(first, "one")
    await producer.begin()
    await producer.write(key, b"a")
    await producer.end(commits=True)
    await first.append(key, b"b")
    await second.catch_up()
    before = await read_batches(first, key)
    moved = [await agent.log.waiting_markers.run_once() for agent in (first, second)]
    assert sorted(moved) == [0, 1]
    for agent in (first, second):
        await agent.catch_up()
        agent.forget_memory()
        assert await read_batches(agent, key) == before
        runs = agent.queries.runs_from(key, 0, limit=9)
        assert [is_marker(run.generation) for run in runs] == [False, False, False]
