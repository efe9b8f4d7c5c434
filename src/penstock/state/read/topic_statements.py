"""The statement of `Queries` about topics, and how files of older versions need it."""

from typing import Final

TOPICS: Final = (
    "SELECT topic_key, topic_id, name, partitions, configs, replication_factor"
    " FROM topics ORDER BY topic_key"
)

_FACTOR_VERSION: Final = 7
"""The format version that brought topics' replication factors."""


def topic_statements_of_version(version: int) -> dict[str, str]:
    """Return what to execute in place of statements, in a file of an older version."""
    if version >= _FACTOR_VERSION:
        return {}
    return {TOPICS: TOPICS.replace(", replication_factor", ", 0")}
