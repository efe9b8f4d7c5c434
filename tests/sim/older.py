"""The journal comes back older than it was, as after a failover that lost something, and grows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sim.chance import Chance
from sim.ending import compare_replicas, read_all
from sim.faults import AGENTS_MAX
from sim.oracle import Oracle
from sim.readers import Watcher

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

MORE_STREAM = 0x6D6F7265


async def go_back(world: World, chance: Chance) -> None:
    """The journal comes back older, as after a failover that lost something, and grows again:
    whoever applied more must notice, and serve nothing of it."""
    more = Chance(world.seed ^ MORE_STREAM)
    position = world.journal.head - 1 - chance.below(10)
    if chance.happens(0.7):
        # Records are acknowledged by what is lost.
        position = world.journal.head
        is_restarted = more.happens(0.5)
        if is_restarted:
            # Their epochs are opened by what is lost, too.
            for agent in world.agents:
                await _restart(world, agent)
        await world.produce_to("burst", "bursts", 10 + chance.below(30))
        lost = chance.below(max(1, world.journal.head - position))
        position += 0 if is_restarted and more.happens(0.7) else lost
    position = max(1, world.journal.first, min(position, world.journal.head - 1))
    world.is_older = True
    world.oracle.catch_up()
    ahead = [agent for agent in world.agents if agent.replica_position() > position]
    lives = {agent: agent.life for agent in ahead}
    away = more.pick(ahead) if len(ahead) > 1 and more.happens(0.5) else None
    if away is not None:
        # It hears of the journal again when that has grown past what the agent has applied.
        away.cut_journal(cut=True)
        ahead.remove(away)
    world.note(f"journal comes back as of {position}")
    world.journal.come_back_older(position)
    before, world.oracle = world.oracle, Oracle(world)
    # Until they notice, agents delete what the lost entries have condemned.
    world.was_condemned = before.is_condemned
    world.lost_live = before.live_objects() - world.oracle.live_objects()
    await _noticed(world, ahead, lives)
    if away is not None:
        position = away.replica_position()
        await _grow_past(world, position)
        away.cut_journal(cut=False)
        if position > 0:
            await _noticed(world, [away], lives)
    world.was_condemned = lambda _: False
    await _grow_again(world, chance)
    await compare_replicas(world)
    world.history.count("came back older")


async def _restart(world: World, agent: Agent) -> None:
    agent.crash()
    agent.start()
    await world.within(world.heal_s, agent.ready.wait(), f"{agent} doesn't start")


async def _noticed(world: World, ahead: list[Agent], lives: dict[Agent, int]) -> None:
    """Wait until these have ended and are there again."""
    until_s = world.loop.time() + world.heal_s
    while any(agent.life == lives[agent] or not agent.ready.is_set() for agent in ahead):
        if world.loop.time() > until_s:
            world.history.violate("stuck", f"an older journal is not noticed: {ahead}")
        await asyncio.sleep(0.1)


async def _grow_past(world: World, position: int) -> None:
    """Beats alone let the journal grow."""
    until_s = world.loop.time() + world.heal_s
    while world.journal.head <= position:
        if world.loop.time() > until_s:
            world.history.violate("stuck", f"the journal doesn't grow past {position}")
        await asyncio.sleep(0.1)


async def _grow_again(world: World, chance: Chance) -> None:
    """Go on with the journal that is left. What it has lost is nobody's any more, so only a new
    topic's records are followed."""
    for agent in chance.shuffled(world.agents)[: 1 + chance.below(2)]:
        if world.mode == "object" and chance.happens(0.7):
            # Its next life has to make a replica of what there is.
            agent.power_loss(chance)
            agent.start()
    if chance.happens(0.5) and len(world.agents) < AGENTS_MAX:
        world.join()
    for agent in world.agents:
        await world.within(world.heal_s, agent.ready.wait(), f"{agent} doesn't start")
    topic = "grown"
    await world.produce_to(topic, "grows", 10 + chance.below(40))
    # So long that what was archived before is looked at again, and what is due is deleted.
    await asyncio.sleep(chance.uniform(1, 8))
    reader = Watcher(world, "grown-reader")
    for agent in chance.shuffled(world.agents)[:2]:
        await world.within(
            world.heal_s,
            world.on_node("grown-reader", read_all(world, reader, agent, (topic, 0))),
            f"{topic} can't be read from {agent}",
        )
    world.history.count("grew again")
