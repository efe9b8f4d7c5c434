"""The jobs that `penstock pipeline run` keeps going: compaction, tables, their maintenance."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.model.errors import NotFoundError, RetryableError
from penstock.pipeline.client import DoorClient
from penstock.pipeline.compaction.incremental import Memory
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.job import compact
from penstock.pipeline.engine import Engine
from penstock.pipeline.schedule import Stopping, Work
from penstock.pipeline.table_plan import has_table
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """The intervals of jobs, in seconds; 0: never."""

    compaction_interval_s: float = 60.0
    table_interval_s: float = 30.0
    maintenance_interval_s: float = 3600.0
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    maintenance: Maintenance = field(default_factory=Maintenance)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    registry: str = ""


@dataclass(frozen=True, slots=True)
class CompactionWork:
    """All topics."""

    client: DoorClient
    engine: Engine
    settings: CompactionSettings
    interval_s: float
    memory: Memory
    name: str = "compaction"

    def run(self, stopping: Stopping) -> Mapping[str, Any]:
        """Compact until nothing is left to do. What was committed when it is stopped stays."""

        def watch(_done: int, _total: int, _items: int) -> None:
            if stopping.is_set():
                raise RetryableError("compact", "all topics", "stopped, since the process ends")

        summary = compact(
            self.client,
            self.engine,
            self.settings,
            job_name="penstock pipeline run",
            watch=watch,
            memory=self.memory,
        )
        return _plain(summary)


@dataclass(frozen=True, slots=True)
class TableWork:
    """One topic's table."""

    client: DoorClient
    engine: Engine
    settings: TableSettings
    interval_s: float

    @property
    def name(self) -> str:
        """Named by the topic, since the table's name may change with the topic's configs."""
        return f"table of {self.settings.topic}"

    def run(self, stopping: Stopping) -> Mapping[str, Any]:  # noqa: ARG002 - it ends soon
        """Bring it up to date."""
        return _plain(run_table_once(self.client, self.engine, self.settings))


@dataclass(frozen=True, slots=True)
class MaintenanceWork:
    """One table's small files, old snapshots and orphans."""

    client: DoorClient
    engine: Engine
    settings: TableSettings
    maintenance: Maintenance
    interval_s: float

    @property
    def name(self) -> str:
        """Named by the topic, like `TableWork`."""
        return f"maintenance of the table of {self.settings.topic}"

    def run(self, stopping: Stopping) -> Mapping[str, Any]:  # noqa: ARG002 - as above
        """Maintain it; one that isn't there yet needs none."""
        try:
            return _plain(maintain_table(self.client, self.engine, self.settings, self.maintenance))
        except NotFoundError:
            return {}


def job_finder(
    client: DoorClient, engine: Engine, settings: JobsSettings
) -> Callable[[], Iterable[Work]]:
    """Return a function that finds the present jobs: topics get tables, and lose them, at any
    time."""

    memory = Memory()

    def find() -> Iterable[Work]:
        works: list[Work] = []
        if settings.compaction_interval_s:
            works.append(
                CompactionWork(
                    client,
                    engine,
                    settings.compaction,
                    settings.compaction_interval_s,
                    memory,
                )
            )
        if not settings.table_interval_s:
            return works
        for topic in client.topics().topics:
            if not has_table(topic):
                continue
            table = TableSettings(
                topic=topic.name, catalog=settings.catalog, registry=settings.registry
            )
            works.append(TableWork(client, engine, table, settings.table_interval_s))
            if settings.maintenance_interval_s:
                works.append(
                    MaintenanceWork(
                        client,
                        engine,
                        table,
                        settings.maintenance,
                        settings.maintenance_interval_s,
                    )
                )
        return works

    return find


def _plain(summary: msgspec.Struct) -> Mapping[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(summary, str_keys=True)
    return found
