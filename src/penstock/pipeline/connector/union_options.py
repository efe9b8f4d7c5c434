"""The options of `option("view", "table+log")`: which topic and table, and how to read. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.api_messages import LEASE_MS_MAX
from penstock.pipeline.client import ClientOptions
from penstock.pipeline.connector.given_options import DOOR_OPTIONS, GivenOptions
from penstock.pipeline.connector.options import Mode, ReadOptions, parse
from penstock.pipeline.connector.table_options import VIEW, catalog_of
from penstock.pipeline.tables.settings import CatalogSettings

UNION_OPTIONS: Final = (
    *DOOR_OPTIONS,
    VIEW,
    "subscribe",
    "table",
    "warehouse",
    "catalog",
    "catalogProperties",
    "registry",
    "columns",
    "filterPushdown",
    "failOnDataLoss",
    "partitionBytes",
    "parallelism",
    "leaseMs",
    "maxOffsetsPerTrigger",
    "maxFilesPerTrigger",
)
_FILES_MAX: Final = 1000
"""The default of Delta's source, too."""
_LEASE_MS_MIN: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionReadOptions:
    """A read of a table and the log beyond it, without a secret.

    Args:
        table: `namespace.table`; "": by the topic's configs.
        columns: wanted ones, in their order; None: all.
        partition_bytes: about so many bytes in a task, of files or of the log.
        parallelism: the number of tasks that run at a time; None: the driver's cores.
        lease_ms: how long the pin holds; a stream renews it.
        rows_max: of a stream's batch, in rows of the table or offsets of the log; None: no limit.
        files_max: the greatest number of the table's files in a stream's batch.
    """

    api: ClientOptions
    topic: str
    catalog: CatalogSettings
    table: str = ""
    registry: str = ""
    columns: tuple[str, ...] | None = None
    pushes_filters: bool = False
    fails_on_loss: bool = True
    partition_bytes: int = 64 << 20
    parallelism: int | None = None
    lease_ms: int = LEASE_MS_MAX
    rows_max: int | None = None
    files_max: int = _FILES_MAX


def parse_union(options: Mapping[str, str], *, mode: Mode) -> UnionReadOptions:
    """Read the options of a view of table and log.

    Raises:
        InvalidRequestError: one is unknown, not a value of its kind, or has no place in this mode.
    """
    given = GivenOptions("read", options)
    given.refuse_unknown(UNION_OPTIONS)
    for name in ("maxOffsetsPerTrigger", "maxFilesPerTrigger"):
        if mode == "batch" and name in given:
            raise given.invalid(name, "a batch has no triggers", "leave it out, or use readStream")
    if mode == "stream" and given.flag("filterPushdown", default=False):
        raise given.invalid("filterPushdown", "Spark pushes no filters to a stream", "leave it out")
    topics = given.names("subscribe")
    if len(topics) != 1:
        raise InvalidRequestError(
            "read", "option subscribe", "a view of table and log is of one topic", "name one"
        )
    columns = given.names("columns")
    return UnionReadOptions(
        api=given.api(),
        topic=topics[0],
        catalog=catalog_of(given),
        table=given.text("table"),
        registry=given.text("registry"),
        columns=tuple(columns) if columns else None,
        pushes_filters=given.flag("filterPushdown", default=False),
        fails_on_loss=given.flag("failOnDataLoss", default=True),
        partition_bytes=given.integer("partitionBytes", 64 << 20, least=1),
        parallelism=given.integer_found("parallelism", least=1),
        lease_ms=given.integer("leaseMs", LEASE_MS_MAX, least=_LEASE_MS_MIN, most=LEASE_MS_MAX),
        rows_max=given.integer_found("maxOffsetsPerTrigger", least=1),
        files_max=given.integer("maxFilesPerTrigger", _FILES_MAX, least=1),
    )


def log_options(options: UnionReadOptions) -> ReadOptions:
    """Return the options by which a stream plans the log's part."""
    plain = {"url": ",".join(options.api.urls), "subscribe": options.topic}
    return replace(
        parse(plain, mode="stream"), api=options.api, fail_on_data_loss=options.fails_on_loss
    )
