"""A simulated agent changes its WAL's volume only when another agent has emptied that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sim.admin import Admin
from sim.agent import Agent
from sim.chance import Chance
from sim.producer import Producer
from sim.world import World
from support.simulated.virtual_loop import VirtualLoop, run


class _Always(Chance):
    """Whatever may happen happens."""

    def happens(self, share: float) -> bool:
        return share > 0


async def _with_records_in_a_wal(loop: VirtualLoop, folder: Path) -> World:
    """Two agents, and records in the WAL of one of them at least."""
    world = World(loop, 1, folder, verbose=False)
    world.mode, world.archives, world.segment_age_ms = "wal", False, 3_600_000
    for number in range(2):
        world.agents.append(Agent(world, number))
        world.agents[-1].start()
    world.calm_down()
    for agent in world.agents:
        await agent.ready.wait()
    await _on_node(world, "admin", Admin(world, "admin").create("t", 1))
    await _on_node(world, "producer", Producer(world, "producer", 3).run())
    return world


async def _on_node(world: World, name: str, work: Any) -> None:
    await world.loop.spawn(world.loop.node(name), work, name=name)


def _lies_in_wals_of(world: World) -> set[int]:
    """Agents in whose WALs something is named."""
    world.oracle.catch_up()
    rows = world.oracle._connection.execute(
        "SELECT agent FROM wals WHERE wal_key IN (SELECT generation >> 32 FROM wal_runs)"
    )
    return {agent_id for (agent_id,) in rows}


def test_a_volume_is_kept_while_records_lie_there(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        world = await _with_records_in_a_wal(loop, tmp_path)
        try:
            (agent_id,) = _lies_in_wals_of(world)
            owner = world.agents[agent_id - world.agents[0].agent_id]
            (taker,) = [agent for agent in world.agents if agent is not owner]
            with loop.on(loop.world):
                owner.chance, volume = _Always(1), owner.device
                # As one says late, who asked for a takeover in the life before.
                owner.wal_taken = True
                owner.crash()
                owner.start()
                assert owner.device is volume
                await owner.ready.wait()
                owner.pause()
                while not owner.wal_taken:
                    await asyncio.sleep(0.5)
                    await taker.take_over(owner)
                assert _lies_in_wals_of(world) == set()
                owner.crash()
                owner.start()
                assert owner.device is not volume
                await owner.ready.wait()
        finally:
            world.close()

    run(main, Chance(1))
