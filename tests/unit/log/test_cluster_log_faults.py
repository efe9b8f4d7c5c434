"""The log of an agent in a cluster while store or journal are away, fail, or lose answers."""

import asyncio

import pytest

from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError, RetryableError
from penstock.records.batch import check_batch
from penstock.state.answers import BatchStatus
from support.batches import ANY
from support.cluster_rig import Cluster, ClusterAgent, one_batch, passing
from support.simulated.faulty import Faulty
from support.simulated.journal import JournalFaults
from support.simulated.randomness import SeededRandom

STORED = BatchStatus.STORED


async def outcome(future: "asyncio.Future[object]") -> object:
    try:
        return await future
    except PenstockError as error:
        return error


@pytest.mark.parametrize("failing", [0, 1])
async def test_a_failed_put_takes_what_stood_behind_it_along_and_nothing_else(
    cluster: Cluster, failing: int
) -> None:
    """With `failing` 0 the partition doesn't know the producer yet, and would take any sequence."""
    agent = await cluster.agent(1)
    key, other = await agent.topic("t", 2)
    store = cluster.store

    async def fail_one(name: str) -> None:
        if store.puts.index(name) == failing:
            raise RetryableError("put", name, "this one never works")

    store.before_put = fail_one
    answers = []
    others = []
    for number in range(3):
        answers.append(agent.send((key, b"%d" % number), producer=(7, 0, number)))
        others.append(agent.send((other, b"o%d" % number), timeout_ms=30_000))
        await passing(0.3)
    outcomes = [await outcome(answer) for answer in answers]
    for number in range(3):
        assert isinstance(outcomes[number], RetryableError) == (number >= failing), number
    # It goes on where it broke off: a batch behind is refused until the failed one came again.
    with pytest.raises(RetryableError):
        await agent.append(key, b"2", producer=(7, 0, 2), timeout_ms=30_000)
    offset = failing
    for number in range(failing, 3):
        sent = await agent.append(key, b"%d" % number, producer=(7, 0, number), timeout_ms=30_000)
        assert sent == (STORED, offset)
        offset += 1
    agent.forget_memory()
    assert await agent.read_all(key) == [(number, b"%d" % number) for number in range(3)]
    stored_others = [await outcome(answer) for answer in others]
    assert [isinstance(one, RetryableError) for one in stored_others] == [
        number == failing for number in range(3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
async def test_a_producer_that_took_its_failed_batch_elsewhere_may_come_back(
    cluster: Cluster, failing: int
) -> None:
    """Where it had failed that batch was awaited for ever, and what came behind it refused."""
    one, other = await cluster.agent(1), await cluster.agent(2)
    (key,) = await one.topic("t")
    for number in range(failing):
        assert await one.append(key, b"%d" % number, producer=(7, 0, number)) == (STORED, 0)
    cluster.store.away = RetryableError("put", "store", "it is away")
    for number in range(failing, 3):
        with pytest.raises(RetryableError):
            await one.append(key, b"%d" % number, producer=(7, 0, number))
    await passing(10)  # until none is tried any more
    cluster.store.away = None
    with pytest.raises(RetryableError, match="an earlier batch"):
        await one.append(key, b"2", producer=(7, 0, 2))
    await other.catch_up()
    for number in range(failing, 3):
        sent = await other.append(key, b"%d" % number, producer=(7, 0, number))
        assert sent == (STORED, number)
    await one.catch_up()
    assert await one.append(key, b"3", producer=(7, 0, 3)) == (STORED, 3)
    assert await one.read_all(key) == [(number, b"%d" % number) for number in range(4)]


async def test_what_was_sent_after_a_batch_that_found_no_room_waits_for_it(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1, waiting_bytes_max=100_000)
    (key,) = await agent.topic("t")
    cluster.store.away = RetryableError("put", "store", "it is away")
    held = [agent.send((key, bytes(22_000)), timeout_ms=9_000) for _ in range(4)]
    with pytest.raises(RetryableError, match="100000 may"):
        await agent.append(key, bytes(22_000), producer=(7, 0, 0))
    short = agent.send((key, b"short"), producer=(7, 0, 1))
    cluster.store.away = None
    with pytest.raises(RetryableError, match="an earlier batch"):
        await short
    await asyncio.gather(*held, return_exceptions=True)
    for number in range(2):
        sent = await agent.append(key, b"%d" % number, producer=(7, 0, number))
        assert sent[0] is STORED


@pytest.mark.parametrize("mode", ["object", "wal"])
async def test_what_was_sent_after_a_batch_that_was_handed_over_waits_for_it(
    cluster: Cluster, mode: str
) -> None:
    """A drained agent refuses a batch, and is drained no more when the next one comes."""
    agent = await cluster.agent(1, wal=True)
    (key,) = await agent.topic("t", penstock__durability=mode)
    assert await agent.append(key, b"-") == (STORED, 0)
    header = check_batch(memoryview(one_batch(b"0", (7, 0, 0))), ANY, 0)
    agent.log.refuse([PartitionAppend(key, header)], source=1)
    with pytest.raises(RetryableError, match="an earlier batch"):
        await agent.append(key, b"1", producer=(7, 0, 1))
    for number in range(2):
        sent = await agent.append(key, b"%d" % number, producer=(7, 0, number))
        assert sent == (STORED, number + 1)


async def test_an_older_batch_whose_answer_was_lost_is_no_follower_of_a_failed_one(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    for number in range(2):
        assert await agent.append(key, b"%d" % number, producer=(7, 0, number)) == (
            STORED,
            number,
        )
    cluster.store.away = RetryableError("put", "store", "it is away")
    with pytest.raises(RetryableError):
        await agent.append(key, b"2", producer=(7, 0, 2))
    await passing(10)  # until it isn't tried any more
    cluster.store.away = None
    # As a producer sends them again that was told of neither.
    assert await agent.append(key, b"1", producer=(7, 0, 1)) == (BatchStatus.DUPLICATE, 1)
    assert await agent.append(key, b"2", producer=(7, 0, 2)) == (STORED, 2)


async def test_a_put_whose_reply_was_lost_is_made_again_under_the_same_key(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")

    async def lose(name: str) -> None:
        if cluster.store.puts.count(name) == 1:
            raise RetryableError("put", name, "the reply was lost")

    cluster.store.after_put = lose
    assert await agent.append(key, b"a") == (STORED, 0)
    assert len(cluster.store.puts) == 2
    assert len(cluster.store.objects) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost_doubled_or_swapped_on_a_journal_that_loses_replies(
    cluster: Cluster, seed: int
) -> None:
    agents = [
        await cluster.agent(number, flush_interval_ms=5, wal=number == 2) for number in (1, 2)
    ]
    key, walled = (
        *(await agents[0].topic("t")),
        *(await agents[0].topic("w", penstock__durability="wal")),
    )
    await agents[1].order.confirm_head()
    cluster.journal.faults = JournalFaults(
        delay_ms=(0, 5),
        commit_ms=(0, 5),
        lost_reply_permille=100,
        lost_request_permille=50,
        doubled_permille=100,
        gap_permille=50,
    )

    async def produce(agent: ClusterAgent, topic: int, producer: int) -> None:
        sequence = 0
        while sequence < 30:
            answers = [
                agent.send(
                    (topic, b"%d:%d" % (producer, sequence + ahead)),  # type: ignore[arg-type]
                    producer=(producer, 0, sequence + ahead),
                    timeout_ms=200,
                )
                for ahead in range(min(3, 30 - sequence))
            ]
            for answer in answers:
                found = await outcome(answer)  # type: ignore[arg-type]
                if isinstance(found, list) and found[0].status is not BatchStatus.REFUSED:
                    assert found[0].base_offset >= 0
                    sequence += 1
                else:
                    break
            await asyncio.gather(*answers, return_exceptions=True)

    await asyncio.gather(
        produce(agents[0], key, 1),
        produce(agents[1], key, 2),
        produce(agents[1], walled, 3),
    )
    cluster.journal.faults = JournalFaults()
    reader = await cluster.agent(3, wal=True)
    agents[1].log.uploader.look_again()  # type: ignore[union-attr]
    assert await agents[1].log.uploader.drain(10)  # type: ignore[union-attr]
    for topic, producers in ((key, (1, 2)), (walled, (3,))):
        found = await reader.read_all(topic)
        assert [offset for offset, _ in found] == list(range(30 * len(producers)))
        for producer in producers:
            prefix = b"%d:" % producer
            assert [value for _, value in found if value.startswith(prefix)] == [
                b"%d:%d" % (producer, number) for number in range(30)
            ]


@pytest.mark.slow
async def test_without_the_store_objects_are_refused_in_time_and_the_wal_goes_on_until_it_is_full(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1, wal=True, segment_age_ms=100)
    (in_object,) = await agent.topic("o")
    (in_wal,) = await agent.topic("w", penstock__durability="wal")
    await agent.append(in_wal, b"first")
    cluster.store.away = RetryableError("put", "store", "it is away")
    started_s = cluster.loop.time()
    refused = agent.send((in_object, b"a"), timeout_ms=1_000)
    with pytest.raises(RetryableError):
        await refused
    assert cluster.loop.time() - started_s < 1.5
    stored = 1
    with pytest.raises(RetryableError):
        while stored < 1000:
            await agent.append(in_wal, bytes(20_000), timeout_ms=1_000)
            stored += 1
    assert 15 < stored < 50, "about as much as the files hold"
    cluster.store.away = None
    await passing(12)
    status, last = await agent.append(in_wal, b"last")
    assert status is STORED
    assert last - stored in (0, 1), "the one that was not in time may have been stored"
    assert (await agent.append(in_object, b"a"))[0] is STORED
    agent.forget_memory()
    found = await agent.read_all(in_wal)
    assert [offset for offset, _ in found] == list(range(last + 1))
    assert found[-1] == (last, b"last")


async def test_without_the_journal_fetches_go_on_and_produces_are_stored_once_it_is_back(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"a", producer=(7, 0, 0))
    agent.forget_memory()
    cluster.journal.go_away()
    lost = agent.send((key, b"b"), producer=(7, 0, 1), timeout_ms=1_000)
    with pytest.raises(RetryableError):
        await lost
    read = await agent.log.reader.read_loaded(key, 0, 1_000)
    assert read is not None
    assert read.end_offset == 1
    cluster.journal.come_back()
    assert await agent.append(key, b"b", producer=(7, 0, 1)) == (BatchStatus.DUPLICATE, 1)
    assert await agent.append(key, b"c", producer=(7, 0, 2)) == (STORED, 2)
    assert await agent.read_all(key) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_an_agent_that_lost_the_journal_for_half_the_grace_serves_nothing_that_is_stored(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1, delete_grace_ms=20_000)
    (key,) = await agent.topic("t")
    await agent.append(key, b"a")
    agent.journal.cut = True
    agent.journal.break_off("cut")
    await passing(12)
    assert agent.log.read(key, 0, 1_000) is not None, "memory is served"
    agent.forget_memory()
    with pytest.raises(RetryableError, match="head has not been confirmed"):
        agent.log.read(key, 0, 1_000)
    agent.journal.cut = False
    assert await agent.read_all(key) == [(0, b"a")]


async def test_a_fenced_agent_orders_nothing_more_and_says_so(cluster: Cluster) -> None:
    from penstock.model.errors import FencedError
    from penstock.state.answers import Done
    from penstock.state.commands import Fence

    one, two = await cluster.agent(1, beats=False), await cluster.agent(2)
    (key,) = await one.topic("t")
    await one.append(key, b"a")
    await two.order.confirm_head()
    (answer,) = await two.log.commit(
        [Fence(agent=1, epoch=one.order.epoch, seen_position=two.order.position)]
    )
    assert isinstance(answer, Done), answer
    with pytest.raises(FencedError):
        await one.append(key, b"late")
    assert [type(error) for error in one.stopped] == [FencedError]
    assert await two.read_all(key) == [(0, b"a")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_the_store_does_nothing_acknowledged_is_lost_and_no_sequence_has_a_gap(
    cluster: Cluster, seed: int
) -> None:
    stores = [
        Faulty(
            cluster.store,
            random=SeededRandom(seed * 10 + number),
            fail_percent=15,
            lost_percent=15,
            delay_percent=50,
            delay_s_max=1.5,
            wait=passing,
        )
        for number in (1, 2)
    ]
    agents = [
        await cluster.agent(
            number, store=stores[number - 1], flush_interval_ms=20, append_wait_ms_max=1_000
        )
        for number in (1, 2)
    ]
    keys = await agents[0].topic("t", 2)
    await agents[1].catch_up()
    acked: dict[tuple[int, int], int] = {}

    async def produce(producer: int) -> None:
        """As clients do: several in flight, all again from the first that failed, at
        whichever agent."""
        sequence, key = 0, keys[producer % 2]
        while sequence < 15:
            agent = agents[cluster.random.below(2)]
            window = range(sequence, min(sequence + 3, 15))
            answers = [
                agent.send(
                    (key, b"%d:%d" % (producer, number)),
                    producer=(producer, 0, number),
                    timeout_ms=600,
                )
                for number in window
            ]
            outcomes = [await outcome(answer) for answer in answers]  # type: ignore[arg-type]
            for number, found in zip(window, outcomes, strict=True):
                if not isinstance(found, list) or found[0].status is BatchStatus.REFUSED:
                    break
                acked[producer, number] = found[0].base_offset
                sequence = number + 1

    await asyncio.gather(*(produce(producer) for producer in range(4)))
    reader = await cluster.agent(3)
    for index, key in enumerate(keys):
        found = dict(await reader.read_all(key))
        assert list(found) == list(range(len(found)))
        values = list(found.values())
        for producer in range(index, 4, 2):
            mine = [value for value in values if value.startswith(b"%d:" % producer)]
            assert mine == [b"%d:%d" % (producer, number) for number in range(15)]
            for number in range(15):
                assert found[acked[producer, number]] == b"%d:%d" % (producer, number)


async def test_an_end_answers_everybody_though_store_and_journal_are_away(cluster: Cluster) -> None:
    agent = await cluster.agent(1, wal=True)
    (key,) = await agent.topic("t")
    (walled,) = await agent.topic("w", penstock__durability="wal")
    await agent.append(walled, b"0")
    agent.journal.cut = True
    agent.journal.break_off("cut")
    ordered = agent.send((key, b"a"), timeout_ms=60_000)
    framed = agent.send((walled, b"b"), timeout_ms=60_000)
    await passing(1)

    async def stall(_: str) -> None:
        await passing(1_000)

    cluster.store.before_put = stall
    stalled = agent.send((key, b"c"), timeout_ms=60_000)
    await passing(1)
    waiting = agent.send((key, b"d"), timeout_ms=60_000)
    started_s = cluster.loop.time()
    assert not await agent.log.close(2)
    assert cluster.loop.time() - started_s < 10
    for answer in (ordered, framed, stalled, waiting):
        assert answer.done()
        assert isinstance(await outcome(answer), RetryableError)  # type: ignore[arg-type]
    with pytest.raises(RetryableError, match="shutting down"):
        await agent.send((key, b"e"))
