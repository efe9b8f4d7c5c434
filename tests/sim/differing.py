"""A cell of one agent's replica changes, as by a bit that flips on its disk.

The agents compare their states by themselves. Where the damaged one has a majority against it, it
ends, makes its replica again and goes on, and no other stops for it. Two agents can't say which of
them is wrong: both stop writing until an operator has removed the replica of one.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.placement.rendezvous import owner_of
from sim.ending import compare_replicas
from sim.parts import DATABASE

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.chance import Chance
    from sim.world import World

CELLS = (
    ("producers", "last_timestamp"),
    ("objects", "bytes"),
    ("group_offsets", "commit_ms"),
)
"""What no client sees before the states are compared, and no later entry need write again."""
FOUND_S = 75.0
"""An open round of the comparison is left for a minute to those that have yet to answer."""
REFUSED_S = 2.0


async def differ(world: World, chance: Chance) -> None:
    """Damage one replica, write on, and see that it is found."""
    live = live_agents(world)
    if len(live) < 2:
        return
    archiver = owner_of(b"archive", [agent.agent_id for agent in live])
    victim = chance.pick(live)
    if chance.happens(0.5):
        # Its snapshots may be made before the states are compared.
        victim = next(agent for agent in live if agent.agent_id == archiver)
    if victim.agent_id == archiver:
        world.history.count("rot in the archiver's replica")
    world.differing = victim
    if not await damage(victim, chance):
        return
    if chance.happens(0.3):
        # The damage outlives a restart.
        victim.crash()
        victim.start()
        await world.within(world.heal_s, victim.ready.wait(), f"{victim} doesn't start")
    lives = {agent: agent.life for agent in live}
    count = 5 + chance.below(20)
    if len(live) > 2:
        writes = _write(world, count)
        is_found = await _until(world, victim, lambda: victim.life > lives[victim], others=live)
    else:
        is_found = await _until(world, victim, lambda: all(map(has_stopped, live)), others=[])
        writes = _write(world, count)
        if is_found:
            await _resolve(world, victim, live)
    world.history.count("difference found" if is_found else "difference gone by itself")
    world.differing = None
    await world.within(world.heal_s, writes, "nothing is written after a replica differed")
    for agent in world.agents:
        await world.within(world.heal_s, agent.ready.wait(), f"{agent} doesn't start")
        if agent is not victim and agent.life != lives.get(agent, agent.life):
            world.history.violate("agent-died", f"{agent}, whose replica was right")


def _write(world: World, count: int) -> asyncio.Task[None]:
    return world.loop.spawn(world.loop.world, world.produce_to("differs", "differs", count))


def live_agents(world: World) -> list[Agent]:
    """Those that serve and that the others know as live."""
    ids = {
        known.agent_id
        for agent in world.agents
        if agent.broker is not None
        for known in agent.broker.view.agents()
        if known.live
    }
    return [agent for agent in world.agents if agent.agent_id in ids and agent.ready.is_set()]


def has_stopped(agent: Agent) -> bool:
    """Whether it writes nothing since its state and another's differ."""
    order = None if agent.parts is None else agent.parts.order
    return order is not None and order.write_stop.error is not None


async def _until(
    world: World, victim: Agent, is_found: Callable[[], bool], *, others: list[Agent]
) -> bool:
    """Wait until the difference is found; False: a later entry has written the cell again.

    Args:
        others: those that must not stop writing for it.
    """
    until_s = world.loop.time() + FOUND_S
    while not is_found():
        stopped = [agent for agent in others if agent is not victim and has_stopped(agent)]
        if stopped:
            world.history.violate("stopped-writing", f"{stopped}, though {victim} alone differs")
        if world.loop.time() > until_s:
            world.differing = None
            await compare_replicas(world)
            return False
        await asyncio.sleep(0.2)
    return True


async def _resolve(world: World, victim: Agent, live: list[Agent]) -> None:
    """Do what an operator does about two agents that differ."""
    acked = world.history.counts["acked"]
    await asyncio.sleep(REFUSED_S)
    if world.history.counts["acked"] > acked:
        world.history.violate("stopped-writing", "records are acknowledged by one of two states")
    replace_replica(victim)
    until_s = world.loop.time() + FOUND_S
    while not victim.ready.is_set() or any(map(has_stopped, live)):
        if world.loop.time() > until_s:
            world.history.violate("stuck", f"nothing is written: {live}\n{world.loop.dump()}")
        await asyncio.sleep(0.2)


def replace_replica(victim: Agent) -> None:
    """Do what an operator does with a replica that is wrong."""
    victim.crash()
    shutil.rmtree(victim.folder, ignore_errors=True)
    victim.start()


async def damage(victim: Agent, chance: Chance) -> bool:
    """Change one bit of a cell; False: there is none."""
    for table, column in chance.shuffled(CELLS):
        for _ in range(100):
            try:
                changed = _flip(victim, table, column, 1 << chance.below(3))
            except sqlite3.OperationalError:
                # It is being written to.
                await asyncio.sleep(0.01)
                continue
            break
        else:
            changed = False
        if changed:
            victim.world.note(f"a cell of {victim}'s {table} changes")
            victim.world.history.count("rot in a replica")
            return True
    return False


def _flip(victim: Agent, table: str, column: str, bit: int) -> bool:
    with closing(sqlite3.connect(victim.folder / DATABASE, timeout=0)) as connection, connection:
        changed = connection.execute(
            f"UPDATE {table} SET {column} = ({column} | ?) - ({column} & ?)"
            f" WHERE {column} = (SELECT min({column}) FROM {table})",
            (bit, bit),
        )
        return changed.rowcount > 0
