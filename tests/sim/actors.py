"""A client of the simulated cluster: what all kinds of them are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.kafka.errors import ErrorCode
from sim.connections import BrokenError
from sim.wire import Client

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.history import Place
    from sim.world import World

T = TypeVar("T")

UNKNOWN = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
"""Answers of an agent that knows no such topic or partition."""


class Actor:
    """One client process with a script."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.history = world.history
        self.loop = world.loop
        self.chance = world.chance.fork()
        self.name = name
        self.client = Client(world, name, self.chance)
        self._agent: Agent | None = None
        self.node = world.loop.world
        """The process that it runs in."""

    def agent(self) -> Agent:
        """The agent that it uses now; it stays with one until that fails it."""
        if self._agent is None or self._agent.removed:
            self._agent = self.chance.pick(self.world.agents)
        return self._agent

    def move(self) -> None:
        """Try another one."""
        self._agent = None

    async def pause(self, least: float = 0.05, most: float = 0.4) -> None:
        """Think."""
        await asyncio.sleep(self.chance.uniform(least, most))

    async def where_cut_off(self, agent: Agent, place: Place, position: int, epoch: int) -> int:
        """Where to go on reading after a restore: at the most where the leader epoch ended in which
        the last record was read.

        Raises:
            BrokenError: the agent does not say.

        Source: KIP-320.
        """
        code, answer = await self.client.epoch_end(agent, *place, epoch)
        if code:
            raise BrokenError(ErrorCode(code).name)
        self.history.epoch_ended(place, epoch, answer)
        return min(position, answer[1])

    async def until_answered(self, call: Callable[[Agent], Awaitable[tuple[int, T]]]) -> T:
        """Ask agent after agent until one answers with no error."""
        while True:
            try:
                code, value = await call(self.agent())
                if not code:
                    return value
            except BrokenError:
                pass
            self.move()
            await self.pause()
