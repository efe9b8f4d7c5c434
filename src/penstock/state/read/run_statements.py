"""The statements of `Queries` about runs and objects, and how files of older versions need them."""

from typing import Final

from penstock.state.read.pipeline_queries import RUN_ROWS

_WAL_RUN: Final = (
    "partition_key, base_offset, end_offset, generation, '', position, length, max_timestamp,"
    " batch_count, 0, 0, '',"
    # A restore leaves nothing in a WAL, but markers are rows that outlive it.
    " coalesce(CASE WHEN generation >= 0 THEN"
    " (SELECT value FROM meta WHERE name = 'leader_epoch') ELSE"
    " (SELECT max(epoch) FROM leader_epochs AS e WHERE e.partition_key = wal_runs.partition_key"
    " AND e.start_offset <= wal_runs.base_offset) END, 0), sum"
)
_OBJECT_RUN: Final = (
    "r.partition_key, r.base_offset, r.end_offset, 0, o.key, r.position, r.length,"
    " r.max_timestamp, r.batch_count, o.bytes, o.raw, o.origin,"
    " max(o.raw - 1, 0), r.sum"
)

# Runs of a partition don't overlap, so the run that holds an offset is the last that begins at or
# before it. One statement for both tables: a segment stored between two would hide a run.
RUNS_FROM: Final = f"""
SELECT * FROM (
    SELECT {_OBJECT_RUN} FROM object_runs AS r JOIN objects AS o USING (object_id)
    WHERE r.partition_key = :key AND r.end_offset > :offset AND r.base_offset >= coalesce(
        (SELECT max(base_offset) FROM object_runs
            WHERE partition_key = :key AND base_offset <= :offset),
        :offset)
    ORDER BY r.base_offset LIMIT :limit)
UNION ALL
SELECT * FROM (
    SELECT {_WAL_RUN} FROM wal_runs
    WHERE partition_key = :key AND end_offset > :offset AND base_offset >= coalesce(
        (SELECT max(base_offset) FROM wal_runs
            WHERE partition_key = :key AND base_offset <= :offset),
        :offset)
    ORDER BY base_offset LIMIT :limit)
ORDER BY 2 LIMIT :limit
"""  # noqa: S608

# What lies below is a leftover that a later entry clears.
_START: Final = "(SELECT log_start FROM partitions WHERE partition_key = :key)"

FIRST_RUN_AT_TIME: Final = f"""
SELECT * FROM (
    SELECT {_OBJECT_RUN} FROM object_runs AS r JOIN objects AS o USING (object_id)
    WHERE r.partition_key = :key AND r.max_timestamp >= :time_ms AND r.end_offset > {_START}
    ORDER BY r.base_offset LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT {_WAL_RUN} FROM wal_runs
    WHERE partition_key = :key AND max_timestamp >= :time_ms AND end_offset > {_START}
    ORDER BY base_offset LIMIT 1)
ORDER BY 2 LIMIT 1
"""  # noqa: S608

RUN_WITH_MAX_TIMESTAMP: Final = f"""
SELECT * FROM (
    SELECT {_OBJECT_RUN} FROM object_runs AS r JOIN objects AS o USING (object_id)
    WHERE r.partition_key = :key AND r.end_offset > {_START} AND (r.max_timestamp < :newest
        OR r.max_timestamp = :newest AND r.base_offset > :base)
    ORDER BY r.max_timestamp DESC, r.base_offset LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT {_WAL_RUN} FROM wal_runs
    WHERE partition_key = :key AND end_offset > {_START} AND (max_timestamp < :newest
        OR max_timestamp = :newest AND base_offset > :base)
    ORDER BY max_timestamp DESC, base_offset LIMIT 1)
ORDER BY 8 DESC, 2 LIMIT 1
"""  # noqa: S608

RUNS_OF_OBJECT: Final = (
    f"SELECT {_OBJECT_RUN} FROM object_runs AS r JOIN objects AS o USING (object_id)"  # noqa: S608
    " WHERE o.key = ? ORDER BY r.position"
)
WAL_RUNS: Final = (
    f"SELECT {_WAL_RUN} FROM wal_runs WHERE generation >= ? AND generation < ?"  # noqa: S608
    " ORDER BY generation, position"
)
WAL_GENERATIONS: Final = (
    "SELECT DISTINCT generation FROM wal_runs WHERE generation >= ? AND generation < ?"
)
MARKERS_UP_TO: Final = (
    f"SELECT {_WAL_RUN} FROM json_each(?) AS named CROSS JOIN wal_runs"  # noqa: S608
    " ON partition_key = json_extract(named.value, '$[0]')"
    " AND base_offset <= json_extract(named.value, '$[1]')"
    " WHERE generation < 0 ORDER BY partition_key, base_offset LIMIT ?"
)
MARKERS_PAST: Final = (
    f"SELECT {_WAL_RUN} FROM wal_runs WHERE generation < 0"  # noqa: S608
    " AND (partition_key, base_offset) > (?, ?) ORDER BY partition_key, base_offset LIMIT ?"
)
FIRST_RUN_IN_A_WAL: Final = (
    "SELECT base_offset FROM wal_runs WHERE partition_key = ? AND generation >= 0"
    " ORDER BY base_offset LIMIT 1"
)
OBJECTS: Final = (
    "SELECT key, bytes, live_runs, condemned_ms, raw, origin FROM objects WHERE key > ?"
    " ORDER BY key LIMIT ?"
)

_WITHOUT_SUMS: Final = (
    (", coalesce(sum, -1)", ", -1"),
    (", r.sum", ", NULL"),
    (", sum", ", NULL"),
)
"""Replacements for a file of version 4. Opening such a file to write upgrades it;
verifying a directory or a backup only reads it."""

_OF_RUNS: Final = (
    RUNS_FROM,
    FIRST_RUN_AT_TIME,
    RUN_WITH_MAX_TIMESTAMP,
    RUNS_OF_OBJECT,
    WAL_RUNS,
)
_SUMS_VERSION: Final = 5


def statements_of_version(version: int) -> dict[str, str]:
    """Return what to execute in place of statements, in a file of an older version."""
    if version >= _SUMS_VERSION:
        return {}
    return {statement: _without_sums(statement) for statement in (*_OF_RUNS, *RUN_ROWS)}


def _without_sums(statement: str) -> str:
    for columns, instead in _WITHOUT_SUMS:
        statement = statement.replace(columns, instead)
    return statement
