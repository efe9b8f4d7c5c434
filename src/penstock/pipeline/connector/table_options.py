"""The options of `option("view", "table")`: which table, where, and at which snapshot. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import InvalidRequestError
from penstock.model.table_names import table_name
from penstock.pipeline.connector.given_options import GivenOptions
from penstock.pipeline.tables.settings import CatalogSettings

VIEW: Final = "view"
LOG: Final = "log"
TABLE: Final = "table"
UNION: Final = "table+log"
TABLE_OPTIONS: Final = (
    VIEW,
    "table",
    "subscribe",
    "warehouse",
    "catalog",
    "catalogProperties",
    "snapshotId",
    "columns",
    "filterPushdown",
    "partitionBytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReadOptions:
    """A read of a table.

    Args:
        identifier: namespaces and name in the catalog.
        snapshot_id: None: the one that is current when the table is loaded.
        schema_id: of the columns; None: those that the snapshot was written with.
        columns: wanted ones, in their order; None: all.
        partition_bytes: about so many bytes of files in a task, one file at least.
    """

    catalog: CatalogSettings
    identifier: tuple[str, ...]
    snapshot_id: int | None = None
    schema_id: int | None = None
    columns: tuple[str, ...] | None = None
    pushes_filters: bool = False
    partition_bytes: int = 64 << 20


def view_of(options: Mapping[str, str]) -> str:
    """Return LOG, TABLE or UNION: what is read. Raises: InvalidRequestError: something else."""
    return GivenOptions("read", options).one_of(VIEW, (LOG, TABLE, UNION))


def parse_table(options: Mapping[str, str]) -> TableReadOptions:
    """Read the options of a table's view.

    Raises:
        InvalidRequestError: one is unknown, or not a value of its kind.
    """
    given = GivenOptions("read", options)
    given.refuse_unknown(TABLE_OPTIONS)
    if bool(given.text("table")) == bool(given.text("subscribe")):
        raise InvalidRequestError(
            "read",
            "option table",
            "give one of table (namespace.table) and subscribe (a topic whose table has its name)",
        )
    columns = given.names("columns")
    return TableReadOptions(
        catalog=catalog_of(given),
        identifier=tuple(table_name(given.text("subscribe"), given.text("table")).split(".")),
        snapshot_id=given.integer_found("snapshotId", least=0),
        columns=tuple(columns) if columns else None,
        pushes_filters=given.flag("filterPushdown", default=False),
        partition_bytes=given.integer("partitionBytes", 64 << 20, least=1),
    )


def catalog_of(given: GivenOptions) -> CatalogSettings:
    """Return the catalog that the options name. Raises: InvalidRequestError: they hold a secret."""
    catalog = CatalogSettings(
        warehouse=given.text("warehouse") or "warehouse",
        name=given.text("catalog") or "penstock",
        properties=_properties(given),
    )
    catalog.check()
    return catalog


def _properties(given: GivenOptions) -> dict[str, str]:
    text = given.text("catalogProperties")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise given.invalid(
            "catalogProperties", "it isn't an object of strings", '{"type": "rest", "uri": "..."}'
        )
    return found
