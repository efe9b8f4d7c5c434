"""A journal and the state that it makes, in one SQLite database; for any state machine."""

from penstock.replica.applied import Applied
from penstock.replica.dump import canonical_dump, state_digest
from penstock.replica.journal_files import JournalFiles
from penstock.replica.machine import StateMachine
from penstock.replica.replica import Replica
from penstock.replica.snapshot import (
    JournalEntry,
    SnapshotInfo,
    restore_snapshot,
    verify_snapshot,
)

__all__ = [
    "Applied",
    "JournalEntry",
    "JournalFiles",
    "Replica",
    "SnapshotInfo",
    "StateMachine",
    "canonical_dump",
    "restore_snapshot",
    "state_digest",
    "verify_snapshot",
]
