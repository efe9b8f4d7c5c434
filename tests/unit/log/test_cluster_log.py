"""The log of an agent in a cluster: flushes, their order, what fails with what, reading."""

import asyncio
from pathlib import Path

import pytest

from penstock.log.fetch.waiters import Waiter
from penstock.model.errors import ElsewhereError, NotFoundError, PenstockError, RetryableError
from penstock.state.answers import BatchStatus, Refusal
from support.cluster_rig import Cluster, passing, records_of, run_cluster

STORED = BatchStatus.STORED


async def outcome(future: "asyncio.Future[object]") -> object:
    try:
        return await future
    except PenstockError as error:
        return error


async def test_a_record_is_readable_from_every_agent_and_at_once_on_its_own(
    cluster: Cluster,
) -> None:
    one, two = await cluster.agent(1), await cluster.agent(2)
    (key,) = await one.topic("t")
    started_s = cluster.loop.time()
    assert await one.append(key, b"a") == (STORED, 0)
    took_s = cluster.loop.time() - started_s
    assert 0.28 <= took_s < 0.32, "the flush interval, a put and an entry"
    assert await one.read_all(key) == [(0, b"a")]
    assert cluster.store.gets == [], "it comes from memory"
    assert await two.append(key, b"b") == (STORED, 1)
    for agent in (one, two):
        assert await agent.read_all(key) == [(0, b"a"), (1, b"b")]


async def test_fetches_that_wait_are_woken_once_when_the_agent_is_cut_off_alone(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    woken: list[bool] = []
    agent.log.waiters.add(Waiter([key], lambda: woken.append(True)))
    gone = ElsewhereError("append", "agent 1", "cut off")
    for count in (1, 2):
        agent.log.let_go(gone)
        agent.log.let_go(gone)
        assert len(woken) == count
        agent.log.let_go(None)


# -- flushes and their order -----------------------------------------------------------------------


async def test_puts_overlap_and_commits_keep_the_order_of_the_flushes(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    delays = [3.0, 0.1, 1.0, 0.0]

    async def slow(_: str) -> None:
        await passing(delays[len(cluster.store.puts) - 1])

    cluster.store.before_put = slow
    answers = []
    for number in range(4):
        answers.append(agent.send((key, b"%d" % number), producer=(7, 0, number)))
        await passing(0.3)
    assert len(cluster.store.puts) == 4, "none waits for another"
    assert not any(answer.done() for answer in answers), "the first is still being put"
    found = [(await answer)[0] for answer in answers]
    assert [(one.status, one.base_offset) for one in found] == [
        (STORED, number) for number in range(4)
    ]
    assert cluster.loop.time() < 4, "they took as long as the slowest"
    agent.forget_memory()
    assert await agent.read_all(key) == [(number, b"%d" % number) for number in range(4)]


async def test_a_request_that_is_not_in_time_is_told_and_its_retry_is_the_duplicate(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")

    async def slow(_: str) -> None:
        await passing(3)

    cluster.store.before_put = slow
    first = agent.send((key, b"a"), producer=(7, 0, 0), timeout_ms=1_000)
    behind = agent.send((key, b"b"), producer=(7, 0, 1), timeout_ms=9_000)
    started_s = cluster.loop.time()
    with pytest.raises(RetryableError, match="may still be stored"):
        await first
    assert cluster.loop.time() - started_s < 1.1
    cluster.store.before_put = None
    retry = agent.send((key, b"a"), producer=(7, 0, 0))
    (appended,) = await retry
    assert (appended.status, appended.base_offset) == (BatchStatus.DUPLICATE, 0)
    (appended,) = await behind
    assert (appended.status, appended.base_offset) == (STORED, 1)
    for reader in (agent, await cluster.agent(2)):
        assert await reader.read_all(key) == [(0, b"a"), (1, b"b")]


async def test_a_request_of_several_topics_is_answered_once_and_each_by_its_own_path(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1, wal=True)
    (in_object,) = await agent.topic("o")
    (in_wal,) = await agent.topic("w", penstock__durability="wal")
    appends = await agent.send((in_object, b"a"), (in_wal, b"b"))
    assert [one.status for one in appends] == [STORED, STORED]
    assert agent.log.uploader is not None
    assert agent.log.uploader.pending_bytes > 0
    cluster.store.away = RetryableError("put", "store", "it is away")
    appends = await agent.send((in_object, b"a"), (in_wal, b"b"), timeout_ms=500)
    assert isinstance(appends[0].error, RetryableError)
    assert (appends[1].status, appends[1].base_offset) == (STORED, 1)


async def test_a_topic_whose_durability_changes_keeps_the_order_of_its_producers(
    cluster: Cluster,
) -> None:
    from penstock.state.commands import AlterTopicConfigs

    agent = await cluster.agent(1, wal=True)
    (key,) = await agent.topic("t")
    await agent.append(key, b"0", producer=(7, 0, 0))

    async def slow(_: str) -> None:
        await passing(2)

    cluster.store.before_put = slow
    one = agent.send((key, b"1"), producer=(7, 0, 1))
    topic = agent.log._view.topic("t")
    assert topic is not None
    await agent.log.commit(
        [AlterTopicConfigs(topic_id=topic.topic_id, set={"penstock.durability": "wal"})]
    )
    two = agent.send((key, b"2"), producer=(7, 0, 2))
    assert [(await answer)[0].base_offset for answer in (one, two)] == [1, 2]
    assert agent.log.uploader is None, "it went by the object, behind the first"
    assert await agent.append(key, b"3", producer=(7, 0, 3)) == (STORED, 3)
    assert agent.log.uploader is not None


@pytest.mark.seed(3)
async def test_many_bytes_flush_at_once_and_too_many_are_refused(cluster: Cluster) -> None:
    agent = await cluster.agent(1, flush_interval_ms=60_000, waiting_bytes_max=100_000)
    (key,) = await agent.topic("t")
    answers = [agent.send((key, bytes(22_000)), timeout_ms=9_000) for _ in range(3)]
    for answer in answers:
        await answer
    assert len(cluster.store.puts) == 1, "the fourth would not have fitted"
    cluster.store.away = RetryableError("put", "store", "away")
    held = [agent.send((key, bytes(22_000)), timeout_ms=100) for _ in range(4)]
    with pytest.raises(RetryableError, match="100000 may"):
        await agent.send((key, bytes(22_000)), timeout_ms=100)
    await asyncio.gather(*held, return_exceptions=True)


def test_a_flush_names_a_bounded_number_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.log.append import gathering

    monkeypatch.setattr(gathering, "FLUSH_BATCHES_MAX", 10)

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        (key,) = await agent.topic("t")
        answers = [agent.send((key, b"a"), (key, b"b")) for _ in range(12)]
        await asyncio.gather(*answers)
        assert len(cluster.store.objects) == 3
        agent.forget_memory()
        assert len(await agent.read_all(key)) == 24

    run_cluster(tmp_path, test)


# -- reading raw objects ---------------------------------------------------------------------------


async def test_partitions_of_one_object_share_its_blocks_and_each_is_patched(
    cluster: Cluster,
) -> None:
    agent, other = await cluster.agent(1), await cluster.agent(2)
    keys = await agent.topic("t", 8)
    answers = []
    for number in range(5):
        for key in keys:
            answers.append(agent.send((key, b"%d" % number * 300)))
    await asyncio.gather(*answers)
    assert len(cluster.store.objects) == 1
    await other.order.confirm_head()
    reads = [other.read_all(key) for key in keys]
    for found in await asyncio.gather(*reads):
        assert found == [(number, b"%d" % number * 300) for number in range(5)]
    assert len(cluster.store.gets) == len(set(cluster.store.gets)), "no block twice"
    (size,) = [len(data) for data, _ in cluster.store.objects.values()]
    assert len(cluster.store.gets) == -(-size // (16 << 10))


async def test_repeats_and_refused_batches_in_an_object_are_served_to_nobody(
    cluster: Cluster,
) -> None:
    agent, other = await cluster.agent(1), await cluster.agent(2)
    (key,) = await agent.topic("t")
    plan = [(0, b"a"), (1, b"b"), (0, b"a"), (5, b"gap"), (2, b"c"), (1, b"b")]
    answers = [agent.send((key, value), producer=(7, 0, sequence)) for sequence, value in plan]
    found = [(await answer)[0] for answer in answers]
    assert [(one.status, one.base_offset) for one in found] == [
        (STORED, 0),
        (STORED, 1),
        (BatchStatus.DUPLICATE, 0),
        (BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE),
        (STORED, 2),
        (BatchStatus.DUPLICATE, 1),
    ]
    assert len(cluster.store.objects) == 1
    agent.forget_memory()
    for reader in (agent, other):
        assert await reader.read_all(key) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_a_tiny_block_cache_still_reads_everything(cluster: Cluster) -> None:
    agent = await cluster.agent(1, flush_bytes=200_000)
    small = await cluster.agent(2, block_bytes=2_048, block_cache_bytes=4_096)
    keys = await agent.topic("t", 3)
    answers = [agent.send((key, bytes(9_000))) for _ in range(3) for key in keys]
    await asyncio.gather(*answers)
    await small.order.confirm_head()
    for found in await asyncio.gather(*(small.read_all(key) for key in keys)):
        assert found == [(number, bytes(9_000)) for number in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["object", "wal"])
async def test_any_stretch_of_a_long_run_is_read_from_any_offset(
    cluster: Cluster, durability: str
) -> None:
    agent = await cluster.agent(1, wal=True, durability=durability)
    (key,) = await agent.topic("t")
    values = [b"%d" % number * (1 + number % 7) for number in range(300)]
    await asyncio.gather(*(agent.send((key, value)) for value in values))
    agent.forget_memory()
    offset = 0
    for step in range(400):
        read = await agent.log.reader.read_loaded(key, offset, cluster.random.below(900))
        assert read is not None
        found = records_of(b"".join(read.views))
        assert found == list(enumerate(values))[offset : read.end_offset]
        # On from the end, as readers do, or from anywhere else.
        goes_on = step % 3 and read.end_offset < 300
        offset = read.end_offset if goes_on else cluster.random.below(300)


async def test_times_are_looked_up_in_raw_objects(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    for value in (b"a", b"b"):
        await agent.append(key, value)
    agent.forget_memory()
    from support.simulated.virtual_loop import START_MS

    assert await agent.log.offset_for_time(key, START_MS) == (0, START_MS)
    assert await agent.log.offset_for_time(key, START_MS + 1) is None


async def test_a_deleted_topic_is_refused_and_others_of_the_flush_are_stored(
    cluster: Cluster,
) -> None:
    from penstock.state.commands import DeleteTopic

    agent = await cluster.agent(1)
    (gone,) = await agent.topic("gone")
    (kept,) = await agent.topic("kept")
    first, second = agent.send((gone, b"a")), agent.send((kept, b"b"))
    topic = agent.log._view.topic("gone")
    assert topic is not None
    await agent.log.commit([DeleteTopic(topic_id=topic.topic_id)])
    assert [(one.status, one.base_offset) for one in await first] == [
        (BatchStatus.REFUSED, Refusal.UNKNOWN_PARTITION)
    ]
    assert [one.status for one in await second] == [STORED]
    with pytest.raises(NotFoundError):
        agent.log.high_watermark(gone)
