"""Members of a streams group of the simulated cluster (KIP-1071), and what must hold of their
tasks: no two members run one at a time, and in the end each is run.

A member does what Kafka Streams does: it names its topology when it joins, runs what it is told to,
says what it runs, and gives all up when it is fenced. One that hears nothing for nearly a session
gives all up, too: its coordinator may have given its tasks to others by then.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.groups.errors import GroupError
from penstock.kafka.wire import schema
from sim.actors import Actor
from sim.connections import BrokenError
from sim.wire import error_name

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

GROUP = "streams"
LEAVING = -1
SESSION_S = 45.0
UNHEARD_S_MAX = 0.9 * SESSION_S
REBALANCE = timedelta(seconds=10)
NOT_SAID = timedelta(milliseconds=-1)
NAMES_OF_ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")


class Tasker(Actor):
    """One member after the other, in the same place."""

    def __init__(self, world: World, name: str, topic: str, process: str) -> None:
        super().__init__(world, name)
        self.topic = topic
        self._process = process
        self._coordinator: Agent | None = None
        self._lives = 0
        self._begin_life()

    def _begin_life(self) -> None:
        self._lives += 1
        self.member = f"{self.name}-{self._lives}"
        self._give_up()

    def _give_up(self) -> None:
        self._epoch = 0
        self._heard_s = 0.0
        self._runs({})

    def _runs(self, roles: dict[str, tuple[Any, ...]]) -> None:
        """Run these tasks alone."""
        tasks, name = self.world.streams_tasks, self.name
        for task in [task for task, runner in tasks.items() if runner == name]:
            del tasks[task]
        self._roles = roles
        for one in roles.get("active_tasks", ()):
            for number in one.partitions:
                task = one.subtopology_id, number
                if task in tasks:
                    self.history.violate(
                        "two-tasks", f"{task} is run by {tasks[task]} and {self.member}"
                    )
                tasks[task] = name

    async def run(self) -> None:
        """Live, die or leave, and live again, until the world stops."""
        while not self.world.stopping:
            await self.step()
            if self.chance.happens(0.03):
                if self.chance.happens(0.7):
                    await self._leave()
                self._begin_life()
            await self.pause(0.05, 0.4)
        await self._leave()
        self._give_up()

    async def _leave(self) -> None:
        self._runs({})
        if self._coordinator is not None and self._epoch:
            try:
                await self._beat(self._coordinator, LEAVING)
            except BrokenError:
                self._coordinator = None
                self.move()

    async def step(self) -> None:
        """One heartbeat."""
        began_s = self.loop.time()
        if self._epoch and began_s - self._heard_s > UNHEARD_S_MAX:
            self._begin_life()
        try:
            agent = await self._find()
            if agent is None:
                return
            answer = await self._beat(agent, self._epoch)
        except BrokenError:
            self._coordinator = None
            self.move()
            return
        code = int(answer.error_code)
        if code:
            self.history.count(f"streams heartbeat {error_name(code)}")
            if code in {GroupError.UNKNOWN_MEMBER_ID, GroupError.FENCED_MEMBER_EPOCH}:
                self._give_up()
            elif code == GroupError.GROUP_ID_NOT_FOUND:
                self._begin_life()
            else:
                self._coordinator = None
                self.move()
            return
        if self._epoch and self.loop.time() - self._heard_s > UNHEARD_S_MAX:
            # The answer took so long that its tasks may be another one's.
            self._begin_life()
            return
        for status in answer.status or ():
            self.history.count(f"streams status {status.status_code}")
        self._epoch, self._heard_s = answer.member_epoch, began_s
        if answer.active_tasks is not None:
            self._runs({name: getattr(answer, name) for name in NAMES_OF_ROLES})
            self.history.count("streams tasks")

    async def _find(self) -> Agent | None:
        if self._coordinator is None:
            code, node_id = await self.client.find_coordinator(self.agent(), GROUP)
            if code:
                self.move()
                return None
            self._coordinator = self.world.agent_by_id(node_id)
        return self._coordinator

    async def _beat(self, agent: Agent, epoch: int) -> Any:
        joins = epoch == 0

        def fill(types: Any) -> Any:
            subtopology = schema.build(
                types.Subtopology,
                subtopology_id="0",
                source_topics=(self.topic,),
                # A changelog keeps its partitions, and this topic gets more.
                state_changelog_topics=(),
                repartition_source_topics=(),
                copartition_groups=(),
            )
            roles = {
                name: tuple(
                    types.TaskIds(subtopology_id=one.subtopology_id, partitions=one.partitions)
                    for one in self._roles.get(name, ())
                )
                for name in NAMES_OF_ROLES
            }
            return schema.build(
                types.StreamsGroupHeartbeatRequest,
                group_id=GROUP,
                member_id=self.member,
                member_epoch=epoch,
                endpoint_information_epoch=0,
                rebalance_timeout=REBALANCE if joins else NOT_SAID,
                topology=(
                    schema.build(types.Topology, epoch=0, subtopologies=(subtopology,))
                    if joins
                    else None
                ),
                process_id=self._process if joins else None,
                client_tags=None,
                task_offsets=None,
                task_end_offsets=None,
                **roles,
            )

        return await self.client.request(agent, "streams_group_heartbeat", fill)


async def check_tasks(world: World, topic: str, count: int) -> None:
    """Once all is well, each task has a member; there is one task per partition of the topic,
    which may have got more."""
    if world.history.is_deleted(topic):
        return
    members = [Tasker(world, f"final-tasks{number}", topic, f"final{number}") for number in (0, 1)]

    wanted = {("0", number) for number in range(count)}

    async def run() -> None:
        while not wanted <= set(world.streams_tasks):
            for member in members:
                await member.step()
            await asyncio.sleep(0.5)

    await world.within(world.heal_s, world.on_node("final-tasks", run()), "tasks have no member")
