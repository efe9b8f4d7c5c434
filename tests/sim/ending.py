"""The end of a run: all agents agree with the journal and serve all that was acknowledged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.kafka.errors import ErrorCode
from sim.connections import BrokenError
from sim.history import ViolationError
from sim.identity import is_keyed
from sim.readers import Watcher

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.history import Place
    from sim.world import World


async def final_check(world: World) -> None:
    """All agents agree with the journal and serve everything that was acknowledged."""
    for agent in world.agents:
        await world.within(world.heal_s, agent.ready.wait(), f"{agent} doesn't start")
    reader = Watcher(world, "final")
    readers = world.chance.shuffled(world.agents)[:2]
    for place in sorted(world.history.partitions):
        if world.history.is_deleted(place[0]) or _is_lost(world, place):
            continue
        for agent in readers:
            await world.within(
                world.heal_s,
                world.on_node("final", read_all(world, reader, agent, place)),
                f"{place} can't be read from {agent}",
            )
    world.oracle.catch_up()
    missing = world.oracle.missing_objects()
    if missing:
        world.history.violate("missing-object", f"{missing}")
    world.oracle.check_runs()
    world.oracle.check_counts()
    await compare_replicas(world)


def _is_lost(world: World, place: Place) -> bool:
    """Whether a restore has lost a partition, of which a late answer may have been noted since."""
    world.oracle.catch_up()
    if place not in world.lost_places or world.oracle.bounds(place) is not None:
        return False
    if world.history.partitions[place].acked:
        world.history.violate("lost-write", f"{place} was acknowledged, and there is no such thing")
    return True


async def read_all(world: World, reader: Watcher, agent: Agent, place: Place) -> None:
    """Read a partition whole, and look for all that was acknowledged."""
    client, history = reader.client, world.history
    began_s = world.loop.time()
    start = await _listed(reader, agent, place, latest=False)
    history.listed(place, start, began_s, latest=False, who=f"final reader at {agent}")
    end = await _listed(reader, agent, place, latest=True)
    history.listed(place, end, began_s, latest=True, who=f"final reader at {agent}")
    position = start
    seen: dict[int, bytes] = {}
    while position < end:
        began_s = world.loop.time()
        try:
            code, records, following, _, _ = await client.fetch(agent, *place, position)
        except BrokenError:
            await asyncio.sleep(0.2)
            continue
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            history.out_of_range(place, position, began_s, "final reader")
            # Retention goes on.
            start = await _listed(reader, agent, place, latest=False)
            position = max(position, start)
            continue
        if code or following == position:
            await asyncio.sleep(0.2)
            continue
        history.read(place, position, records, f"final reader at {agent}", following=following)
        seen.update(records)
        position = following
    known = history.partitions[place]
    for offset, value in sorted(known.acked.items()):
        if offset < start or world.oracle.cleaned.is_gone(place, offset):
            continue
        if seen.get(offset) != value:
            history.violate("lost-write", f"{place} {offset} {value!r}: {seen.get(offset)!r}")
    if is_keyed(place):
        come_back = world.oracle.cleaned.come_back(place, seen)
        if come_back:
            history.violate("come-back", f"{place} from {start} on: {come_back}")
    last: dict[bytes, int] = {}
    for _, value in sorted(seen.items()):
        producer, number, _ = value.split(b"/", 2)
        if int(number) <= last.get(producer, -1):
            history.violate("order", f"{place}: {value!r} after {last[producer]}")
        last[producer] = int(number)
    history.count("read whole")


async def _listed(reader: Watcher, agent: Agent, place: Place, *, latest: bool) -> int:
    while True:
        try:
            code, offset = await reader.client.list_offset(agent, *place, latest=latest)
        except BrokenError:
            code, offset = 7, -1
        if not code:
            return offset
        await asyncio.sleep(0.2)


async def compare_replicas(world: World) -> None:
    """Each replica, once it is where the journal is, holds what a replay of it gives."""
    for agent in world.agents:
        position, dump = await _caught_up(world, agent)
        expected = world.oracle.dump()
        if dump != expected:
            first = next(
                (
                    (ours, theirs)
                    for ours, theirs in zip(expected, dump, strict=False)
                    if ours != theirs
                ),
                (len(expected), len(dump)),
            )
            world.history.violate("replica-differs", f"{agent} at {position}: {first}")
    world.history.count("replicas compared")


async def position_if_right(world: World, agent: Agent) -> int | None:
    """Where a replica is, if it holds what a replay of the journal gives; None: it doesn't."""
    await world.within(world.heal_s, agent.ready.wait(), f"{agent} doesn't start")
    position, dump = await _caught_up(world, agent)
    return position if dump == world.oracle.dump() else None


async def _caught_up(world: World, agent: Agent) -> tuple[int, list[bytes]]:
    """A replica's position and dump, when it and the oracle are where the journal is."""
    # Heartbeats go on, so it is caught at a moment at which it is where the journal is.
    for _ in range(10_000):
        world.oracle.catch_up()
        if agent.replica_position() == world.oracle.position:
            position, dump = agent.dump()
            if position == world.oracle.position:
                return position, dump
        await asyncio.sleep(0.001)
    position = agent.replica_position()
    raise world.violated(
        ViolationError("stuck-replica", f"{agent} at {position} of {world.oracle.position}")
    )
