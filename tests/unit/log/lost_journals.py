"""Journals that came back older, and what their agents note."""

from pathlib import Path

from penstock.log.history.lost_histories import LostHistories
from penstock.state.answers import Done
from penstock.state.commands import CloseHistory
from support.archives import archive_of, write
from support.cluster_rig import Cluster, ClusterAgent
from support.simulated.inline_executor import InlineExecutor

LOST_ROWS = 4


async def lose(cluster: Cluster, position: int) -> None:
    """The journal comes back without its last rows; an older replica goes on and grows past."""
    for agent in cluster.agents:
        await agent.close(0)
    cluster.agents.clear()
    cluster.journal.come_back_older(position - LOST_ROWS)
    survivor = await cluster.agent(2)
    await write(survivor, 8, topic="u")
    assert survivor.order.position > position


def lost_of(agent: ClusterAgent, folder: Path | None = None) -> LostHistories:
    """An agent's part, as the app makes it."""
    cluster = agent.cluster
    return LostHistories(
        journal=agent.journal,
        archive=archive_of(cluster, f"lost{agent.agent_id}"),
        order=agent.order,
        view=agent.log._view,
        queries=lambda: agent.queries,
        folder=folder or cluster.folder / f"agent{agent.agent_id}",
        scratch=cluster.folder / f"lostscratch{agent.agent_id}",
        executor=InlineExecutor(cluster.random),
    )


async def close_history(agent: ClusterAgent, history: int) -> None:
    position = agent.order.position
    command = CloseHistory(history=history, seen_position=position, give_up=True)
    assert await agent.log.commit([command]) == [Done()]
