"""An operator restores the cluster to moments of its restore window, while it lives, and looks.

Nothing goes wrong with the operator's machine, and nothing is put anywhere. Each object that the
restored state names must be in the bucket as long as the moment lies in the window. After all is
healed a restore must succeed.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.model.errors import CorruptDataError, NotFoundError, RetryableError
from penstock.objects.origins import ORIGINS_PREFIX
from penstock.recovery.point_in_time import Moment
from sim.chance import Chance
from sim.restored import Restoring

if TYPE_CHECKING:
    from sim.world import World

STREAM: Final = 0x6472696C6C
HEALED_S: Final = 60.0
RETRY_S: Final = 0.5


async def drill(world: World) -> None:
    """Restore again and again until the clients stop, and once after that."""
    chance = Chance(world.seed ^ STREAM)
    operator = _Operator(world, chance)
    while not world.stopping:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        await operator.is_restored()
    end_s = world.loop.time() + HEALED_S
    while not await operator.is_restored():
        if world.loop.time() > end_s:
            world.history.violate("not-restorable", f"nothing, for {HEALED_S:g} s after the faults")
        await asyncio.sleep(RETRY_S)


class _Operator:
    """The process that restores."""

    def __init__(self, world: World, chance: Chance) -> None:
        self._world = world
        self._chance = chance
        self._restoring = Restoring(world, chance)
        self._first_ms = math.inf
        """The earliest moment that was restored: the archive had begun by then."""

    async def is_restored(self) -> bool:
        """Restore to a moment of the window and see that what it names is there."""
        world, window_ms = self._world, self._world.restore_window_ms
        moment_ms = world.clock.now_ms() - self._chance.below(window_ms * 3 // 4)
        reason = ""
        try:
            state = await self._restoring.state_at(Moment(time_ms=moment_ms), allow_loss=True)
        except RetryableError:
            return False
        except NotFoundError as error:
            if moment_ms >= self._first_ms and world.clock.now_ms() - moment_ms < window_ms:
                world.history.violate("not-restorable", f"{moment_ms}: {error}")
            world.history.count("drill: no archive yet")
            return False
        except CorruptDataError as error:
            # The listing that the restore goes by lags, so that new objects are not in it.
            reason = str(error)
            state_ms = min(moment_ms, await self._restoring.archive_end_ms())
            missing = _missing(world, self._restoring.database)
        else:
            state_ms = state.info.time_ms
            missing = _missing(world, state.snapshot)
            self._first_ms = min(self._first_ms, moment_ms)
        if world.clock.now_ms() - state_ms >= window_ms:
            # The archiver did not reach the store for a while.
            world.history.count("drill: past the window")
            return False
        if missing:
            detail = f"{moment_ms}: {len(missing)} objects are gone, {missing[0]} is one {reason}"
            world.history.violate("not-restorable", detail)
        world.history.count("drill: not restored" if reason else "drill: restored")
        return not reason


def _missing(world: World, database: Path) -> list[str]:
    """The objects of a state that the bucket hasn't got."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT key FROM objects WHERE live_runs > 0 AND condemned_position IS NULL ORDER BY 1"
        ).fetchall()
    # A restored state says where its parent keeps them.
    keys = [key.split("/", 2)[2] if key.startswith(ORIGINS_PREFIX) else key for (key,) in rows]
    world.history.counts["drill: objects looked for"] += len(keys)
    return [key for key in keys if key not in world.bucket.objects]
