"""What is told of a cluster's agents: the body of `GET /v1/agents`."""

from typing import Any

from penstock.app.parts import Parts
from penstock.cluster.membership import Membership
from penstock.metadata.cluster_tables import GROUP_SHARDS


def list_agents(parts: Parts, membership: Membership) -> list[dict[str, Any]]:
    """All agents, as `GET /v1/agents` gives them."""
    queries = parts.queries()
    wal_runs: dict[int, int] = {}
    for wal in queries.wals():
        count = len(queries.wal_runs(wal.wal_key))
        wal_runs[wal.agent] = wal_runs.get(wal.agent, 0) + count
    listed = []
    for agent in membership.status():
        owned = sum(parts.view.shard_owner(shard) == agent["id"] for shard in range(GROUP_SHARDS))
        listed.append(
            {
                "id": agent["id"],
                "status": agent["status"],
                "kafka": agent["endpoint"],
                "http": agent["peer"],
                "labels": agent["labels"],
                "shards": owned,
                "wal_runs": wal_runs.get(agent["id"], 0),
                "version": agent["software"],
                "epoch": agent["epoch"],
                "silent_s": agent["silent_s"],
            }
        )
    return listed
