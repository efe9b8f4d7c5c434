"""Fetches of committed records: up to the last stable offset, with the list of what was aborted."""

import asyncio
import importlib
from typing import Any

import pytest
from kio.serial import entity_reader

from penstock.kafka.replies import LateReply
from penstock.records.batch import stored_header
from support.log_rig import Rig
from support.transactional_producer import TransactionalProducer
from unit.kafka.test_fetch_sharing import Sink, ask, body_of, joined

COMMITTED = 1


def fetch(
    rig: Rig, offset: int, *, version: int = 11, isolation: int = COMMITTED, files: bool = False
) -> Any:
    body = body_of(version, {0: offset}, isolation_level=isolation)
    return ask(rig.agent.broker, version, body, Sink(1 << 20, files=files))


async def answer_of(reply: Any, version: int = 11) -> Any:
    """The one partition's answer."""
    if isinstance(reply, LateReply):
        reply = await asyncio.wait_for(reply, 10)
    types = importlib.import_module(f"kio.schema.fetch.v{version}.response")
    response, _ = entity_reader(types.FetchResponse)(joined(reply), 0)
    return response.responses[0].partitions[0]


def bases(answer: Any) -> list[int]:
    data, position, found = answer.records or b"", 0, []
    while position < len(data):
        header = stored_header(data, position)
        found.append(header.base_offset)
        position += header.length
    return found


def aborted(answer: Any) -> list[tuple[int, int]]:
    return [(int(one.producer_id), one.first_offset) for one in answer.aborted_transactions]


async def begun(rig: Rig, name: str) -> TransactionalProducer:
    producer = TransactionalProducer(rig, name)
    await producer.begin()
    return producer


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("version", [4, 11])
async def test_nothing_from_the_last_stable_offset_on_is_given(
    rig: Rig, version: int, files: bool
) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"plain")
    producer = await begun(rig, "x")
    await producer.write(key, b"open")
    await rig.append(key, b"behind")
    for moved in (False, True):
        if moved:
            await rig.drain()
            rig.log.reads.tail.forget(key)
            rig.log.reader.forget_places(key)
        answer = await answer_of(fetch(rig, 0, version=version, files=files), version)
        assert bases(answer) == [0]
        assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
        assert aborted(answer) == []
        both = await answer_of(fetch(rig, 0, version=version, isolation=0, files=files), version)
        assert bases(both) == [0, 1, 2]
        assert both.aborted_transactions is None


@pytest.mark.parametrize("commits", [True, False])
async def test_an_end_wakes_a_fetch_that_waits_for_it(rig: Rig, commits: bool) -> None:
    (key,) = await rig.topic("t")
    producer = await begun(rig, "x")
    await producer.write(key, b"a")
    waiting = fetch(rig, 0)
    assert isinstance(waiting, LateReply)
    await rig.append(key, b"of another producer")
    assert not waiting.done()
    await producer.end(commits=commits)
    answer = await answer_of(waiting)
    assert bases(answer)[0] == 0
    assert answer.last_stable_offset == answer.high_watermark == 3
    assert aborted(answer) == ([] if commits else [(producer.producer_id, 0)])


async def test_the_list_is_of_what_was_read(rig: Rig) -> None:
    """Nothing that ended before is in it, nor what began after."""
    (key,) = await rig.topic("t")
    one, two = await begun(rig, "one"), await begun(rig, "two")
    await one.write(key, b"a")  # 0
    await one.end(commits=False)  # 1
    await two.write(key, b"b")  # 2
    await one.write(key, b"c")  # 3
    await two.end(commits=False)  # 4
    await rig.append(key, b"plain")  # 5
    await one.end(commits=False)  # 6
    expected = {
        0: [(one.producer_id, 0), (two.producer_id, 2), (one.producer_id, 3)],
        2: [(two.producer_id, 2), (one.producer_id, 3)],
        5: [(one.producer_id, 3)],
        6: [(one.producer_id, 3)],
    }
    for offset, listed in expected.items():
        for bytes_max in (1 << 20, 78 + 80):
            body = body_of(
                11, {0: offset}, isolation_level=COMMITTED, partition_bytes_max=bytes_max
            )
            answer = await answer_of(ask(rig.agent.broker, 11, body, Sink(1 << 20, files=False)))
            read = bases(answer)
            assert read[0] == offset
            assert aborted(answer) == [pair for pair in listed if pair[1] <= read[-1]]
    await rig.drain()
    rig.log.reads.tail.forget(key)
    rig.log.reader.forget_places(key)
    answer = await answer_of(fetch(rig, 0))
    assert bases(answer) == list(range(7))
    assert aborted(answer) == expected[0]
