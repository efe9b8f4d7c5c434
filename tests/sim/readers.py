"""Those who read the simulated cluster's records, and tell the history what they saw."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.kafka.errors import ErrorCode
from sim.actors import UNKNOWN, Actor
from sim.connections import BrokenError
from sim.history import Place
from sim.identity import is_keyed

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World


CUT_OFF_S = 2.5


class Consumer(Actor):
    """Reads partitions by assignment and commits how far it came under a group of its own."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.group = f"simple-{name}"
        self._coordinator: Agent | None = None

    async def run(self) -> None:
        """Read until the world stops."""
        places = self.chance.shuffled(self.world.places)[:2]
        await asyncio.gather(*(self._follow(place) for place in places))

    async def _follow(self, place: Place) -> None:
        position = 0
        known = self.history.partitions
        epoch = known.leader_epoch
        while not self.world.stopping and not self.history.is_deleted(place[0]):
            began_s = self.loop.time()
            try:
                if epoch != known.leader_epoch:
                    position = await self.where_cut_off(self.agent(), place, position, epoch)
                    epoch = known.leader_epoch
                code, records, following, _, _ = await self.client.fetch(
                    self.agent(), *place, position
                )
            except BrokenError:
                self.move()
                await self.pause()
                continue
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.history.out_of_range(place, position, began_s, self.name)
                position = await self._earliest(place, position)
                continue
            if code:
                if code in UNKNOWN:
                    self.history.unknown(place, began_s, self.name)
                self.history.count(f"fetch {ErrorCode(code).name}")
                self.move()
                await self.pause()
                continue
            self.history.read(place, position, records, self.name, following=following)
            position = max(position, following)
            if self.chance.happens(self.world.profile.commit_share):
                await self._commit(place, position)
            if self.chance.happens(0.1):
                self.move()
            if self.chance.happens(0.05):
                position = await self._committed(place, position)
            await self.pause(0, 0.1)

    async def _earliest(self, place: Place, position: int) -> int:
        began_s = self.loop.time()
        try:
            code, offset = await self.client.list_offset(self.agent(), *place, latest=False)
        except BrokenError:
            self.move()
            return position
        if code:
            await self.pause()
            return position
        self.history.listed(place, offset, began_s, latest=False, who=self.name)
        return max(position, offset)

    async def find_coordinator(self) -> Agent | None:
        """Who coordinates its group, as far as the agent knows that is asked."""
        if self._coordinator is None:
            code, node_id = await self.client.find_coordinator(self.agent(), self.group)
            if code:
                return None
            self._coordinator = self.world.agent_by_id(node_id)
        return self._coordinator

    async def _commit(self, place: Place, offset: int) -> None:
        try:
            agent = await self.find_coordinator()
            if agent is None:
                return
            commit = self.history.committing(self.group, place, offset)
            code = await self.client.commit_offset(agent, self.group, place, offset)
        except BrokenError:
            self._coordinator = None
            self.move()
            return
        if code == ErrorCode.NONE:
            self.history.committed_offset(commit)
        else:
            self._coordinator = None
            self.history.commit_refused(commit)
            self.history.count(f"commit {ErrorCode(code).name}")

    async def _committed(self, place: Place, position: int) -> int:
        began_s = self.loop.time()
        try:
            agent = await self.find_coordinator()
            if agent is None:
                return position
            code, offset = await self.client.fetch_offset(agent, self.group, place)
        except BrokenError:
            self._coordinator = None
            self.move()
            return position
        if code:
            self._coordinator = None
            return position
        self.history.fetched_offset(self.group, place, offset, began_s, self.name)
        # Going on from there must not skip what was trimmed meanwhile unnoticed.
        return position


class Watcher(Actor):
    """Asks random agents for the ends of partitions, and reads acknowledged records again."""

    async def run(self) -> None:
        """Ask until the world stops."""
        while not self.world.stopping:
            await self.pause(0.02, 0.3)
            agent = self.chance.pick(self.world.agents)
            cleaned = [place for place in self.world.places if is_keyed(place)]
            try:
                if agent.is_cut_off(CUT_OFF_S):
                    self._ask_leaders(agent)
                if cleaned and self.chance.happens(0.4):
                    await self._read_anywhere(agent, self.chance.pick(cleaned))
                # A restore to a moment before the first topic leaves no place.
                elif self.world.places and self.chance.happens(0.5):
                    await self._list(agent, self.chance.pick(self.world.places))
                elif self.history.committed and self.chance.happens(0.4):
                    await self._ask_offset(agent)
                else:
                    await self._read_again(agent)
            except BrokenError:
                continue

    async def _list(self, agent: Agent, place: Place) -> None:
        latest = self.chance.happens(0.7)
        began_s = self.loop.time()
        code, offset = await self.client.list_offset(agent, *place, latest=latest)
        if code in UNKNOWN:
            self.history.unknown(place, began_s, self.name)
        elif code:
            self.history.count(f"list {ErrorCode(code).name}")
        elif not self.history.is_deleted(place[0]):
            self.history.listed(place, offset, began_s, latest=latest, who=self.name)

    def _ask_leaders(self, agent: Agent) -> None:
        """One that has long been without the journal sends clients to others, if it knows any."""
        broker = agent.broker
        assert broker is not None
        others = agent.others_in_its_view()
        if others and agent.agent_id in broker.nodes.leaders(agent.zone).candidates:
            self.history.violate("sent-to-a-cut-off", f"{agent} to itself too, beside {others}")
        self.history.count("asked a cut off agent")

    async def _ask_offset(self, agent: Agent) -> None:
        """Whoever takes itself for a group's coordinator has to know what was committed."""
        group, place = self.chance.pick(list(self.history.committed))
        began_s = self.loop.time()
        code, offset = await self.client.fetch_offset(agent, group, place)
        if not code:
            self.history.fetched_offset(group, place, offset, began_s, self.name)

    async def _read_again(self, agent: Agent) -> None:
        """At once, at another agent than the one that gave the acknowledgement."""
        if not self.world.recent_acks:
            return
        await self.read(agent, *self.chance.pick(self.world.recent_acks))

    async def _read_anywhere(self, agent: Agent, place: Place) -> None:
        """In a gap, perhaps, or in the middle of a batch."""
        end, _ = self.history.partitions[place].end.at(self.loop.time())
        await self.read(agent, place, self.chance.below(max(1, end)))

    async def records(self, agent: Agent, place: Place, start: int, end: int) -> dict[int, bytes]:
        """All that an agent gives of a range of offsets, however long that takes."""
        found: dict[int, bytes] = {}
        position = start
        while position < end:
            try:
                code, records, following, _, _ = await self.client.fetch(agent, *place, position)
            except BrokenError:
                code, records, following = 7, [], position
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                # Retention goes on.
                position += 1
            elif code or following == position:
                await asyncio.sleep(0.2)
            else:
                found.update(records)
                position = following
        return found

    async def read(self, agent: Agent, place: Place, offset: int) -> None:
        """Read once from an offset on. Raises: BrokenError."""
        began_s = self.loop.time()
        code, records, following, _, _ = await self.client.fetch(agent, *place, offset)
        if code in UNKNOWN:
            self.history.unknown(place, began_s, self.name)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.history.out_of_range(place, offset, began_s, self.name)
        elif not code:
            self.history.read(place, offset, records, self.name, following=following)
            self.history.count("read again" if records else "read again, nothing yet")
