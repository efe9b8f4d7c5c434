"""A cluster is lost in mid-life and restored, and its clients go on with what they hold.

Its agents die with whatever they were doing, and all that is left is the bucket. Producers go on at
the restored cluster with their ids, epochs, next sequences and batches in doubt; consumers with
their positions, members with their generations. The rules: docs/simulation.md, "Restored in
mid-life".
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model.errors import CorruptDataError, NotFoundError, RetryableError
from penstock.recovery.point_in_time import Moment, RestoredState
from sim.chance import Chance
from sim.compactor import Compactor
from sim.oracle import Oracle
from sim.pipeline import Outside
from sim.restored import CLUSTER_ID, Restoring

if TYPE_CHECKING:
    from sim.faults import Faults
    from sim.world import World

STREAM = 0x6D69646C696665
TRIES = 30
RETRY_S = 0.5

_LIVE = "IN (SELECT topic_key FROM topics)"
_SAME = {
    "topics": "SELECT topic_key, topic_id, name, partitions, configs FROM topics ORDER BY 1",
    "partitions": "SELECT partition_key, log_start, next_offset FROM partitions"
    f" WHERE partition_key >> 20 {_LIVE} ORDER BY 1",
    "producers": "SELECT partition_key, producer_id, epoch, sequences, last_timestamp"
    f" FROM producers WHERE partition_key >> 20 {_LIVE} ORDER BY 1, 2",
    "runs": "SELECT partition_key, max(end_offset), sum(batch_count) FROM"
    " (SELECT partition_key, end_offset, batch_count FROM object_runs"
    " UNION ALL SELECT partition_key, end_offset, batch_count FROM wal_runs)"
    f" WHERE partition_key >> 20 {_LIVE} GROUP BY 1 ORDER BY 1",
    "groups": "SELECT group_id, generation FROM groups ORDER BY 1",
    "group offsets": "SELECT group_id, topic_id, partition, committed_offset FROM group_offsets"
    " WHERE topic_id IN (SELECT topic_id FROM topics) ORDER BY 1, 2, 3",
    "writers": "SELECT writer_id, batch_id FROM writers ORDER BY 1",
}
"""What a restored state has as its parent had it at the moment."""


async def restore_in_life(world: World, faults: Faults) -> None:
    """Lose the cluster at this moment, restore it, and let everybody go on."""
    chance = Chance(world.seed ^ STREAM)
    weather = world.slow_share, world.break_share
    # Who restores has put right what can be; the agents come no further than to be started.
    await faults.heal()
    world.slow_share, world.break_share = weather
    drivers = _lose(world)
    restoring = Restoring(world, chance)
    state = await _state(world, restoring, chance)
    for agent in world.agents:
        agent.is_lost = False
    if state is None:
        for agent in world.agents:
            agent.start()
    else:
        _become(world, state)
        await restoring.begin(state)
    # New processes of the drivers, which know nothing of what was under way.
    for driver in drivers:
        world.begin(type(driver)(world, f"{driver.name}-again"))


def _lose(world: World) -> list[Outside]:
    """All that runs beside the clients is gone, and so are the connections to it.

    Returns:
        The drivers that are to be started again.
    """
    world.note("the cluster is lost")
    world.era += 1
    for agent in world.agents:
        agent.crash()
        agent.is_lost = True
    drivers = [actor for actor in world.tasks if isinstance(actor, Outside)]
    for driver in drivers:
        world.end(driver)
    return [driver for driver in drivers if isinstance(driver, Compactor)]


async def _state(world: World, restoring: Restoring, chance: Chance) -> RestoredState | None:
    """The state to restore, of the archive's end or of a moment before; None: there is none that
    lies within the restore window."""
    lost_ms = world.clock.now_ms()
    window_ms = world.restore_window_ms
    moment = Moment()
    if chance.happens(0.4):
        moment = Moment(time_ms=lost_ms - chance.below(window_ms))
    error: Exception | None = None
    for _ in range(TRIES):
        try:
            state = await restoring.state_at(moment)
        except (RetryableError, NotFoundError, CorruptDataError) as failed:
            # A listing lags behind the archiver.
            error = failed
            await asyncio.sleep(RETRY_S)
            continue
        _check_moment(world, moment, state)
        age_ms = lost_ms - state.info.time_ms
        world.note(f"restored as of {state.parent_position}, {age_ms} ms before the loss")
        if age_ms >= window_ms:
            # The archiver had not reached the store for a while.
            world.history.count("not restored: past the window")
            return None
        return state
    if isinstance(error, CorruptDataError):
        end_ms = await restoring.archive_end_ms()
        world.note(f"the archive ends {lost_ms - end_ms} ms before the loss")
        if lost_ms - min(end_ms, moment.time_ms or end_ms) >= window_ms:
            # What that state names may be deleted by now, as the error says.
            world.history.count("not restored: past the window")
            return None
        world.history.violate("restored-another", f"{moment}: {error}")
    world.history.count("not restored: no archive")
    return None


def _check_moment(world: World, moment: Moment, state: RestoredState) -> None:
    """It is the last position up to the moment that the archive has."""
    world.oracle.catch_up()
    expected = state.archived_position
    if moment.time_ms is not None:
        expected = world.oracle.position_at(moment.time_ms, until=expected)
    if state.parent_position != expected:
        detail = f"{moment}: position {state.parent_position}, not {expected}"
        world.history.violate("restored-another", detail)


def _become(world: World, state: RestoredState) -> None:
    """Be the restored cluster, and know what it has lost."""
    truth = Oracle(world)
    truth.catch_up(until=state.parent_position)
    found = _rows(state.snapshot)
    for name, rows in truth.rows(_SAME).items():
        if rows != found[name]:
            changed = sorted(set(rows) ^ set(found[name]))
            world.history.violate("restored-another", f"{name}: {changed[:3]}")
    world.become(CLUSTER_ID)
    world.oracle = Oracle(world, snapshot=state.snapshot, time_ms=state.info.time_ms)
    world.oracle.cleaned.inherit(truth.cleaned)
    world.journal.on_trim = world.oracle.catch_up
    world.history.restored(world.oracle)
    world.history.count("restored in mid-life")
    for place in world.places:
        if world.oracle.bounds(place) is None:
            world.lost_places.add(place)
    world.places = [place for place in world.places if place not in world.lost_places]
    world.recent_acks = [
        (place, offset)
        for place, offset in world.recent_acks
        if offset in world.history.partitions[place].acked
    ]


def _rows(database: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(database)) as connection:
        return {name: connection.execute(select).fetchall() for name, select in _SAME.items()}
