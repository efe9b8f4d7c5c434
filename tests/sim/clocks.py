"""All clocks of a run, which may be wrong together: then nothing can tell (docs/operations.md)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.world import World

BELIEVED_AFTER_S = 2.0
"""Until a step of an agent's clock is believed. A simulated life lasts for seconds."""
LATE_S = 9.1
"""A deletion that was asked for takes effect at most so much later: a slow request arrives within
twice a client's patience with the store, one that comes twice within a third one."""


class Clocks:
    """The clocks of the journal and of all agents. The true time is `World.clock`'s."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ahead_ms = 0
        """By which all of them are ahead now."""
        self._stepped_s = math.inf
        self._wrong_until_s = -math.inf

    def step(self, ahead_ms: int) -> None:
        """Set all clocks so far ahead of the true time."""
        world, now_s = self._world, self._world.loop.time()
        if self._is_believed():
            self._wrong_until_s = now_s + LATE_S
        self.ahead_ms = ahead_ms
        self._stepped_s = now_s if ahead_ms else math.inf
        world.journal_clock.skew_ms = ahead_ms
        for agent in world.agents:
            agent.clock.skew_ms = ahead_ms
        world.note(f"all clocks {ahead_ms} ms ahead")
        world.history.count("all clocks stepped")

    @property
    def may_be_wrong(self) -> bool:
        """Whether all clocks have been ahead together for so long that each was believed."""
        return self._is_believed() or self._world.loop.time() < self._wrong_until_s

    def _is_believed(self) -> bool:
        return self._world.loop.time() >= self._stepped_s + BELIEVED_AFTER_S
