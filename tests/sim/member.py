"""Members of a consumer group of the simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kafka.errors import ErrorCode
from sim.actors import Actor
from sim.commits import Commit
from sim.connections import BrokenError
from sim.history import Place
from sim.wire import CLASSIC_METADATA, error_name

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World


class Member(Actor):
    """A member of a consumer group by the classic protocol; its leader deals partitions out."""

    def __init__(self, world: World, name: str, group: str, topic: str, partitions: int) -> None:
        super().__init__(world, name)
        self.group = group
        self.topic = topic
        self.partitions = partitions
        self.member = ""
        self.generation = -1
        self._coordinator: Agent | None = None
        self._metadata = CLASSIC_METADATA

    async def run(self) -> None:
        """Join, read, commit, join again, until the world stops."""
        while not self.world.stopping:
            try:
                share = await self._join()
                if share is None:
                    await self.pause(0.05, 0.3)
                else:
                    await self._work(share)
            except BrokenError:
                self._coordinator = None
                self.move()
                await self.pause()

    async def _find(self) -> Agent | None:
        if self._coordinator is None:
            code, node_id = await self.client.find_coordinator(self.agent(), self.group)
            if code:
                self.move()
                return None
            self._coordinator = self.world.agent_by_id(node_id)
        return self._coordinator

    def _failed(self, code: int) -> None:
        self.history.count(f"group {error_name(code)}")
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member = ""
        if code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
            self._coordinator = None
            self.move()

    async def _join(self) -> list[int] | None:
        agent = await self._find()
        if agent is None:
            return None
        answer = await self.client.join(agent, self.group, self.member, self._metadata)
        code = int(answer.error_code)
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member = answer.member_id
            answer = await self.client.join(agent, self.group, self.member, self._metadata)
            code = int(answer.error_code)
        if code:
            self._failed(code)
            return None
        self.member, self.generation = answer.member_id, answer.generation_id
        self.history.count("joined")
        life = self.history.life_of(self.group)
        leader = answer.leader
        shares: dict[str, bytes] = {}
        if leader == self.member:
            names = [member.member_id for member in answer.members]
            dealt: dict[str, list[int]] = {}
            for number in range(self.partitions):
                dealt.setdefault(names[number % len(names)], []).append(number)
            shares = {name: self._packed(share) for name, share in dealt.items()}
        answer = await self.client.sync(agent, self.group, self.member, self.generation, shares)
        if int(answer.error_code):
            self._failed(int(answer.error_code))
            return None
        share = self._unpacked(bytes(answer.assignment))
        self._assigned(leader, share, life)
        return share

    def _packed(self, share: list[int]) -> bytes:
        """What a leader gives to one member."""
        return bytes(share)

    def _unpacked(self, assignment: bytes) -> list[int]:
        """The inverse of `_packed`."""
        return list(assignment)

    def _assigned(self, leader: str, share: list[int], life: int) -> None:
        self.history.assigned_to(self.group, self.generation, leader, share, self.member, life=life)

    async def _work(self, share: list[int]) -> None:
        """Read and commit until the group rebalances."""
        positions: dict[int, int] = {}
        known = self.history.partitions
        epoch = known.leader_epoch
        while not self.world.stopping:
            agent = self._coordinator
            if agent is None:
                return
            for number in share:
                place = (self.topic, number)
                if number in positions and epoch != known.leader_epoch:
                    at = positions[number]
                    positions[number] = await self.where_cut_off(agent, place, at, epoch)
                if number not in positions:
                    began_s = self.loop.time()
                    code, offset = await self.client.fetch_offset(agent, self.group, place)
                    if code:
                        self._failed(code)
                        return
                    self.history.fetched_offset(self.group, place, offset, began_s, self.name)
                    positions[number] = max(0, offset)
                await self._step(agent, place, positions)
            epoch = known.leader_epoch
            code = await self.client.heartbeat(agent, self.group, self.member, self.generation)
            if code:
                self._failed(code)
                return
            if self.chance.happens(0.03):
                # A client that is gone without a word, and comes back as a new one.
                self.member = ""
                await self.pause(0.5, 3)
                return
            await self.pause(0.1, 0.4)

    async def _step(self, agent: Agent, place: Place, positions: dict[int, int]) -> None:
        began_s = self.loop.time()
        at = positions[place[1]]
        code, records, following, _, _ = await self.client.fetch(agent, *place, at, 50)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.history.out_of_range(place, at, began_s, self.name)
            code, start = await self.client.list_offset(agent, *place, latest=False)
            if not code:
                positions[place[1]] = max(at, start)
            return
        if code:
            return
        self.history.read(place, at, records, self.name)
        if following == at:
            return
        positions[place[1]] = following
        commit = self.history.committing(self.group, place, following, generation=self.generation)
        code = await self.client.commit_offset(
            agent,
            self.group,
            place,
            following,
            generation=self.generation,
            member=self.member,
        )
        if code:
            self.history.commit_refused(commit)
            self._failed(code)
        else:
            self._committed(commit)

    def _committed(self, commit: Commit) -> None:
        self.history.committed_offset(commit)
