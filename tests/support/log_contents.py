"""All that a data directory holds, as plain values to compare two directories by."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.log.fetch.whole_runs import read_wal_run
from penstock.model.ids import PartitionKey
from penstock.objects import open_store
from penstock.recovery.verify import VerifyReport, verify
from penstock.state.read.queries import Queries
from penstock.system.files import PosixDevice
from penstock.wal import WalReader

# What a log's state is to clients: all but where bytes lie and which agents there have been.
TABLES = {
    "topics": "topic_key, topic_id, name, partitions, configs",
    "partitions": "partition_key, log_start, next_offset, bytes",
    "producers": "partition_key, producer_id, epoch, sequences, last_timestamp",
    "groups": "group_id, generation, protocol_type, empty_since_ms, state",
    "group_offsets": "group_id, topic_id, partition, committed_offset, metadata, commit_ms",
}

MEMBERS_VERSION = 6
"""The format version from which on groups have members of their own."""

SHARES_VERSION = 7
"""The format version from which on there are share groups."""


def contents(data: Path) -> dict[str, Any]:
    """Every row that clients can see, and the bytes of every partition from its first run on."""
    found: dict[str, Any] = {}
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection:
        for table, columns in TABLES.items():
            found[table] = connection.execute(
                f"SELECT {columns} FROM {table} ORDER BY {columns}"
            ).fetchall()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version >= MEMBERS_VERSION:
            members = connection.execute(
                "SELECT group_id, kind, member_id, group_members.state FROM group_members"
                " JOIN groups USING (group_id) ORDER BY group_id, member_id"
            ).fetchall()
            found |= _shares(connection, version)
            # What was made of an older version says nothing about them, and is never made again.
            if members:
                found["members"] = members
        found["meta"] = dict(
            connection.execute(
                "SELECT name, value FROM meta WHERE name IN ('cluster_id', 'cluster_configs')"
            ).fetchall()
        )
    found["bytes"] = asyncio.run(_bytes(data))
    return found


def _shares(connection: sqlite3.Connection, version: int) -> dict[str, Any]:
    if version < SHARES_VERSION:
        return {}
    rows = connection.execute(
        "SELECT group_id, topic_id, partition, start_offset, state FROM share_partitions"
        " ORDER BY group_id, topic_id, partition"
    ).fetchall()
    return {"shares": rows} if rows else {}


async def _bytes(data: Path) -> dict[PartitionKey, bytes]:
    store = open_store(data / "objects")
    found = {}
    with (
        closing(Queries(data / "metadata.sqlite")) as queries,
        closing(WalReader(PosixDevice(data))) as wal,
    ):
        for key, _, _ in queries.heads():
            parts = []
            for run in queries.runs_from(key, 0, limit=1_000_000):
                if run.generation:
                    parts.append(bytes(read_wal_run(wal, run, None)))
                else:
                    end = run.position + run.length
                    parts.append(bytes(await store.get_range(run.object_key, run.position, end)))
            found[key] = b"".join(parts)
    return found


def verify_path(data: Path) -> VerifyReport:
    """Verify a directory as the command does."""

    async def run() -> VerifyReport:
        device = PosixDevice(data)
        with (
            closing(Queries(data / "metadata.sqlite")) as queries,
            closing(WalReader(device)) as wal,
        ):
            store = open_store(data / "objects")
            return await verify(queries=queries, store=store, wal=wal, device=device)

    return asyncio.run(run())
