"""A stream of table and log: the files of the snapshot that it reads, and schemas that come
later."""

from collections.abc import Sequence
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import FileScanTask, Table

from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.pipeline.api_messages import Range, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.tables.append import ScanItem, find_schema_ids
from penstock.pipeline.tables.catalog import load_table, no_table_error, open_catalog
from penstock.pipeline.tables.followed import RowSchemas
from penstock.pipeline.tables.parts import BARE, BARE_ID, KEY, REGISTRY, VALUE
from penstock.pipeline.tables.settings import schema_text_of
from penstock.pipeline.tables.stored_order import StoredFile, in_order
from penstock.pipeline.tables.union import (
    Union,
    UnionSettings,
    find_topic,
    of_one_snapshot,
    settings_of,
)
from penstock.pipeline.tables.union_rows import plan_files
from penstock.pipeline.tables.values import SchemaIds


def check_appended(union: Union) -> None:
    """
    Raises:
        InvalidRequestError: the table has one row per key: later records replace rows that were
            read, which no stream of rows can say.
    """
    if union.is_upsert:
        raise InvalidRequestError(
            "read stream",
            f"table {union.table}",
            "it has one row per key, and a stream can't take back a row that was replaced",
            "read it by spark.read, or stream the log alone: leave the option view out",
        )


def ordered_files(union: Union) -> tuple[list[FileScanTask], list[StoredFile]]:
    """The files of a view's snapshot in the order in which a stream reads them."""
    if union.metadata.current_snapshot_id is None:
        return [], []
    tasks = plan_files(union, union.open_files())
    field = union.schema.find_field(f"{union.prefix}timestamp")
    files = []
    for task in tasks:
        bound = (task.file.lower_bounds or {}).get(field.field_id)
        # As Iceberg keeps a timestamp's bound.
        least = None if bound is None else int.from_bytes(bound, "little", signed=True)
        files.append(
            StoredFile(
                path=task.file.file_path,
                least_timestamp=least,
                rows=task.file.record_count,
            )
        )
    order = in_order(files)
    return [tasks[place] for place in order], [files[place] for place in order]


def at_snapshot(union: Union, settings: UnionSettings, snapshot_id: int) -> Union:
    """Return the view whose stored rows are those of a snapshot, which the table still has.

    Raises:
        NotFoundError: the table or the snapshot is gone.
    """
    if not snapshot_id:
        return union.at(None)
    with open_catalog(settings.catalog) as catalog:
        snapshot = _table(catalog, settings, union.table).snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise snapshot_is_gone(union.table, snapshot_id)
    return union.at(snapshot)


def snapshot_is_gone(table: str, snapshot_id: int) -> NotFoundError:
    """Return the error of a stream whose snapshot was expired before it was read."""
    return NotFoundError(
        "read table and log",
        f"snapshot {snapshot_id} of {table}",
        "it was expired before the stream had read it: a stream that stands still holds it for "
        "leaseMs, and one that runs for 7 days at most",
        "begin a new checkpoint and a new sink, or set penstock.table.snapshot.retention.ms higher "
        "before",
    )


def follow_schemas(
    client: PipelineClient, union: Union, settings: UnionSettings, ranges: Sequence[Range]
) -> Union:
    """Return the view with the columns and the plan that ranges of the log need, too.

    Raises:
        IncompatibleSchemaError: a schema is among them that the table can't follow.
    """
    topic = find_topic(client, settings.topic)
    known = SchemaIds(
        value=frozenset(union.plan.value.schemas), key=frozenset(union.plan.key.schemas)
    )
    wanted = known | _ids_in(client, union, ranges)
    if wanted == known and not _has_other_text(union, topic):
        return union
    with open_catalog(settings.catalog) as catalog:
        table = _table(catalog, settings, union.table)
        schemas = RowSchemas(settings_of(table, topic, settings), is_reader=True)
        table = schemas.follow_files(table)
        followed = schemas.plan(table)
        if schemas.framed_parts:
            table = schemas.follow(
                table,
                SchemaIds(
                    value=wanted.value - frozenset(followed.value.schemas),
                    key=wanted.key - frozenset(followed.key.schemas),
                ),
            )
        schemas.check(table)
        plan = schemas.plan(table)
    return replace(union, metadata=of_one_snapshot(table), plan=plan)


def _ids_in(client: PipelineClient, union: Union, ranges: Sequence[Range]) -> SchemaIds:
    parts = ((VALUE, union.plan.value), (KEY, union.plan.key))
    framed = [name for name, part in parts if part.kind == REGISTRY]
    if not framed or not ranges:
        return SchemaIds()
    return find_schema_ids(ScanItem(api=client.options, ranges=list(ranges), parts=framed))


def _has_other_text(union: Union, topic: TopicState) -> bool:
    """Whether the topic's config says another schema of bare values than the view was loaded
    with."""
    text = schema_text_of(topic.configs)
    plan = union.plan.value
    return text is not None and plan.kind == BARE and text != plan.schemas[BARE_ID]


def _table(catalog: Catalog, settings: UnionSettings, name: str) -> Table:
    table = load_table(catalog, tuple(name.split(".")))
    if table is None:
        raise no_table_error("read table and log", name, settings.catalog)
    return table
