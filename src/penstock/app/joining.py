"""A server that is one of several answers HTTP calls about its cluster's agents."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.app.agent_list import list_agents
from penstock.app.parts import Parts

if TYPE_CHECKING:
    from penstock.app.http.agents_api import AgentSources


def agent_sources(
    parts: Parts,
    *,
    take_over: Callable[[str], Awaitable[int]] | None = None,
    without_secret: bool = False,
) -> "AgentSources":
    """Return the sources of the HTTP calls about agents."""
    # Imported after the Kafka port, which clients wait for.
    from penstock.app.http.agents_api import AgentSources

    assert parts.agent.company is not None
    membership = parts.agent.company.membership
    assert membership is not None

    async def drain(agent: int, draining: bool) -> None:  # noqa: FBT001 - the port's
        await membership.drain(agent, draining=draining)

    return AgentSources(
        agents=partial(list_agents, parts, membership),
        drain=drain,
        remove=membership.remove,
        take_over=take_over,
        without_secret=without_secret,
    )
