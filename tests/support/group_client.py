"""A member of a group, and a committer of offsets, that find their coordinator as clients do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from support.cluster_face import ClusterAgent, World

RETRY_S = 0.1
RETRIABLE = {14, 15, 16, 7, 5, 6, 3}
"""What clients of groups try again after looking for the coordinator."""


class LateError(Exception):
    """No agent has answered in time."""


async def within(agent: ClusterAgent, seconds: float, api: str, version: int, **fields: Any) -> Any:
    """One request with a client's patience: a stopped agent answers nobody."""
    if not agent.serves:
        raise LateError  # nothing listens there yet
    task = asyncio.ensure_future(agent.call(api, version, **fields))
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        # It may be carried out yet, as any request whose client has gone away.
        raise LateError
    return task.result()


class GroupClient:
    """One client of one group."""

    def __init__(self, world: World, group_id: str = "g", topic: str = "flights") -> None:
        self.world = world
        self.group_id = group_id
        self.topic = topic
        self.client_id = "client"
        self.member_id = ""
        self.generation = -1
        self.owner: ClusterAgent | None = None
        self._turn = 0

    def _any(self) -> ClusterAgent:
        alive = [agent for agent in self.world.agents if not agent.dead]
        self._turn += 1
        return alive[self._turn % len(alive)]

    async def find(self) -> ClusterAgent | None:
        """The coordinator, as some agent says; None: none does now."""
        try:
            found = await within(
                self._any(), 1.0, "find_coordinator", 3, key=self.group_id, key_type=0
            )
        except LateError:
            return None
        if found.error_code.value:
            assert found.error_code.value == 15
            return None
        for agent in reversed(self.world.agents):
            if agent.agent_id == found.node_id:
                assert (found.host, found.port) == (f"host{agent.agent_id}", 9092)
                return agent
        raise AssertionError(f"nobody is {found.node_id}")

    async def ask(
        self,
        api: str,
        version: int,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 1.0,
        **fields: Any,
    ) -> Any:
        """An answer that is not a retriable error of the whole request."""
        until_s = self.world.loop.time() + timeout_s
        while self.world.loop.time() < until_s:
            self.owner = self.owner or await self.find()
            if self.owner is not None:
                try:
                    answer = await within(
                        self.owner, patience_s, api, version, client_id=self.client_id, **fields
                    )
                except LateError:
                    pass
                else:
                    if first_error(answer) not in RETRIABLE:
                        return answer
                self.owner = None
            await asyncio.sleep(RETRY_S)
        raise AssertionError(f"{api} of {self.group_id} was not answered in {timeout_s} s")

    def part(self, api: str, version: int, kind: str, /, **fields: Any) -> Any:
        return self.world.agents[0].part(api, version, kind, **fields)

    async def join(self, *, session_s: float = 10.0) -> Any:
        """Become the (only) member of a generation, with everything assigned to it."""
        while True:
            joined = await self.ask(
                "join_group",
                5,
                patience_s=70.0,
                group_id=self.group_id,
                session_timeout=timedelta(seconds=session_s),
                rebalance_timeout=timedelta(seconds=60),
                member_id=self.member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=(
                    self.part(
                        "join_group", 5, "JoinGroupRequestProtocol", name="range", metadata=b"m"
                    ),
                ),
            )
            self.member_id = joined.member_id
            if joined.error_code.value == 79:
                continue
            if joined.error_code.value == 25:
                self.member_id = ""
                continue
            assert joined.error_code.value == 0, joined
            self.generation = joined.generation_id
            assignments = ()
            if joined.leader == self.member_id:
                assignments = tuple(
                    self.part(
                        "sync_group",
                        3,
                        "SyncGroupRequestAssignment",
                        member_id=member.member_id,
                        assignment=b"all of %d" % self.generation,
                    )
                    for member in joined.members
                )
            synced = await self.ask(
                "sync_group",
                3,
                patience_s=70.0,
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
                assignments=assignments,
            )
            if synced.error_code.value == 0:
                assert synced.assignment == b"all of %d" % self.generation
                return synced
            # What a client does about any of them: join again, without an id that isn't known.
            assert synced.error_code.value in (22, 25, 27), synced
            if synced.error_code.value == 25:
                self.member_id = ""

    async def heartbeat(self) -> int:
        answer = await self.ask("heartbeat", 3, **self._membership())
        return int(answer.error_code.value)

    async def heartbeat_at(self, agent: ClusterAgent) -> int:
        """At an agent, whether it coordinates the group or not."""
        answer = await agent.call("heartbeat", 3, **self._membership())
        return int(answer.error_code.value)

    def _membership(self) -> dict[str, Any]:
        return {
            "group_id": self.group_id,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
        }

    def commit_fields(self, offset: int) -> dict[str, Any]:
        partition = self.part(
            "offset_commit",
            7,
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topic = self.part(
            "offset_commit", 7, "OffsetCommitRequestTopic", name=self.topic, partitions=(partition,)
        )
        return {
            "group_id": self.group_id,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "topics": (topic,),
        }

    async def commit(self, offset: int, *, timeout_s: float = 60.0) -> int:
        """The error of the commit, 0 when the offset is stored."""
        answer = await self.ask(
            "offset_commit", 7, timeout_s=timeout_s, patience_s=5.0, **self.commit_fields(offset)
        )
        return int(answer.topics[0].partitions[0].error_code.value)

    async def committed(self) -> int:
        topic = self.part(
            "offset_fetch", 5, "OffsetFetchRequestTopic", name=self.topic, partition_indexes=(0,)
        )
        answer = await self.ask(
            "offset_fetch", 5, patience_s=5.0, group_id=self.group_id, topics=(topic,)
        )
        return int(answer.topics[0].partitions[0].committed_offset)


def first_error(answer: Any) -> int:
    """Of the whole request, or of its first partition."""
    error = getattr(answer, "error_code", None)
    if error is not None and error.value:
        return int(error.value)
    for topic in getattr(answer, "topics", ()):
        for partition in topic.partitions:
            return int(partition.error_code.value)
    return 0
