"""Fetches in a cluster: what another agent has told, waiting, a journal that is away, racks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.errors import ErrorCode
from support.cluster_calls import fetch, zoned
from support.cluster_face import ClusterAgent, NoSink, World

LAG_S = 0.3
"""A row comes up to twice as late; an agent whose head is 0.75 s old sends clients elsewhere."""


@pytest.mark.slow
async def test_an_offset_that_another_agent_has_told_is_not_out_of_range(world: World) -> None:
    first, second = await world.cluster(1, 2)
    second.journal.lag_s = LAG_S
    for round_ in range(1, 4):
        await asyncio.sleep(LAG_S / 3)
        topic = await first.topic(f"flights-{round_}")
        await first.produce(topic.name, 0, 10)
        # Neither the topic nor the offset is known there yet.
        assert second.view.topic(topic.name) is None
        found = await fetch(second, 10, name=topic.name)
        assert (found.error_code.value, found.high_watermark) == (0, 10)
        await asyncio.sleep(2)
        await first.produce(topic.name, 0, 10)
        found = await fetch(second, 15, name=topic.name)
        assert (found.error_code.value, found.high_watermark) == (0, 20)
        assert found.records
    beyond = await fetch(second, 99, name="flights-1")
    assert beyond.error_code.value == ErrorCode.OFFSET_OUT_OF_RANGE
    assert beyond.high_watermark == 20
    unknown = await fetch(second, 0, name="nothing")
    assert unknown.error_code.value == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_what_a_connection_remembers_is_not_held_against_a_new_topic(world: World) -> None:
    """A consumer asks the same again and again, and where its partitions are is remembered."""
    first, second = await world.cluster(1, 2)
    second.connection = ConnectionState(1, NoSink())
    for _ in range(2):
        unknown = await fetch(second, 0)
        assert unknown.error_code.value == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    second.journal.lag_s = LAG_S
    await asyncio.sleep(LAG_S / 3)
    await first.topic("flights")
    assert second.view.topic("flights") is None
    assert (await fetch(second, 0)).error_code.value == 0


async def test_a_fetch_that_waits_is_answered_by_what_comes(world: World) -> None:
    first, second = await world.cluster(1, 2)
    await first.topic("flights")
    second.journal.lag_s = LAG_S
    await first.produce("flights", 0, 5)
    # Past what the second agent knows: it waits there as at the end.
    waiting = asyncio.ensure_future(fetch(second, 5, wait_ms=20_000))
    await asyncio.sleep(3)
    assert not waiting.done()
    await first.produce("flights", 0, 5)
    found = await waiting
    assert found.error_code.value == 0
    assert found.records


async def test_a_fetch_that_finds_nothing_new_leaves_an_agent_that_is_cut_off_alone(
    world: World,
) -> None:
    first, second = await world.cluster(1, 2)
    await first.topic("flights")
    await first.produce("flights", 0, 10)
    nodes: Any = second.broker.nodes
    for alone, at_the_end in (
        (True, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (False, ErrorCode.NONE),
    ):
        nodes.is_alone = lambda alone=alone: alone
        assert (await fetch(second, 10)).error_code.value == at_the_end
        # What is stored is as right here as anywhere.
        found = await fetch(second, 0)
        assert (found.error_code.value, found.high_watermark) == (0, 10)
        assert found.records


async def test_a_fetch_that_waits_at_an_agent_that_is_cut_off_alone_is_woken(world: World) -> None:
    first, second = await world.cluster(1, 2)
    await first.topic("flights")
    await asyncio.sleep(1)
    nodes: Any = second.broker.nodes
    waiting = asyncio.ensure_future(fetch(second, 0, wait_ms=600_000))
    await asyncio.sleep(3)
    nodes.is_alone = lambda: True
    woken_s = world.loop.time()
    await second.on_node(wake_all(second))
    assert (await waiting).error_code.value == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.loop.time() - woken_s < 1, "not at the end of its wait"


@pytest.mark.slow
async def test_an_agent_whose_journal_is_cut_sends_waiting_fetches_to_others(world: World) -> None:
    """From the start of the agent on, and by what the others answer it."""
    first, second = await world.cluster(1, 2)
    await first.topic("flights")
    await asyncio.sleep(1)
    waiting = asyncio.ensure_future(fetch(second, 0, wait_ms=600_000))
    await asyncio.sleep(3)
    second.cut_from_journal()
    cut_s = world.loop.time()
    assert (await waiting).error_code.value == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.loop.time() - cut_s < 2


async def wake_all(agent: ClusterAgent) -> None:
    """What `Log.let_go` does."""
    assert agent.log is not None
    agent.log.waiters.wake_in_turns(asyncio.get_running_loop().call_soon)


@pytest.mark.slow
async def test_fetches_go_on_while_the_journal_is_away(world: World) -> None:
    first, second = await world.cluster(1, 2)
    await first.topic("flights")
    await first.produce("flights", 0, 5)
    await asyncio.sleep(1)
    world.journal.go_away()
    await asyncio.sleep(3)
    found = await fetch(second, 0)
    assert found.error_code.value == 0
    assert found.records
    beyond = await fetch(second, 50)
    assert (beyond.error_code.value, beyond.records or b"") == (0, b"")
    unknown = await fetch(second, 0, name="nothing")
    assert unknown.error_code.value == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.slow
async def test_a_consumer_with_a_rack_is_sent_to_its_zone(world: World) -> None:
    agents = await zoned(world)
    await agents[0].produce("flights", 0, 5)
    await asyncio.sleep(1)
    for version in (11, 12):
        far = await fetch(agents[0], 0, rack="b", version=version)
        assert (far.error_code.value, far.preferred_read_replica) == (0, 3)
        assert (far.high_watermark, far.records or b"") == (5, b"")
    near = await fetch(agents[2], 0, rack="b")
    assert (near.error_code.value, near.preferred_read_replica) == (0, -1)
    assert near.records
    named = await fetch(agents[3], 0, client_id="penstock_zone=a")
    assert named.preferred_read_replica in (1, 2)
    # No agent there, no zone, or a version that does not know of it: it's served here.
    for found in (
        await fetch(agents[0], 0, rack="nowhere"),
        await fetch(agents[0], 0),
        await fetch(agents[0], 0, rack="b", version=10),
    ):
        assert getattr(found, "preferred_read_replica", -1) == -1
        assert found.records
    # Nor when the only one there is drained.
    await agents[0].on_node(agents[0].membership.drain(3))
    await asyncio.sleep(1)
    stays = await fetch(agents[0], 0, rack="b")
    assert stays.preferred_read_replica == -1
    assert stays.records
