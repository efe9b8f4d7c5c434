"""Bringing a state of an older format version to this one: tables alone, never their meaning."""

import sqlite3
from typing import Final

from penstock.state.schema import (
    CLEAN,
    DIGESTS,
    GROUP_SHARDS,
    LEADER_EPOCHS,
    LEFTOVERS,
    LOST_HISTORIES,
    LOST_RANGES,
    PIPELINE_JOBS,
    REBUILT_RANGES,
    TABLE_PROGRESS,
    WALS,
    WRITERS,
)

_STEPS: Final[dict[int, tuple[str, ...]]] = {
    # 1 to 2: the cluster. Columns are added at the end, with what a new file's rows would have.
    1: (
        "ALTER TABLE agents ADD COLUMN peer TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE agents ADD COLUMN level_max INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE agents ADD COLUMN status INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE objects ADD COLUMN raw INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE objects ADD COLUMN origin TEXT NOT NULL DEFAULT ''",
        WALS,
        GROUP_SHARDS,
    ),
    # 2 to 3: the pipeline.
    2: (PIPELINE_JOBS, WRITERS, TABLE_PROGRESS, CLEAN),
    # 3 to 4: leader epochs. An older state is of epoch 0, which needs no rows.
    3: (LEADER_EPOCHS,),
    # 4 to 5: integrity. Of what an older release stored no sums are known.
    4: (
        "ALTER TABLE wal_runs ADD COLUMN sum INTEGER",
        "ALTER TABLE object_runs ADD COLUMN sum INTEGER",
        LEFTOVERS,
        LOST_HISTORIES,
        DIGESTS,
        LOST_RANGES,
        REBUILT_RANGES,
    ),
}


def migrate(connection: sqlite3.Connection, from_version: int) -> None:
    """Execute the steps from a version to this release's, inside the caller's transaction."""
    for version in sorted(_STEPS):
        if version >= from_version:
            for statement in _STEPS[version]:
                connection.execute(statement)
