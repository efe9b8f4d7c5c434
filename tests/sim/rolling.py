"""Members of one consumer group that take another protocol in each life: classic or KIP-848."""

from __future__ import annotations

import struct
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.groups.subscription import read_assignment, write_assignment
from penstock.kafka.errors import ErrorCode
from penstock.kafka.wire import schema
from sim.commits import Commit
from sim.connections import BrokenError
from sim.member import Member
from sim.wire import error_name

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

NOT_SAID = timedelta(milliseconds=-1)
REBALANCE_S = 2.0
LEAVING = -1
CLOSED = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
"""After these a member asks the same again, perhaps another agent."""


class RollingMember(Member):
    """One client process after the other, in the same place."""

    def __init__(self, world: World, name: str, group: str, topic: str, partitions: int) -> None:
        super().__init__(world, name, group, topic, partitions)
        named = topic.encode()
        # Version 0, without user data.
        self._metadata = struct.pack(f">hih{len(named)}si", 0, 1, len(named), named, -1)
        self._lives = 0
        self._begin_life()

    def _begin_life(self) -> None:
        self._lives += 1
        self._is_consumer = self.chance.happens(0.5)
        self.member, self.generation = "", -1
        self._topic_id: uuid.UUID | None = None
        self._share: set[int] = set()
        """The partitions that it reads, in KIP-848."""
        self._wants: set[int] = set()
        self._positions: dict[int, int] = {}
        if self._is_consumer:
            self.member, self.generation = f"{self.name}-{self._lives}", 0

    async def run(self) -> None:
        """Live, die or leave, and live again, until the world stops."""
        while not self.world.stopping:
            try:
                if self._is_consumer:
                    await self._consume()
                else:
                    share = await self._join()
                    if share is not None:
                        await self._work(share)
                if not self.member:
                    self._begin_life()
                await self.pause(0.05, 0.3)
            except BrokenError:
                self._coordinator = None
                self.move()
                await self.pause()

    def _packed(self, share: list[int]) -> bytes:
        return write_assignment({self.topic: share})

    def _unpacked(self, assignment: bytes) -> list[int]:
        found = read_assignment(assignment)
        assert found is not None
        return list(found.partitions.get(self.topic, ()))

    def _assigned(self, leader: str, share: list[int], life: int) -> None:
        del leader  # In a consumer group there is none.
        self.history.assigned_to(self.group, self.generation, "", share, self.member, life=life)

    def _committed(self, commit: Commit) -> None:
        super()._committed(commit)
        self.history.committed_in_order(commit, self.history.life_of(self.group))

    # -- KIP-848 -----------------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Send heartbeats, read and commit, until an answer fails or this life is over."""
        says_all = True
        while not self.world.stopping:
            agent = await self._find()
            if agent is None:
                return
            life = self.history.life_of(self.group)
            # What it must give up goes first.
            self._share &= self._wants
            self._forget_others()
            answer = await self._beat(agent, self.generation, says_all=says_all)
            code = int(answer.error_code)
            if code in CLOSED:
                self._failed(code)
                return
            if code:
                self.history.count(f"consumer {error_name(code)}")
                self.member = ""
                return
            says_all = False
            self.generation = answer.member_epoch
            if answer.assignment is not None:
                self._take(answer.assignment, life)
            if not await self._read(agent):
                return
            if self.chance.happens(0.06):
                if self.chance.happens(0.5):
                    await self._beat(agent, LEAVING, says_all=False)
                self.member = ""
                await self.pause(0.5, 3)
                return
            await self.pause(0.1, 0.4)

    def _take(self, assignment: Any, life: int) -> None:
        numbers: list[int] = []
        for topic in assignment.topic_partitions:
            self._topic_id = topic.topic_id
            numbers += topic.partitions
        self._wants = set(numbers)
        self._assigned("", numbers, life)
        if self._share <= self._wants:
            self._share = set(numbers)
        self._forget_others()
        self.history.count("assigned by the server")

    def _forget_others(self) -> None:
        """Forget where it was in partitions that it reads no more: another member goes on there."""
        self._positions = {
            number: at for number, at in self._positions.items() if number in self._share
        }

    async def _read(self, agent: Agent) -> bool:
        """One step of each partition. Returns: whether the member lives still."""
        for number in sorted(self._share & self._wants):
            place = (self.topic, number)
            if number not in self._positions:
                began_s = self.loop.time()
                code, offset = await self.client.fetch_offset(agent, self.group, place)
                if code:
                    self._failed(code)
                    return False
                self.history.fetched_offset(self.group, place, offset, began_s, self.name)
                self._positions[number] = max(0, offset)
            await self._step(agent, place, self._positions)
            if not self.member:
                return False
        return True

    async def _beat(self, agent: Agent, epoch: int, *, says_all: bool) -> Any:
        joins = epoch == 0
        is_said = joins or says_all

        def fill(types: Any) -> Any:
            owned = schema.build(
                types.TopicPartitions, topic_id=self._topic_id, partitions=tuple(self._share)
            )
            return schema.build(
                types.ConsumerGroupHeartbeatRequest,
                group_id=self.group,
                member_id=self.member,
                member_epoch=epoch,
                instance_id=None,
                rack_id=None,
                rebalance_timeout=timedelta(seconds=REBALANCE_S) if is_said else NOT_SAID,
                subscribed_topic_names=(self.topic,) if is_said else None,
                subscribed_topic_regex=None,
                server_assignor=None,
                topic_partitions=(owned,) if self._share else (),
            )

        return await self.client.request(agent, "consumer_group_heartbeat", fill)
