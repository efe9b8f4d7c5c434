"""Rows of the state that no part of a server asks for in this form."""

from __future__ import annotations

from penstock.state.read.queries import OffsetRow, Queries


def condemned_objects(queries: Queries) -> list[tuple[str, int]]:
    """Return (key, journal time in ms) of condemned objects, the oldest first."""
    return queries._execute(
        "SELECT key, condemned_ms FROM objects WHERE condemned_position IS NOT NULL"
        " ORDER BY condemned_position, object_id"
    )


def group_offsets(queries: Queries, group_id: str) -> dict[tuple[bytes, int], OffsetRow]:
    """Return a group's committed offsets by (topic id, partition)."""
    return queries.group_offsets_page(group_id, (b"", -1), limit=1 << 31)
