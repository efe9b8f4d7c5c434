"""Agents, WALs and group shards: small tables, held whole in memory and written at once.

They change a few times an hour, and apply reads them at each commit.
"""

import sqlite3
from typing import Final

import msgspec
from crc32c import crc32c

from penstock.state.rows import Agent, AgentStatus, Shard, Wal

GROUP_SHARDS: Final = 64
"""Into how many shards groups hash."""
NO_AGENT: Final = 0
"""Agent ids begin at 1."""

SELECT_AGENTS: Final = (
    "SELECT agent, epoch, status, labels, software, endpoint, peer, level_max FROM agents"
    " ORDER BY agent"
)
SELECT_WALS: Final = "SELECT wal_key, wal_id, agent, epoch, last_generation FROM wals"
SELECT_SHARDS: Final = "SELECT shard, shard_epoch, agent, epoch FROM group_shards ORDER BY shard"

_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_encode_json = msgspec.json.Encoder(order="deterministic").encode


def group_shard(group_id: str) -> int:
    """The shard that a group belongs to."""
    return crc32c(group_id.encode()) % GROUP_SHARDS


def agent_of_row(row: tuple[int, int, int, str, str, str, str, int]) -> Agent:
    """A row of `SELECT_AGENTS` as a value."""
    agent_id, epoch, status, labels, software, endpoint, peer, level_max = row
    return Agent(
        agent_id=agent_id,
        epoch=epoch,
        status=AgentStatus(status),
        labels=_decode_labels(labels),
        software=software,
        endpoint=endpoint,
        peer=peer,
        level_max=level_max,
    )


class ClusterTables:
    """Rows of `agents`, `wals` and `group_shards`, by key. Dropped by a rollback."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Reads them all."""
        self._execute = connection.execute
        self.agents: dict[int, Agent] = {}
        for row in self._execute(SELECT_AGENTS):
            self.agents[row[0]] = agent_of_row(row)
        self.wals: dict[int, Wal] = {}
        self.wals_by_id: dict[bytes, Wal] = {}
        for row in self._execute(SELECT_WALS):
            self._keep_wal(Wal(*row))
        self.shards: dict[int, Shard] = {
            row[0]: Shard(*row) for row in self._execute(SELECT_SHARDS)
        }

    # -- agents --------------------------------------------------------------------------------

    def save_agent(self, agent: Agent) -> None:
        """Insert or replace."""
        self.agents[agent.agent_id] = agent
        self._execute(
            "INSERT OR REPLACE INTO agents (agent, epoch, labels, software, endpoint, peer,"
            " level_max, status) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                agent.agent_id,
                agent.epoch,
                _encode_json(agent.labels).decode(),
                agent.software,
                agent.endpoint,
                agent.peer,
                agent.level_max,
                int(agent.status),
            ),
        )

    def remove_agent(self, agent_id: int) -> None:
        """Delete it with the WALs that it owns."""
        del self.agents[agent_id]
        self._execute("DELETE FROM agents WHERE agent = ?", (agent_id,))
        for wal in [wal for wal in self.wals.values() if wal.agent == agent_id]:
            del self.wals[wal.wal_key], self.wals_by_id[wal.wal_id]
            self._execute("DELETE FROM wals WHERE wal_key = ?", (wal.wal_key,))

    # -- WALs ----------------------------------------------------------------------------------

    def save_wal(self, wal: Wal) -> None:
        """Insert or replace."""
        self._keep_wal(wal)
        self._execute(
            "INSERT INTO wals VALUES (?, ?, ?, ?, ?) ON CONFLICT (wal_key) DO UPDATE SET"
            " agent = excluded.agent, epoch = excluded.epoch,"
            " last_generation = excluded.last_generation",
            (wal.wal_key, wal.wal_id, wal.agent, wal.epoch, wal.last_generation),
        )

    def _keep_wal(self, wal: Wal) -> None:
        self.wals[wal.wal_key] = self.wals_by_id[wal.wal_id] = wal

    # -- shards --------------------------------------------------------------------------------

    def shard_epoch(self, shard: int) -> int:
        """0 for one that was never claimed."""
        found = self.shards.get(shard)
        return 0 if found is None else found.shard_epoch

    def save_shard(self, shard: Shard) -> None:
        """Insert or replace."""
        self.shards[shard.shard] = shard
        self._execute(
            "INSERT OR REPLACE INTO group_shards VALUES (?, ?, ?, ?)",
            (shard.shard, shard.shard_epoch, shard.agent, shard.epoch),
        )
