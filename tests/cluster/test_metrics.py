"""An agent of a cluster shows every metric, as an embedded server does."""

from chaos.world import World
from support.metrics import families_without_start


def test_an_agent_shows_every_family_from_the_start(world: World) -> None:
    for agent in world.agents.agents:
        assert families_without_start(agent.http) == set()
