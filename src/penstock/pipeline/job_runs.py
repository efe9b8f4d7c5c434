"""Does the jobs of `penstock pipeline run`, in the process that has the engine."""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.model.errors import NotFoundError
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.compaction.incremental import Memory
from penstock.pipeline.compaction.job import compact
from penstock.pipeline.engine import Engine
from penstock.pipeline.jobs import Job, JobKind, JobSettings
from penstock.pipeline.schedule import Stopping
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from penstock.pipeline.tables.settings import TableSettings


def run_job(
    job: Job,
    client: PipelineClient,
    engine: Engine,
    settings: JobSettings,
    stopping: Stopping,
    memory: Memory | None = None,
) -> Mapping[str, Any]:
    """Do all that there is to do now, and return a summary of it for people and programs.

    Args:
        memory: of the process's compactions, so that one plans by what changed since the last.

    Raises:
        PenstockError: it failed, and is to be tried again later.
    """
    if job.kind is JobKind.COMPACTION:
        # What was committed when it is stopped stays.
        return _plain(
            compact(
                client,
                engine,
                settings.compaction,
                job_name="penstock pipeline run",
                stopping=stopping,
                memory=memory,
            )
        )
    table = TableSettings(topic=job.topic, catalog=settings.catalog, registry=settings.registry)
    if job.kind is JobKind.TABLE:
        return _plain(run_table_once(client, engine, table))
    try:
        return _plain(
            maintain_table(
                client, engine, table, msgspec.convert(settings.maintenance, Maintenance)
            )
        )
    except NotFoundError:
        # A table that isn't there yet needs no maintenance.
        return {}


def _plain(summary: msgspec.Struct) -> Mapping[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(summary, str_keys=True)
    return found
