"""One simulated journal and agents that order commands through it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from penstock.order.cluster_order import ClusterOrderSettings
from penstock.replica.follower import FollowerSettings
from penstock.state.commands import (
    AllocateProducerIds,
)
from support.cluster_orders import Agent
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop

ONE = [AllocateProducerIds(count=1)]


class World:
    """One journal and agents on a virtual loop."""

    def __init__(self, loop: VirtualLoop, folder: Path, faults: JournalFaults, seed: int) -> None:
        self.loop = loop
        self.folder = folder
        self.seed = seed
        self.clock = VirtualClock(loop)
        self.random = SeededRandom(seed)
        self.journal = SimulatedJournal(random=self.random, clock=self.clock, faults=faults)
        self.agents: list[Agent] = []

    def agent(self, agent_id: int, *, folder: str = "") -> Agent:
        """A process, not started yet. Two of one id have the same folder, unless it is given."""
        agent = Agent(
            agent_id,
            self.folder / (folder or str(agent_id)),
            self.journal.connect(),
            self.journal.cluster_id,
        )
        self.agents.append(agent)
        return agent

    async def started(self, agent_id: int, *, folder: str = "", tries: int = 1) -> Agent:
        agent = self.agent(agent_id, folder=folder)
        # Some of what is applied is applied in the executor.
        settings = ClusterOrderSettings(follower=FollowerSettings(inline_bytes_max=100))
        seed = self.seed * 100 + len(self.agents)
        await agent.start(self.clock, seed, settings=settings, tries=tries)
        return agent

    async def let_pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@contextlib.asynccontextmanager
async def opened_world(
    loop: VirtualLoop, folder: Path, *, faults: JournalFaults | None = None, seed: int = 1
) -> AsyncIterator[World]:
    """A world, whose agents are closed at the end."""
    world = World(loop, folder, faults or JournalFaults(), seed)
    try:
        yield world
    finally:
        for agent in world.agents:
            await agent.close()
