"""A plan says what each table's job would read now, without running it, for `penstock pipeline
plan`.

A table's progress comes from the journal, where each commit notes it. The catalog isn't opened; the
job itself goes by the table, which knows better after a rollback.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.pipeline.api_messages import Range, TableProgress, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.tables.plan import plan_wanted
from penstock.pipeline.tables.settings import TableSettings, resolve
from penstock.pipeline.tables.table_state import OK, TableState, decode_state

_TABLE_CONFIG: Final = "penstock.table"
_ICEBERG: Final = "iceberg"


class PlannedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's table. `ranges`: what it would read, of `records` offsets in about `size_bytes`;
    `lost`: what it lacks and the log has no more; `reason`: why, or why it would do nothing."""

    topic: str
    table: str
    mode: str = ""
    ranges: list[Range] = []
    records: int = 0
    size_bytes: int = 0
    lost: list[Range] = []
    reason: str
    seconds: float = 0.0
    """For how long the table has been where it is, if it lacks records."""
    state: TableState = TableState()
    """The note that its job saved last."""


def has_table(topic: TopicState) -> bool:
    """Whether a topic's configs ask for a table."""
    return topic.configs.get(_TABLE_CONFIG) == _ICEBERG


def plan_tables(
    client: PipelineClient, names: Sequence[str] | None = None, *, registry: str = ""
) -> list[PlannedTable]:
    """The tables of all topics that have one by their config, or of those named.

    Args:
        registry: as `penstock pipeline run` would be given it.

    Raises:
        NotFoundError: a named topic isn't there.
    """
    # Before the topics: what a table has come to since would look like a log that went back.
    known = {(row.topic_id, row.table): row for row in client.tables()}
    answer = client.topics(names=names)
    topics = answer.topics
    missing = set(names or ()) - {topic.name for topic in topics}
    if missing:
        raise NotFoundError("plan tables", min(missing), "no such topic")
    enabled = [topic for topic in topics if has_table(topic)]
    planned = []
    for topic in sorted(enabled, key=lambda topic: topic.name):
        given = TableSettings(topic=topic.name, registry=registry)
        try:
            settings = resolve(given, topic.configs)
            name = settings.full_name
        except InvalidRequestError as error:
            planned.append(PlannedTable(topic=topic.name, table="", reason=f"can't run: {error}"))
            continue
        progress = known.get((topic.topic_id, name))
        planned.append(_plan(topic, name, settings.mode, progress, now_ms=answer.time_ms))
    return planned


def _plan(
    topic: TopicState, name: str, mode: str, progress: TableProgress | None, *, now_ms: int
) -> PlannedTable:
    held = {} if progress is None else dict(progress.offsets)
    wanted = plan_wanted(topic.topic_id, topic.partitions, held)
    records = sum(area.end - area.start for area in wanted.ranges)
    lost = sum(area.end - area.start for area in wanted.lost)
    reasons = []
    state = TableState() if progress is None else decode_state(progress.state)
    if state.status != OK:
        reasons.append(f"stopped, would be tried again: {state.error}")
    if progress is None:
        reasons.append("no table yet" if records else "no table and no records yet")
    elif records:
        reasons.append(f"{records:,} {'record' if records == 1 else 'records'} behind")
    if lost:
        gone = "record is gone before it was" if lost == 1 else "records are gone before they were"
        reasons.append(f"{lost:,} {gone} read")
    return PlannedTable(
        topic=topic.name,
        table=name,
        mode=mode,
        ranges=list(wanted.ranges),
        records=records,
        size_bytes=sum(_size(topic, area) for area in wanted.ranges),
        lost=list(wanted.lost),
        reason="; ".join(reasons) or "up to date",
        seconds=max(0, now_ms - progress.time_ms) / 1000 if progress and records else 0.0,
        state=state,
    )


def _size(topic: TopicState, area: Range) -> int:
    """Return about how many bytes, by the partition's mean."""
    state = topic.partitions[area.partition]
    offsets = max(1, state.high_watermark - state.log_start)
    return state.size_bytes * (area.end - area.start) // offsets
