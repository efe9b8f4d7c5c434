"""A driver knows this of a Spark session without asking the cluster."""

from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_UNKNOWN_SLOTS: Final = 16
"""Only the server of Spark Connect knows its executors; a few waves of more tasks than they can
take do no harm."""


def is_connect(session: "SparkSession") -> bool:
    """Whether it is a Spark Connect session, which has no SparkContext."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def slots_of(session: "SparkSession") -> int:
    """Return how many tasks run at a time, as far as the driver knows; at least 1."""
    if not is_connect(session):
        context: SparkContext = session.sparkContext
        return max(1, context.defaultParallelism)
    # Where a session of Connect is asked for a value that is not set, it answers the default.
    with suppress(ValueError):
        return int(session.conf.get("spark.default.parallelism", "") or _UNKNOWN_SLOTS)
    return _UNKNOWN_SLOTS
