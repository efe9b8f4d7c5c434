"""`penstock status` shows the pipeline: open jobs, and the state of tables."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.log.retention.keeper import Keeper
from penstock.model.malformed import MALFORMED
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import PipelineJob, TableRow

INTERVAL_S: Final = 10.0
SHOWN_MAX: Final = 100


@dataclass(slots=True)
class PipelineStatus:
    """Asks the state at intervals, so that reading the status never waits for SQLite."""

    queries: Callable[[], Queries]
    pool: Executor
    view: StateView
    keeper: Keeper
    _told: dict[str, object] = field(default_factory=lambda: {"jobs": {}, "tables": {}})

    async def run_once(self) -> None:
        """Ask the state for jobs and tables."""
        loop = asyncio.get_running_loop()
        jobs, tables = await loop.run_in_executor(self.pool, self._ask)
        self._told = {
            "jobs": {
                str(job.job): {
                    "kind": job.kind,
                    "name": job.name,
                    "opened_ms": job.opened_ms,
                    "renewed_ms": job.renewed_ms,
                }
                for job in jobs[:SHOWN_MAX]
            },
            "tables": {
                row.table: {
                    "topic": self._name(row.topic_id),
                    "snapshot_id": row.snapshot_id,
                    "time_ms": row.time_ms,
                    **_state(row.state),
                }
                for row in tables[:SHOWN_MAX]
            },
        }

    def status(self) -> dict[str, object]:
        """Return the pipeline's part of /v1/status.

        `time_ms` is the time of the table's last commit. `retention` has the number of partitions
        that keep records for a table that lags, and the last offsets [start, end) that this agent
        deleted although the table lagged, since the topic's bound had passed.
        """
        return self._told | {
            "retention": {
                "partitions_waiting": self.keeper.partitions_kept_for_tables,
                "lost_to_tables": {
                    f"{topic}-{partition}": list(offsets)
                    for (topic, partition), offsets in list(self.keeper.lost_to_tables.items())
                },
            }
        }

    def _ask(self) -> tuple[list[PipelineJob], list[TableRow]]:
        queries = self.queries()
        return queries.pipeline_jobs(), queries.table_rows()

    def _name(self, topic_id: bytes) -> str:
        topic = self.view.topic_by_id(topic_id)
        return topic_id.hex() if topic is None else topic.name


def _state(text: str) -> dict[str, object]:
    """Read the note of a table's job: status, error, and how many ranges were lost."""
    try:
        state = msgspec.json.decode(text, type=dict[str, object]) if text else {}
    except MALFORMED:
        state = {"status": text}
    found = {name: state[name] for name in ("status", "error", "bad_records") if state.get(name)}
    if lost := state.get("lost"):
        found["lost_ranges"] = len(lost) if isinstance(lost, list) else 1
    return found
