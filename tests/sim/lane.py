"""An embedded server's commit lane, whose disk is full at times, over an agent's order.

An embedded log's object mode orders its flushes by a lane that may refuse one of them for a full
disk and take the next (`penstock.order.local_order`). Here that stands between an agent's
flushes and its order, so that producers find out what becomes of those after a refused one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.model.errors import StorageFullError
from penstock.state.orders import LocalOrder

if TYPE_CHECKING:
    from sim.parts import Parts

FULL_SHARE = 0.3
TURN_S = (0.0, 0.05)


class FillingLane:
    """Takes commands as `CommitLane.submit_commands` does."""

    def __init__(self, parts: Parts) -> None:
        self._order = parts.order
        self._chance = parts.random.fork()
        self._world = parts.agent.world

    hidden_position = 0

    def submit_commands(self, commands: Sequence[Any]) -> asyncio.Future[list[Any]]:
        """Refuse them, or have them ordered, after a turn of the lane."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[list[Any]] = loop.create_future()
        is_full = not self._world.stopping and self._chance.happens(FULL_SHARE)

        def turn() -> None:
            if is_full:
                self._world.history.count("lane refused for a full disk")
                answered.set_exception(StorageFullError("append", "journal", "the disk is full"))
            else:
                self._order.submit(commands).add_done_callback(applied)

        def applied(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                answered.cancel()
            elif (error := done.exception()) is not None:
                answered.set_exception(error)
            else:
                answered.set_result(done.result())

        loop.call_later(self._chance.uniform(*TURN_S), turn)
        return answered


def order_by_a_lane(parts: Parts) -> None:
    """Let an agent's flushes be ordered by a lane."""
    order = parts.order
    parts.log.objects._order = LocalOrder(order, FillingLane(parts), clock=order._clock)
