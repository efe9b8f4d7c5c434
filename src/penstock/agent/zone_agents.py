"""Look up the addresses of other agents in the view. Pure."""

from penstock.placement.zones import ZONE_LABEL
from penstock.state.read.view import StateView


class ZoneAgents:
    """The live agents of a zone and their addresses for peers; read again when agents change."""

    def __init__(self, view: StateView, zone: str) -> None:
        self._view = view
        self._zone = zone
        self._generation = -1
        self._found: dict[int, str] = {}

    def __call__(self) -> dict[int, str]:
        """Return the addresses by agent."""
        if self._generation != self._view.agents_generation:
            self._generation = self._view.agents_generation
            self._found = {
                agent.agent_id: agent.peer
                for agent in self._view.agents()
                if agent.live and agent.peer and agent.labels.get(ZONE_LABEL, "") == self._zone
            }
        return self._found


def peer_of(view: StateView, agent: int) -> str | None:
    """The address for peers of a live agent; None: it doesn't live."""
    found = view.agent(agent)
    return found.peer if found is not None and found.live else None
