"""A rolling upgrade under load: an old and a new release on one journal, and the feature level.

The old release is the one that was shipped before this one, as it was (tests/golden/releases).
"""

from __future__ import annotations

import asyncio
import time
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.world import World
from penstock.replica.postgres import PostgresJournal
from penstock.state.commands import AnyCommand
from penstock.state.levels import LEVEL_OF, LevelNotOnError
from penstock.state.schema import FEATURE_LEVEL_MAX
from penstock.system.clock import SystemClock
from support.agents import PATIENCE, Agent
from support.cluster_orders import Agent as OrderOnly
from support.old_release import unpack_release
from support.probe import Probe, create_topic, read_all
from support.server import REPOSITORY, ServerFailedError
from support.waiting import eventually
from unit.state.test_levels import sample

OLD, NEW = 3, FEATURE_LEVEL_MAX
COMMANDS: list[Any] = list(typing.get_args(AnyCommand))
PARTITIONS = 3
TOPIC = "upgraded"
# A proposal is left to one agent for 3 s.
RISE_SECONDS_MAX = 90.0


def install(agent: Agent, level: int) -> None:
    """What its next start runs."""
    release = agent.server.log.parent / "release"
    if not release.exists():
        unpack_release(OLD, release)
    source = release if level == OLD else REPOSITORY / "src"
    agent.server.environment["PYTHONPATH"] = str(source)
    # A setting that the old release does not know. Its commands are of the new level.
    agent.server.environment.pop("PENSTOCK_DIGEST_INTERVAL_MS", None)
    if level == NEW:
        agent.server.environment["PENSTOCK_DIGEST_INTERVAL_MS"] = "2000"


def levels(world: World) -> set[int]:
    """The feature levels that are on, as all agents say."""
    return {agent.status()["feature_level"] for agent in world.agents.agents}


@pytest.fixture
def old_world(tmp_path: Path) -> Iterator[World]:
    """Three agents of the old release."""
    with World(tmp_path, settings=PATIENCE, prepare=old) as world:
        yield world


def old(agent: Agent) -> None:
    """What the world's agents are at first."""
    install(agent, OLD)


def test_agents_are_upgraded_one_by_one_and_then_the_level_rises(old_world: World) -> None:
    world = old_world
    agents = world.agents.agents
    create_topic(agents[0].address, TOPIC, PARTITIONS)
    with Probe(world.agents.bootstrap, TOPIC, PARTITIONS) as probe:
        probe.warm_up()
        assert levels(world) == {OLD}
        # The first is upgraded and, as long as the level is the old one, may be taken back.
        for level in (NEW, OLD, NEW):
            replace(world, agents[0], level)
            assert levels(world) == {OLD}
        replace(world, agents[1], NEW)
        began_s = time.monotonic()
        probe.wait_accepted(began_s)
        # Two of three know more: the level stays for as long as a proposal would take.
        while time.monotonic() - began_s < 5:
            assert levels(world) == {OLD}
            time.sleep(0.25)
        # Nor does the old agent stop by anything that a new one may want to order.
        asyncio.run(order_everything(world))
        assert agents[2].server.running()
        began_s = time.monotonic()
        probe.wait_accepted(began_s)
        probe.wait_served(began_s)
        position = agents[0].status()["journal_position"]
        eventually(
            lambda: agents[2].status()["journal_position"],
            lambda seen: seen >= position,
            timeout_seconds=60,
        )
        assert levels(world) == {OLD}
        replace(world, agents[2], NEW)
        eventually(
            lambda: levels(world), lambda seen: seen == {NEW}, timeout_seconds=RISE_SECONDS_MAX
        )
        # What is of the new level works from here on.
        for agent in agents:
            eventually(
                lambda agent=agent: agent.status()["digest"],
                lambda digest: digest["verdict"] == "equal" and digest["equal_position"] > 0,
                timeout_seconds=RISE_SECONDS_MAX,
            )
        risen_s = time.monotonic()
        probe.wait_accepted(risen_s)
        probe.wait_served(risen_s)
    assert not probe.failed(), probe.failed()[:3]
    stored = read_all(agents[0].address, TOPIC, PARTITIONS)
    assert probe.acked().items() <= stored.items()
    assert max(Counter(stored.values()).values()) == 1
    # From here on the old release refuses: on a directory of its own, and on one that was new.
    stranger = world.agents.prepare()
    install(stranger, OLD)
    agents[0].server.stop()
    install(agents[0], OLD)
    for refused in (stranger, agents[0]):
        with pytest.raises(ServerFailedError, match="ended with 1 before it was ready") as failed:
            refused.server.start()
        assert f"feature level {NEW}" in str(failed.value)
        assert f"this release knows {OLD}" in str(failed.value)
    # Which took nothing from the others.
    assert read_all(agents[1].address, TOPIC, PARTITIONS) == stored


async def order_everything(world: World) -> None:
    """Every command that there is, by an agent of this release. It dies then, and is fenced."""
    journal = await PostgresJournal.open(
        f"postgresql://postgres@127.0.0.1:{world.postgres.port}/postgres",
        name="penstock",
        new_cluster_id=lambda: "not used",
    )
    agent = OrderOnly(77, world.folder / "77", journal, journal.cluster_id, level_max=NEW)
    await agent.start(SystemClock(), 1)
    try:
        sent = []
        for kind in COMMANDS:
            if LEVEL_OF[kind] > OLD:
                with pytest.raises(LevelNotOnError, match=r"3 is on, since"):
                    await agent.order.commit([sample(kind)])
            else:
                await agent.order.commit([sample(kind)])
                sent.append(kind)
        assert len(sent) > 30
    finally:
        await agent.close()


def replace(world: World, agent: Agent, level: int) -> None:
    """Stop in order, install, start; the others serve meanwhile."""
    assert agent.server.stop() == 0, agent.server.tail()
    install(agent, level)
    agent.server.start()
    world.agents.wait_live(3)
