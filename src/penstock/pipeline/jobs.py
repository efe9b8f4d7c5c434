"""The jobs that `penstock pipeline run` keeps going: compaction, tables, their maintenance.

What a job does is `penstock.pipeline.job_runs`, which needs what only an engine process loads.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from penstock.pipeline.api_messages import TopicState
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.table_plan import has_table
from penstock.pipeline.tables.settings import CatalogSettings


class JobKind(StrEnum):
    """Kinds of jobs."""

    COMPACTION = "compaction"
    TABLE = "table"
    MAINTENANCE = "maintenance"


BULK: Final = frozenset({JobKind.COMPACTION, JobKind.MAINTENANCE})
"""Jobs that can wait: they have the engine's spare room alone."""


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of jobs.

    Args:
        maintenance: changes of `penstock.pipeline.tables.maintenance.Maintenance`, by field.
        registry: of schemas, its URL.
    """

    compaction: CompactionSettings = CompactionSettings()
    maintenance: dict[str, int] = {}
    catalog: CatalogSettings = CatalogSettings()
    registry: str = ""


class Intervals(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between the starts of two runs; 0: the job doesn't run at all."""

    compaction_s: float = 60.0
    table_s: float = 30.0
    maintenance_s: float = 3600.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `topic`: whose table it is about; "": all topics."""

    kind: JobKind
    topic: str = ""

    @property
    def name(self) -> str:
        """Name it by the topic, since the table's name may change with the topic's configs."""
        if self.kind is JobKind.COMPACTION:
            return "compaction"
        table = f"table of {self.topic}"
        return table if self.kind is JobKind.TABLE else f"maintenance of the {table}"

    @property
    def is_bulk(self) -> bool:
        """Whether it may wait for what others leave."""
        return self.kind in BULK


def find_jobs(topics: Iterable[TopicState], intervals: Intervals) -> Sequence[tuple[Job, float]]:
    """Return the jobs that topics ask for, each with its interval. Pure."""
    found: list[tuple[Job, float]] = []
    if intervals.compaction_s:
        found.append((Job(kind=JobKind.COMPACTION), intervals.compaction_s))
    if not intervals.table_s:
        return found
    for topic in topics:
        if not has_table(topic):
            continue
        found.append((Job(kind=JobKind.TABLE, topic=topic.name), intervals.table_s))
        if intervals.maintenance_s:
            found.append((Job(kind=JobKind.MAINTENANCE, topic=topic.name), intervals.maintenance_s))
    return found
