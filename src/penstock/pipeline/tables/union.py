"""One view of table and log: what a reader has to know of both, and the order in which it asks.

The topic is pinned first (`penstock.pipeline.tables.pins`), which is the caller's to do; then
`load_union` reads the log's ends, loads the table's newest snapshot, and finds what of the log that
snapshot lacks. docs/tables.md, "One view of table and log", says why the order makes it exact.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from penstock.model.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.model.table_names import table_name
from penstock.pipeline.api_messages import PartitionState, Range, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.tables.append import ScanItem, find_schema_ids
from penstock.pipeline.tables.catalog import load_table, no_table_error, open_catalog
from penstock.pipeline.tables.columns import TYPED_PREFIX
from penstock.pipeline.tables.commit import held_by
from penstock.pipeline.tables.evolution import check_record_columns
from penstock.pipeline.tables.followed import RowSchemas, settings_by
from penstock.pipeline.tables.kinds import MODE_PROPERTY
from penstock.pipeline.tables.offsets import TOPIC_ID_PROPERTY
from penstock.pipeline.tables.settings import (
    APPEND,
    RAW,
    REGISTRY,
    TABLE_NAME_CONFIG,
    UPSERT,
    CatalogSettings,
    TableSettings,
    schema_text_of,
    with_policies,
)
from penstock.pipeline.tables.topic_table import progress_of
from penstock.pipeline.tables.union_plan import UnionPlan, cleaned_since, lost_error, plan_union
from penstock.pipeline.tables.upsert import check_buckets
from penstock.pipeline.tables.values import RowPlan, SchemaIds
from penstock.system.backoff import Backoff
from penstock.system.waiting import pause

logger = logging.getLogger(__name__)

_LOOKS: Final = 12
_REST: Final = Backoff(first_s=0.01, most_s=1.0)
"""Together about 5 s, far longer than an agent lags that is well."""
_LOADS_MAX: Final = 3
"""Where retention took what a snapshot lacks, a newer one has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionSettings:
    """These settings say what a view is of.

    Args:
        topic: its name.
        table: `namespace.table`; "": by the topic's configs.
        registry: URL of the schema registry; needed where the table's schemas are a registry's.
        fails_on_loss: whether records that are neither in the table nor in the log are an error.
    """

    topic: str
    catalog: CatalogSettings
    table: str = ""
    registry: str = ""
    fails_on_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """A view as it was pinned; goes to executors as it is, without a secret.

    Args:
        metadata: the table's, with one snapshot, and the columns that the log's part needs.
        properties, location: by which its files are opened.
        ranges: the log's part.
        range_bytes: about how many bytes the ranges are, each.
        clean_ends: of each range's partition, up to where compaction by key had cleaned.
        plan: by which the log's part is decoded.
        begins: by partition, the first offset that the snapshot does not hold.
        lost: what is in neither; not empty only where that isn't an error.
        fails_on_loss: see `UnionSettings`.
        tolerates_cleaning: whether compaction by key may go on: a stream comes to a key's newer
            record later, for which an older one was dropped.
        pin: the job by which it is pinned; 0: one that its caller knows.
    """

    topic: str
    topic_id: str
    table: str
    mode: str
    metadata: TableMetadata
    properties: dict[str, str]
    location: str
    ranges: tuple[Range, ...]
    range_bytes: tuple[int, ...]
    clean_ends: dict[int, int]
    plan: RowPlan
    begins: dict[int, int]
    lost: tuple[Range, ...] = ()
    fails_on_loss: bool = True
    tolerates_cleaning: bool = False
    pin: int = 0

    @property
    def schema(self) -> Schema:
        """The view's columns."""
        return self.metadata.schema()

    @property
    def prefix(self) -> str:
        """Before the names of the columns that every record has."""
        return "" if self.plan.value.kind == RAW else TYPED_PREFIX

    @property
    def is_upsert(self) -> bool:
        """Whether there is one row per key."""
        return self.mode == UPSERT

    def open_files(self) -> FileIO:
        """Open the table's store, by the environment's credentials."""
        return load_file_io(self.properties, self.location)

    def for_tasks(self) -> "Union":
        """Return what tasks need: they are given their files and ranges."""
        return replace(self.at(None), ranges=(), range_bytes=(), begins={})

    def at(self, snapshot: Snapshot | None) -> "Union":
        """Return the view whose stored rows are those of a snapshot; None: of none."""
        update = {
            "snapshots": [] if snapshot is None else [snapshot],
            "current_snapshot_id": None if snapshot is None else snapshot.snapshot_id,
        }
        return replace(self, metadata=self.metadata.model_copy(update=update))


def find_topic(client: PipelineClient, name: str) -> TopicState:
    """The topic as it is now. Raises: NotFoundError: there is none."""
    topics = client.topics(names=[name]).topics
    if not topics:
        raise NotFoundError("read table and log", f"topic {name!r}", "there is no such topic")
    return topics[0]


def load_union(
    client: PipelineClient, settings: UnionSettings, topic_id: str, *, pin: int = 0
) -> Union:
    """Read the log's ends, then load the table, and plan what the log has beyond it.

    Args:
        topic_id: of the topic, which is pinned.
        pin: the job that pins it, where the caller does not hold it itself.

    Raises:
        NotFoundError: there is no such table; or records are in neither, and that is an error.
        ConflictError: the table holds other records than the log.
        InvalidRequestError: the table is another topic's, or can't follow the schemas of the log's
            part.
    """
    topic = _settled(client, topic_id, settings.topic)
    name = table_name(topic.name, settings.table or topic.configs.get(TABLE_NAME_CONFIG, ""))
    with open_catalog(settings.catalog) as catalog:
        loads = 1
        table, plan = _load(client, catalog, settings, topic, name)
        while plan.lost and loads < _LOADS_MAX:
            table, plan = _load(client, catalog, settings, topic, name)
            loads += 1
        if plan.lost and settings.fails_on_loss:
            raise lost_error(topic.name, plan.lost[0])
        for lost in plan.lost:
            logger.warning("%s", lost_error(topic.name, lost))
        table, rows = _followed(client, table, topic, settings, plan.ranges)
        return Union(
            topic=topic.name,
            topic_id=topic_id,
            table=name,
            mode=table.properties.get(MODE_PROPERTY, APPEND),
            metadata=of_one_snapshot(table),
            properties=dict(table.io.properties),
            location=table.metadata_location,
            ranges=plan.ranges,
            range_bytes=tuple(_size(topic.partitions[one.partition], one) for one in plan.ranges),
            clean_ends={
                one.partition: topic.partitions[one.partition].clean_end for one in plan.ranges
            },
            plan=rows,
            begins=plan.begins,
            lost=plan.lost,
            fails_on_loss=settings.fails_on_loss,
            pin=pin,
        )


def settings_of(table: Table, topic: TopicState, settings: UnionSettings) -> TableSettings:
    """Settings by which a reader decodes the log as the table's own job does."""
    plain = TableSettings(
        topic=topic.name,
        catalog=settings.catalog,
        mode=table.properties.get(MODE_PROPERTY, APPEND),
        registry=settings.registry,
        value_schema=schema_text_of(topic.configs),
    )
    return settings_by(table, with_policies(plain, topic.configs))


def of_one_snapshot(table: Table) -> TableMetadata:
    """Return a table's metadata with its current snapshot alone."""
    snapshot = table.current_snapshot()
    return table.metadata.model_copy(
        update={
            "snapshots": [] if snapshot is None else [snapshot],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "statistics": [],
        }
    )


def check_not_cleaned(client: PipelineClient, union: Union, ranges: Sequence[Range]) -> None:
    """Check, after ranges were read, that compaction by key has not cleaned them since the pin.

    Raises:
        ConflictError: it has.
        NotFoundError: the topic was deleted.
    """
    if union.tolerates_cleaning:
        return
    topic = _look(client, union.topic_id, union.topic)
    for cleaned in cleaned_since(ranges, union.clean_ends, topic.partitions):
        raise ConflictError(
            "read table and log",
            f"{union.topic}-{cleaned.partition}",
            f"compaction by key has cleaned offsets {cleaned.start} to {cleaned.end - 1} since the "
            "view was pinned, and may have dropped records of it",
            "read it again; min.compaction.lag.ms keeps younger records from compaction",
        )


def _look(client: PipelineClient, topic_id: str, name: str) -> TopicState:
    topics = client.topics(topic_ids=[topic_id]).topics
    if not topics:
        raise NotFoundError(
            "read table and log", f"topic {name!r}", "was deleted while it was being read"
        )
    return topics[0]


def _settled(client: PipelineClient, topic_id: str, name: str) -> TopicState:
    """Look until no partition is cleaned past its end: an agent reads where cleaning has come to
    a moment after the watermarks."""
    for look in range(_LOOKS):
        pause(_REST.after(look))
        topic = _look(client, topic_id, name)
        ahead = [state for state in topic.partitions if state.clean_end > state.high_watermark]
        if not ahead:
            return topic
    raise RetryableError(
        "read table and log",
        f"topic {name!r}",
        f"compaction by key has come to offset {ahead[0].clean_end}, and the agent that answers "
        f"knows records up to {ahead[0].high_watermark}",
        "the agent lags: read again, or give the URL of another one",
    )


def _load(
    client: PipelineClient,
    catalog: Catalog,
    settings: UnionSettings,
    topic: TopicState,
    name: str,
) -> tuple[Table, UnionPlan]:
    """The table's newest snapshot, and what of the log it lacks."""
    # Before the table is loaded: progress that is newer would say more than it holds.
    progress = progress_of(client, topic.topic_id, name)
    table = load_table(catalog, tuple(name.split(".")))
    if table is None:
        raise no_table_error(
            "read table and log", name, settings.catalog, "view=log reads the topic alone"
        )
    _check_owner(table, topic)
    offsets = None if progress is None else dict(progress.offsets)
    held = held_by(table, topic.topic_id, offsets)
    now = _look(client, topic.topic_id, topic.name)
    plan = plan_union(
        topic.topic_id,
        held=held.offsets,
        epochs=held.epochs,
        pinned=topic.partitions,
        now=now.partitions,
    )
    return table, plan


def _followed(
    client: PipelineClient,
    table: Table,
    topic: TopicState,
    settings: UnionSettings,
    ranges: Sequence[Range],
) -> tuple[Table, RowPlan]:
    """The table with the columns that the ranges need, and the plan by which they are decoded."""
    by_table = settings_of(table, topic, settings)
    name = ".".join(table.name())
    if by_table.schema == RAW:
        check_record_columns(table.schema(), prefix="", with_value=True, table=name)
        if by_table.mode == UPSERT:
            check_buckets(table, prefix="")
        return table, RowPlan()
    if REGISTRY in (by_table.schema, by_table.key_kind) and not settings.registry:
        raise InvalidRequestError(
            "read table and log",
            name,
            "its schemas are of a registry",
            "the option registry is its URL",
        )
    schemas = RowSchemas(by_table, is_reader=True)
    table = schemas.follow_files(table)
    if schemas.framed_parts and ranges:
        item = ScanItem(api=client.options, ranges=list(ranges), parts=schemas.framed_parts)
        found = find_schema_ids(item)
        known = schemas.plan(table)
        table = schemas.follow(
            table,
            SchemaIds(
                value=found.value - frozenset(known.value.schemas),
                key=found.key - frozenset(known.key.schemas),
            ),
        )
    schemas.check(table)
    if by_table.mode == UPSERT:
        check_buckets(table, prefix=TYPED_PREFIX)
    return table, schemas.plan(table)


def _size(state: PartitionState, wanted: Range) -> int:
    """Return about how many bytes a range is, by the partition's mean."""
    offsets = max(1, state.high_watermark - state.log_start)
    return state.size_bytes * (wanted.end - wanted.start) // offsets


def _check_owner(table: Table, topic: TopicState) -> None:
    owner = table.properties.get(TOPIC_ID_PROPERTY, "")
    if owner != topic.topic_id:
        raise InvalidRequestError(
            "read table and log",
            ".".join(table.name()),
            f"it holds rows of topic {owner}, and {topic.name} is {topic.topic_id}"
            if owner
            else "it is not Penstock's",
            "the option table names another one",
        )
