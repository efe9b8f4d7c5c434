"""Runs `penstock` as an agent that waits for its journal's answers for minutes, and that never
takes what it knows of it for too old to coordinate groups: apply alone keeps these whole."""

from functools import partial
from typing import Any

from penstock.groups import shards
from penstock.groups.shards import ShardSettings
from penstock.replica.postgres import journal
from penstock.replica.postgres.settings import PostgresSettings

PATIENT_S = 300

patched: tuple[Any, Any] = (shards, journal)
patched[0].ShardSettings = partial(ShardSettings, stale_ms=1000 * PATIENT_S)
patched[1].PostgresSettings = partial(
    PostgresSettings, append_timeout_s=PATIENT_S, call_timeout_s=PATIENT_S
)

from penstock.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
