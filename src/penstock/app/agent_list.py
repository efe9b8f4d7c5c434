"""`GET /v1/agents` lists the agents of a cluster."""

from typing import Final

from penstock.app.parts import Parts
from penstock.membership.membership import Membership
from penstock.security.listener import LISTENERS_LABEL, parse_endpoints
from penstock.state.cluster_tables import GROUP_SHARDS

HTTP_LABEL: Final = "penstock.http"
"""An agent publishes its HTTP port in this label, for tools. An agent without the label serves HTTP
at its peer address: older releases do, and servers without a port for peers."""


def list_agents(parts: Parts, membership: Membership) -> list[dict[str, object]]:
    """List all agents in the form of `GET /v1/agents`."""
    queries = parts.queries()
    wal_runs: dict[int, int] = {}
    for wal in queries.wals():
        count = len(queries.wal_runs(wal.wal_key))
        wal_runs[wal.agent] = wal_runs.get(wal.agent, 0) + count
    listed = []
    for agent in parts.view.agents():
        labels = dict(agent.labels)
        owned = sum(
            parts.view.shard_owner(shard) == agent.agent_id for shard in range(GROUP_SHARDS)
        )
        listed.append(
            {
                "id": agent.agent_id,
                "status": agent.status.name.lower(),
                "kafka": agent.endpoint,
                "http": labels.pop(HTTP_LABEL, agent.peer),
                "peer": agent.peer,
                "listeners": parse_endpoints(labels.pop(LISTENERS_LABEL, "")),
                "labels": labels,
                "shards": owned,
                "wal_runs": wal_runs.get(agent.agent_id, 0),
                "version": agent.software,
                "epoch": agent.epoch,
                "silent_s": round(membership.silent_s(agent.agent_id), 3),
            }
        )
    return listed
