"""Members of a share group of the simulated cluster, and what must hold of their records.

A member does what client libraries do: it looks for the group's coordinator, which owns the share
partitions, keeps a session there, and says of most records what became of them.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.groups.errors import GroupError
from penstock.kafka.wire import schema
from sim.actors import Actor
from sim.connections import BrokenError
from sim.history import Place
from sim.identity import identity_of
from sim.wire import error_name
from support import raw_wire

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

GROUP = "shared"
GROUP_RESOURCE = 32
ACCEPT, RELEASE, REJECT = 1, 2, 3
LEAVING = -1
WAIT = timedelta(milliseconds=200)
RECORDS_MAX = 20
QUIET_ROUNDS = 8
"""Rounds without a record after which nothing is left to be given."""
Range = tuple[int, int]


class Shared:
    """What is known of the records of a share group."""

    def __init__(self) -> None:
        self.finished: dict[tuple[Place, int], float] = {}
        """When it was answered that a record is done with."""
        self.given: set[tuple[Place, int]] = set()


class Sharer(Actor):
    """One member after the other, in the same place."""

    def __init__(self, world: World, name: str, topic: str, shared: Shared) -> None:
        super().__init__(world, name)
        self.topic = topic
        self._shared = shared
        self._coordinator: Agent | None = None
        self._lives = 0
        self._begin_life()

    def _begin_life(self) -> None:
        self._lives += 1
        self.member = f"{self.name}-{self._lives}"
        self._epoch = 0
        self._session_epoch = 0
        self._topic_id: uuid.UUID | None = None
        self._assigned: tuple[int, ...] = ()
        self.gave_s = -1.0
        """When it was last given a record."""

    async def run(self) -> None:
        """Live, die or leave, and live again, until the world stops."""
        while not self.world.stopping:
            await self.step()
            if self.chance.happens(0.04):
                if self.chance.happens(0.5):
                    await self._leave()
                self._begin_life()
            await self.pause(0.05, 0.3)
        await self._leave()

    async def _leave(self) -> None:
        if self._coordinator is not None:
            try:
                await self._beat(self._coordinator, LEAVING)
            except BrokenError:
                self._lose()

    def _lose(self) -> None:
        """The connection, and with it the session, is gone."""
        self._coordinator = None
        self._session_epoch = 0
        self.move()

    async def step(self) -> None:
        """One heartbeat, one fetch, and what is said of its records."""
        try:
            agent = await self._find()
            if agent is not None and await self._lives_on(agent) and self._assigned:
                await self._fetch(agent)
        except BrokenError:
            self._lose()

    async def _find(self) -> Agent | None:
        if self._coordinator is None:
            code, node_id = await self.client.find_coordinator(self.agent(), GROUP)
            if code:
                self.move()
                return None
            self._coordinator = self.world.agent_by_id(node_id)
        return self._coordinator

    def _failed(self, code: int, what: str) -> None:
        self.history.count(f"{what} {error_name(code)}")
        self._session_epoch = 0
        if code in {GroupError.UNKNOWN_MEMBER_ID, GroupError.FENCED_MEMBER_EPOCH}:
            self._begin_life()
        else:
            self._coordinator = None
            self.move()

    async def _lives_on(self, agent: Agent) -> bool:
        answer = await self._beat(agent, self._epoch)
        if int(answer.error_code):
            self._failed(int(answer.error_code), "share heartbeat")
            return False
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            numbers: list[int] = []
            for topic in answer.assignment.topic_partitions:
                self._topic_id = topic.topic_id
                numbers += topic.partitions
            self._assigned = tuple(sorted(numbers))
            self._session_epoch = 0
        return True

    async def _beat(self, agent: Agent, epoch: int) -> Any:
        return await self.client.request(
            agent,
            "share_group_heartbeat",
            lambda types: schema.build(
                types.ShareGroupHeartbeatRequest,
                group_id=GROUP,
                member_id=self.member,
                member_epoch=epoch,
                rack_id=None,
                subscribed_topic_names=(self.topic,) if epoch == 0 else None,
            ),
        )

    async def _fetch(self, agent: Agent) -> None:
        began_s = self.loop.time()
        opens = self._session_epoch == 0

        def fill(types: Any) -> Any:
            parts = tuple(
                schema.build(types.FetchPartition, partition_index=one, acknowledgement_batches=())
                for one in self._assigned
            )
            topic = schema.build(types.FetchTopic, topic_id=self._topic_id, partitions=parts)
            return schema.build(
                types.ShareFetchRequest,
                group_id=GROUP,
                member_id=self.member,
                share_session_epoch=self._session_epoch,
                max_wait=WAIT,
                min_bytes=1,
                max_bytes=20_000,
                max_records=RECORDS_MAX,
                batch_size=RECORDS_MAX,
                topics=(topic,) if opens else (),
                forgotten_topics_data=(),
            )

        answer = await self.client.request(agent, "share_fetch", fill)
        if int(answer.error_code):
            self._failed(int(answer.error_code), "share fetch")
            return
        self._session_epoch += 1
        said: dict[int, list[tuple[Range, int]]] = {}
        for topic in answer.responses:
            for part in topic.partitions:
                if int(part.error_code):
                    self._failed(int(part.error_code), "share fetch")
                    return
                acquired = [(one.first_offset, one.last_offset) for one in part.acquired_records]
                self._given(part.partition_index, acquired, bytes(part.records or b""), began_s)
                for one in acquired:
                    kind = self._verdict()
                    if kind:
                        said.setdefault(part.partition_index, []).append((one, kind))
        if said:
            await self.pause(0, 0.2)
            await self._acknowledge(agent, said)

    def _verdict(self) -> int:
        """What it says of records; 0: nothing."""
        drawn = self.chance.below(20)
        if self.world.stopping or drawn < 14:
            return ACCEPT
        return {14: REJECT, 15: 0, 16: 0}.get(drawn, RELEASE)

    def _given(self, number: int, acquired: list[Range], data: bytes, began_s: float) -> None:
        place = (self.topic, number)
        records, _ = raw_wire.read_batches(data, 0)
        found = [
            (offset, identity_of(record))
            for offset, record in records
            if any(first <= offset <= last for first, last in acquired)
        ]
        for offset, _ in found:
            finished_s = self._shared.finished.get((place, offset))
            if finished_s is not None and finished_s < began_s:
                self.history.violate(
                    "shared-again",
                    f"{self.name} {place} offset {offset}: done with at {finished_s:.3f}, given"
                    f" to a fetch of {began_s:.3f}",
                )
            self._shared.given.add((place, offset))
            self.gave_s = self.loop.time()
        self.history.shared(place, found, self.name)

    async def _acknowledge(self, agent: Agent, said: dict[int, list[tuple[Range, int]]]) -> None:
        def fill(types: Any) -> Any:
            parts = tuple(
                schema.build(
                    types.AcknowledgePartition,
                    partition_index=number,
                    acknowledgement_batches=tuple(
                        schema.build(
                            types.AcknowledgementBatch,
                            first_offset=first,
                            last_offset=last,
                            acknowledge_types=(kind,),
                        )
                        for (first, last), kind in sorted(ranges)
                    ),
                )
                for number, ranges in said.items()
            )
            topic = schema.build(types.AcknowledgeTopic, topic_id=self._topic_id, partitions=parts)
            return schema.build(
                types.ShareAcknowledgeRequest,
                group_id=GROUP,
                member_id=self.member,
                share_session_epoch=self._session_epoch,
                topics=(topic,),
            )

        answer = await self.client.request(agent, "share_acknowledge", fill)
        if int(answer.error_code):
            self._failed(int(answer.error_code), "share acknowledge")
            return
        self._session_epoch += 1
        for topic in answer.responses:
            for part in topic.partitions:
                code = int(part.error_code)
                if code:
                    self.history.count(f"acknowledge {error_name(code)}")
                    continue
                place = (self.topic, part.partition_index)
                for (first, last), kind in said[part.partition_index]:
                    if kind == RELEASE:
                        continue
                    self.history.count("records done with")
                    for offset in range(first, last + 1):
                        self._shared.finished.setdefault((place, offset), self.loop.time())


async def prepare_shares(world: World, topic: str, count: int) -> None:
    """Let the group begin with the first record, and make its members."""
    shared = world.shared = Shared()
    asker = Sharer(world, "asks-shares", topic, shared)

    async def configure() -> None:
        await asker.until_answered(
            lambda agent: _configure(asker, agent, "share.auto.offset.reset", "earliest")
        )

    await world.within(world.heal_s, world.on_node(asker.name, configure()), "configure")
    world.actors += [Sharer(world, f"s{number}", topic, shared) for number in range(count)]


async def _configure(asker: Sharer, agent: Agent, name: str, value: str) -> tuple[int, None]:
    answer = await asker.client.request(
        agent,
        "incremental_alter_configs",
        lambda types: schema.build(
            types.IncrementalAlterConfigsRequest,
            resources=(
                schema.build(
                    types.AlterConfigsResource,
                    resource_type=GROUP_RESOURCE,
                    resource_name=GROUP,
                    configs=(
                        schema.build(
                            types.AlterableConfig, name=name, config_operation=0, value=value
                        ),
                    ),
                ),
            ),
            validate_only=False,
        ),
    )
    return int(answer.responses[0].error_code), None


async def check_shares(world: World, topic: str) -> None:
    """Once all is well, each record that was acknowledged to its producer is given to somebody."""
    shared = world.shared
    assert shared is not None
    reader = Sharer(world, "final-shares", topic, shared)

    async def read() -> None:
        quiet = 0
        while quiet < QUIET_ROUNDS:
            before = len(shared.given)
            known = reader.gave_s
            await reader.step()
            is_quiet = len(shared.given) == before and reader.gave_s == known
            quiet = quiet + 1 if is_quiet and _left(world, topic) == [] else 0
            await asyncio.sleep(0.5)

    await world.within(world.heal_s, world.on_node(reader.name, read()), "records are not given")


def _left(world: World, topic: str) -> list[tuple[Place, int]]:
    """Records that were given to nobody, and are there."""
    shared = world.shared
    assert shared is not None
    if world.history.is_deleted(topic):
        return []
    return [
        (place, offset)
        for place, partition in world.history.partitions.items()
        if place[0] == topic
        for offset in partition.acked
        if offset >= partition.start_wanted and (place, offset) not in shared.given
    ]
