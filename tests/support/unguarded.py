"""Runs `penstock` as an agent that waits for its journal's answers for minutes, and that never
takes what it knows of it for too old to coordinate groups: apply alone keeps these whole."""

from functools import partial

from penstock.groups import shards
from penstock.replica.postgres import journal

PATIENT_S = 300

shards.ShardSettings = partial(  # type: ignore[misc, assignment]
    shards.ShardSettings, stale_ms=1000 * PATIENT_S
)
journal.PostgresSettings = partial(  # type: ignore[misc, assignment]
    journal.PostgresSettings, append_timeout_s=PATIENT_S, call_timeout_s=PATIENT_S
)

from penstock.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
