"""Bringing a state of an older format version to this one: tables alone, never their meaning."""

import sqlite3
from typing import Final

from penstock.replica.database import refuse_older
from penstock.state.schema import (
    ABORTED,
    ACLS,
    API_KEYS,
    CREDENTIALS,
    DIGESTS,
    FORMAT_VERSION,
    GROUP_CONFIGS,
    GROUP_KIND,
    GROUP_MEMBERS,
    JOB_PRINCIPAL,
    LEFTOVERS,
    LOST_HISTORIES,
    LOST_RANGES,
    MARKERS,
    OLDEST_VERSION,
    ONGOING,
    OPEN_OFFSETS,
    PENDING_GROUPS,
    PENDING_OFFSETS,
    QUOTAS,
    REBUILT_RANGES,
    REPLICATION_FACTOR,
    SHARE_PARTITIONS,
    SHARE_TOPICS,
    TRANSACTION_GROUPS,
    TRANSACTION_PARTITIONS,
    TRANSACTIONS,
)

_STEPS: Final[dict[int, tuple[str, ...]]] = {
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
    # 5 to 6: members of groups. All groups are classic until then.
    5: (f"ALTER TABLE groups ADD COLUMN {GROUP_KIND}", GROUP_MEMBERS),
    # 6 to 7: transactions, share groups, access rules, credentials, API keys, quotas, configs of
    # groups, and how many replicas of a topic clients are shown.
    6: (
        f"ALTER TABLE topics ADD COLUMN {REPLICATION_FACTOR}",
        MARKERS,
        TRANSACTIONS,
        ONGOING,
        TRANSACTION_PARTITIONS,
        OPEN_OFFSETS,
        TRANSACTION_GROUPS,
        PENDING_OFFSETS,
        PENDING_GROUPS,
        ABORTED,
        SHARE_PARTITIONS,
        SHARE_TOPICS,
        ACLS,
        GROUP_CONFIGS,
        CREDENTIALS,
        API_KEYS,
        f"ALTER TABLE pipeline_jobs ADD COLUMN {JOB_PRINCIPAL}",
        QUOTAS,
    ),
}


def migrate(connection: sqlite3.Connection, from_version: int) -> None:
    """Execute the steps from a version to this release's, inside the caller's transaction.

    Raises:
        InvalidRequestError: the version is below the oldest that is opened.
    """
    refuse_older("the state", from_version, oldest=OLDEST_VERSION, newest=FORMAT_VERSION)
    for version in sorted(_STEPS):
        if version >= from_version:
            for statement in _STEPS[version]:
                connection.execute(statement)
