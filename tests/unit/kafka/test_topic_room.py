"""How far above the limits of the cluster requests may come that are planned at the same moment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.topic_room import Creations
from penstock.state.commands import CreatePartitions, CreateTopic

LIMIT = 7
REQUEST_MAX = 3
SETTINGS = KafkaSettings(topics_max=LIMIT, partitions_max=LIMIT, create_partitions_max=REQUEST_MAX)


@dataclass
class Agent:
    """An agent: what it has applied of the journal, and what it has sent."""

    journal: list[tuple[int, asyncio.Future[None]]]
    topics_: list[int] = field(default_factory=list)
    position: int = 0
    running: set[asyncio.Task[bool]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.creations = Creations(self.as_view(), SETTINGS)

    def as_view(self) -> Any:
        agent = self

        class View:
            partition_count = property(lambda _: sum(agent.topics_))

            def topics(self) -> list[int]:
                return agent.topics_

            def topic_by_id(self, topic_id: bytes) -> Any:
                return SimpleNamespace(partitions=1)

        return View()

    async def create(self, *counts: int) -> bool:
        """One request: as the handlers do it. False: it is refused."""
        try:
            async with self.creations.sending([topic(count) for count in counts]):
                answered = [asyncio.get_running_loop().create_future() for _ in counts]
                self.journal += zip(counts, answered, strict=True)
                await asyncio.gather(*answered)
        except ItemError:
            return False
        return True

    def apply(self, *, mine: set[asyncio.Future[None]] | None = None) -> None:
        """Apply the next entry of the journal."""
        partitions, answered = self.journal[self.position]
        self.position += 1
        self.topics_.append(partitions)
        if mine is not None and answered in mine:
            answered.set_result(None)


def topic(partitions: int) -> CreateTopic:
    return CreateTopic(name=f"t{partitions}", topic_id=b"t" * 16, partitions=partitions)


async def turn() -> None:
    """Let every task go on as far as it can."""
    for _ in range(20):
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(done.set_result, None)
        await done


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, [1], [1, 2], [REQUEST_MAX]])),
    min_size=20,
    max_size=40,
)
"""An agent, and what it is asked to create; None: it applies the next entry."""


@pytest.mark.slow
@given(agent_count=st.sampled_from([1, 2, 3]), steps=STEPS)
async def test_n_agents_go_above_the_limit_by_n_minus_1_requests(
    agent_count: int, steps: list[tuple[int, list[int] | None]]
) -> None:
    """Each agent sends what one request may ask for at a time, and knows what it sent."""
    journal: list[tuple[int, asyncio.Future[None]]] = []
    agents = [Agent(journal) for _ in range(agent_count)]
    sent_by: list[set[asyncio.Future[None]]] = [set() for _ in agents]

    async def settle(number: int) -> None:
        before = len(journal)
        await turn()
        # Only this agent's tasks were woken, so what is new is its own.
        sent_by[number].update(answered for _, answered in journal[before:])

    for wanted, counts in steps:
        number = wanted % agent_count
        agent = agents[number]
        if counts is not None:
            agent.running.add(asyncio.create_task(agent.create(*counts)))
        elif agent.position < len(journal):
            agent.apply(mine=sent_by[number])
        await settle(number)
    for number, agent in enumerate(agents):
        while agent.position < len(journal):
            agent.apply(mine=sent_by[number])
            await settle(number)
    for agent in agents:
        for task in agent.running:
            task.cancel()
        await asyncio.gather(*agent.running, return_exceptions=True)
    total = sum(count for count, _ in journal)
    assert total <= LIMIT + (agent_count - 1) * REQUEST_MAX


async def test_the_bound_is_met_by_agents_that_look_at_the_same_moment() -> None:
    journal: list[tuple[int, asyncio.Future[None]]] = []
    agents = [Agent(journal, topics_=[LIMIT - REQUEST_MAX]) for _ in range(3)]
    tasks = [asyncio.create_task(agent.create(REQUEST_MAX)) for agent in agents for _ in range(2)]
    await turn()
    # Of each agent's two requests one is sent, and the other waits for its answer.
    assert LIMIT - REQUEST_MAX + sum(count for count, _ in journal) == LIMIT + 2 * REQUEST_MAX
    for agent in agents:
        while agent.position < len(journal):
            agent.apply()
    for _, answered in journal:
        answered.set_result(None)
    assert sorted(await asyncio.gather(*tasks)) == [False] * 3 + [True] * 3


async def test_a_request_that_waits_is_not_passed_by_short_ones() -> None:
    agent = Agent([])
    first = asyncio.create_task(agent.create(1))
    await turn()
    long = asyncio.create_task(agent.create(REQUEST_MAX))
    await turn()
    short = asyncio.create_task(agent.create(1))
    await turn()
    assert [count for count, _ in agent.journal] == [1]
    agent.journal[0][1].set_result(None)
    assert await first
    await turn()
    assert [count for count, _ in agent.journal] == [1, REQUEST_MAX]
    # One whose client goes away makes room as well.
    long.cancel()
    await turn()
    assert [count for count, _ in agent.journal] == [1, REQUEST_MAX, 1]
    agent.journal[2][1].set_result(None)
    assert await short


async def test_added_partitions_count_without_those_that_are_there() -> None:
    agent = Agent([], topics_=[LIMIT - 2])
    async with agent.creations.sending([CreatePartitions(topic_id=b"t" * 16, partitions=3)]):
        with pytest.raises(ItemError) as raised:
            async with agent.creations.sending([topic(1)]):
                pass
    assert raised.value.outcome.error is ErrorCode.POLICY_VIOLATION
    async with agent.creations.sending([topic(1)]):
        pass
