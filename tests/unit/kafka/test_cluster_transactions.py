"""Transactions in a cluster: any agent serves any transactional id, whatever it has heard of it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.state.cluster_tables import group_shard
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.cluster_face import ClusterAgent, World
from support.waiting import until
from unit.kafka.handlers.dialogue import Dialogue

LAG_S = 0.7


class Client:
    """A producer's dialogue with one agent, by a connection that is opened when this is made."""

    def __init__(self, agent: ClusterAgent, *, like: Client | None = None) -> None:
        self.agent = agent
        self.dialogue = Dialogue(agent.broker)
        if like is not None:
            self.dialogue.first_id = like.dialogue.first_id

    async def ask(self, line: str) -> str:
        work: Coroutine[Any, Any, str] = self.dialogue.answer(line.split())
        return await self.agent.on_node(work)


@pytest.fixture
async def agents(world: World) -> list[ClusterAgent]:
    """Two agents, with the level of transactions on, and a topic."""
    agents = await world.cluster(1, 2, level_max=FEATURE_LEVEL_MAX)
    await until(lambda: all(agent.view.feature_level == FEATURE_LEVEL_MAX for agent in agents))
    await agents[0].topic("t")
    await until(lambda: agents[1].view.topic("t") is not None)
    return agents


async def test_a_transaction_goes_on_at_another_agent(agents: list[ClusterAgent]) -> None:
    first = Client(agents[0])
    assert await first.ask("init x v4") == "none 0/0"
    assert await first.ask("add x 0/0 t-0 v3") == "t-0 none"
    await agents[1].order.confirm_head()
    second = Client(agents[1], like=first)
    assert await second.ask("add x 0/0 t-1 v3") == "t-1 none"
    assert await second.ask("end x 0/0 commit v3") == "none"
    assert await second.ask("init x v4") == "none 0/1"
    assert await first.ask("end x 0/0 commit v3") == "producer_fenced"


async def test_a_late_end_by_another_agent_does_not_reach_the_next_transaction(
    agents: list[ClusterAgent],
) -> None:
    late = Client(agents[1])
    first = Client(agents[0])
    assert await first.ask("init x v4") == "none 0/0"
    late.dialogue.first_id = first.dialogue.first_id
    for _ in range(2):
        assert await first.ask("add x 0/0 t-0 v3") == "t-0 none"
        closed = await late.ask("end x 0/0 commit v3")
        assert closed == "the connection is closed without an answer"
        assert await first.ask("end x 0/0 abort v3") == "none"


async def test_a_living_client_is_served_once_the_agent_has_caught_up(
    agents: list[ClusterAgent],
) -> None:
    first = Client(agents[0])
    assert await first.ask("init x v4") == "none 0/0"
    agents[1].journal.lag_s = LAG_S
    assert await first.ask("add x 0/0 t-0 v3") == "t-0 none"
    answers = []
    while answers[-1:] != ["none"]:
        # Each by a connection of its own, as a client whose connection was closed has it.
        answers.append(await Client(agents[1], like=first).ask("end x 0/0 commit v3"))
    assert set(answers[:-1]) <= {"the connection is closed without an answer"}
    assert len(answers) > 1


async def test_offsets_go_to_the_coordinator_of_their_group(agents: list[ClusterAgent]) -> None:
    owner = agents[0].view.shard_owner(group_shard("g"))
    coordinator, other = sorted(agents, key=lambda agent: agent.agent_id != owner)
    away = Client(other)
    assert await away.ask("init x v5") == "none 0/0"
    here = Client(coordinator, like=away)
    line = "offsets x 0/0 g t-0=5 v5"
    assert await away.ask(line) == "t-0 not_coordinator"
    assert await here.ask(line) == "t-0 none"
    assert await away.ask("end x 0/0 commit v5") == "none 0/1"
    await coordinator.order.confirm_head()
    assert await here.ask("committed g t-0") == "none 5"
