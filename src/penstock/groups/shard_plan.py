"""Decides which shards of groups an agent should claim. Pure.

Rendezvous hashing over the agents that are live and not being drained proposes one agent per
shard, the same on every agent that sees the same agents. A proposal doesn't make an owner: that
the claim's journal entry.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from penstock.placement.rendezvous import owner_of
from penstock.state.cluster_tables import GROUP_SHARDS
from penstock.state.rows import Agent, AgentStatus

_PROPOSALS_KEPT: Final = 16 * GROUP_SHARDS
"""Every tick asks of each shard, with the same candidates nearly always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """Shards that this agent should own and does not, by how soon it should claim them."""

    free: tuple[int, ...] = ()
    """Shards without an owner, or whose owner's epoch is over: their groups wait for an owner."""
    drained: tuple[int, ...] = ()
    """An agent's that is being drained: it serves them until they are claimed."""
    moved: tuple[int, ...] = ()
    """A live agent's that is not proposed any more, since others came: there is no hurry."""


@lru_cache(_PROPOSALS_KEPT)
def proposed_owner(shard: int, candidates: tuple[int, ...]) -> int | None:
    """The agent that should own a shard; None without candidates."""
    return owner_of(b"group shard %d" % shard, candidates)


def shard_candidates(agents: Iterable[Agent]) -> tuple[int, ...]:
    """Return the agents that may own shards: live ones, or else those that are being drained."""
    known = [agent for agent in agents if agent.live]
    staying = [agent for agent in known if agent.status is AgentStatus.LIVE]
    return tuple(agent.agent_id for agent in staying or known)


def plan_shards(
    me: int, agents: Iterable[Agent], owner_of_shard: Callable[[int], int | None]
) -> ShardPlan:
    """Decide which shards to claim.

    Args:
        me: this agent.
        agents: all that are known.
        owner_of_shard: the owner by shard; None: it has none.
    """
    by_id = {agent.agent_id: agent for agent in agents}
    candidates = shard_candidates(by_id.values())
    free: list[int] = []
    drained: list[int] = []
    moved: list[int] = []
    if me not in candidates:
        return ShardPlan()
    for shard in range(GROUP_SHARDS):
        owner_id = owner_of_shard(shard)
        if owner_id == me or proposed_owner(shard, candidates) != me:
            continue
        owner = None if owner_id is None else by_id.get(owner_id)
        if owner is None or not owner.live:
            free.append(shard)
        elif owner.status is AgentStatus.DRAINING:
            drained.append(shard)
        else:
            moved.append(shard)
    return ShardPlan(free=tuple(free), drained=tuple(drained), moved=tuple(moved))
