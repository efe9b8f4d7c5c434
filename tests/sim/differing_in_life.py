"""Cells of replicas change while everything else goes wrong, too.

The comparison of states finds each change, or a later entry writes the cell again, or the replica
is lost with its host. Where no majority says which state is wrong the agents stop writing, and the
operator of this module removes the replica that is. Snapshots are made and bootstrapped from all
the while, so that damage which got into one of them would come back in another agent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.replica.difference import note_of
from sim.differing import FOUND_S, damage, has_stopped, live_agents, replace_replica
from sim.ending import position_if_right
from sim.parts import DATABASE

if TYPE_CHECKING:
    from sim.chance import Chance
    from sim.world import World

NOTICED_S = 4.0
"""After which the operator acts on agents that have stopped writing."""


async def damage_one(world: World, chance: Chance) -> None:
    """Change a cell of one agent, unless the last one that was changed has yet to be found.

    An agent that differed is left alone until its new replica was found equal: one that differs
    twice in a row refuses to start, which is no fault.
    """
    live = [agent for agent in live_agents(world) if not note_of(agent.folder / DATABASE).exists()]
    if world.differing is not None or not live:
        return
    victim = world.differing = chance.pick(live)
    if not await damage(victim, chance) and world.differing is victim:
        world.differing = None


async def operate(world: World) -> None:
    """Remove the replica that is wrong once all agents that live have stopped writing."""
    writing_s = world.loop.time()
    while True:
        await asyncio.sleep(0.5)
        live = [agent for agent in world.agents if agent.ready.is_set()]
        if not live or not all(map(has_stopped, live)):
            writing_s = world.loop.time()
            continue
        stopped_s = world.loop.time() - writing_s
        if world.differing is not None and stopped_s >= NOTICED_S:
            world.history.count("operator removed a replica")
            replace_replica(world.differing)
            world.differing = None
        elif stopped_s >= FOUND_S:
            world.history.violate("stopped-writing", f"{live} for {stopped_s:.0f} s")


async def all_found(world: World) -> None:
    """Wait until no replica differs from the journal any more."""
    until_s = world.loop.time() + FOUND_S
    while (victim := world.differing) is not None:
        position = await position_if_right(world, victim)
        if position is not None:
            world.history.count("difference gone by itself")
            # A comparison of states before that may not have come to its end.
            world.right_from[victim] = position
            world.differing = None
        elif world.loop.time() > until_s:
            world.history.violate("difference-unnoticed", f"{victim}")
        await asyncio.sleep(0.5)
