"""Runs `penstock` as an agent that waits for its journal's answers for minutes, and that never
takes what it knows of it for too old to coordinate groups: apply alone keeps these whole."""

from dataclasses import dataclass
from typing import Any

from penstock.groups import shards
from penstock.groups.shards import ShardSettings
from penstock.replica.postgres import journal
from penstock.replica.postgres.settings import PostgresSettings

PATIENT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _NeverStale(ShardSettings):
    stale_ms: int = 1000 * PATIENT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patient(PostgresSettings):
    append_timeout_s: float = PATIENT_S
    call_timeout_s: float = PATIENT_S


patched: tuple[Any, Any] = (shards, journal)
patched[0].ShardSettings = _NeverStale
patched[1].PostgresSettings = _Patient

from penstock.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
