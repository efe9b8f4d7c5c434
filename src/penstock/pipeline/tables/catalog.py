"""Catalogs by PyIceberg, and the tables in them."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    OAuthError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationException,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import strtobool

from penstock.model.errors import (
    ConflictError,
    InDoubtError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
)
from penstock.pipeline.tables.durable import DurableFileIO
from penstock.pipeline.tables.files import is_local, split_url, warehouse_url
from penstock.pipeline.tables.metadata_repair import UNREADABLE, find_damage
from penstock.pipeline.tables.offsets import TOPIC_ID_PROPERTY, Lineage
from penstock.pipeline.tables.settings import CatalogSettings
from penstock.system.files import make_folder

RETRIES_PROPERTY: Final = "commit.retry.num-retries"
NO_RETRIES: Final = "0"
"""PyIceberg would otherwise lay a refused commit over whatever was committed meanwhile, though
that may hold the same offsets."""
_OPENING: Final = threading.Lock()
_INIT_TABLES: Final = "init_catalog_tables"
TOPIC_PROPERTY: Final = "penstock.topic"
_NEW_TABLE: Final = {
    "format-version": "2",
    RETRIES_PROPERTY: NO_RETRIES,
    # A commit a minute would otherwise mean a manifest a minute, each read by every reader.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
_S3_FROM_ENVIRONMENT: Final = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
CATALOG_FILE: Final = "catalog.db"


def catalog_properties(settings: CatalogSettings) -> dict[str, str]:
    """PyIceberg's properties of the catalog, with what the environment says of S3.

    Raises:
        InvalidRequestError: a secret among the properties, or nothing that says which catalog.
    """
    settings.check()
    warehouse = warehouse_url(settings.warehouse)
    if "#" in warehouse or "?" in warehouse:
        # PyIceberg cuts locations there, and all files would become one.
        raise InvalidRequestError(
            "open catalog", settings.name, f"the warehouse's name {warehouse} has a # or ?"
        )
    properties = {"warehouse": warehouse, **settings.properties}
    has_catalog = "uri" in properties or "type" in properties or "py-catalog-impl" in properties
    if not has_catalog and not _is_configured(settings.name):
        if not is_local(warehouse):
            raise InvalidRequestError(
                "open catalog",
                settings.name,
                f"{warehouse} is not a directory of this machine, where a SQLite catalog could be",
                "name a catalog: --catalog-property uri=... (sqlite:///PATH, http://... of REST)",
            )
        folder = Path("/", split_url(warehouse)[2])
        make_folder(folder)
        properties["type"] = "sql"
        properties["uri"] = f"sqlite:///{folder / CATALOG_FILE}"
    if is_local(warehouse):
        properties.setdefault("py-io-impl", f"{DurableFileIO.__module__}.{DurableFileIO.__name__}")
    if properties["warehouse"].startswith("s3"):
        for key, names in _S3_FROM_ENVIRONMENT.items():
            value = next((os.environ[name] for name in names if os.environ.get(name)), "")
            if value:
                properties.setdefault(key, value)
    return properties


@contextmanager
def open_catalog(settings: CatalogSettings) -> Iterator[Catalog]:
    """The catalog, until its connections are given back.

    Raises: as `catalog_properties`; InvalidRequestError: PyIceberg refuses it.
    """
    properties = catalog_properties(settings)
    # Not by PyIceberg's constructor: if that fails, the connections can't be closed.
    makes_tables = strtobool(properties.get(_INIT_TABLES, "true"))
    properties[_INIT_TABLES] = "false"
    with ExitStack() as stack:
        # One at a time: a catalog in SQLite makes its tables, which fails if two do so at once.
        with _OPENING, translated("open catalog", settings.name):
            catalog = stack.enter_context(load_catalog(settings.name, **properties))
            create = getattr(catalog, "create_tables", None)
            if create is not None and makes_tables:
                create()
        yield catalog


def no_table_error(
    operation: str, name: str, catalog: CatalogSettings, *hints: str
) -> NotFoundError:
    """Return the error of a reader that finds no table."""
    return NotFoundError(
        operation,
        name,
        f"there is no such table in catalog {catalog.name} of {catalog.warehouse}",
        "; ".join(("penstock pipeline run keeps the tables of topics with penstock.table", *hints)),
    )


def load_table(catalog: Catalog, identifier: tuple[str, ...]) -> Table | None:
    """A table, or None where there is none.

    Raises:
        CorruptDataError: its metadata file is gone or damaged.
    """
    with translated("load table", ".".join(identifier)):
        try:
            return catalog.load_table(identifier)
        except NoSuchTableError:
            return None
        except UNREADABLE as error:
            damage = find_damage(catalog, identifier)
            if damage is None:
                raise
            raise damage from error


def create_table(
    catalog: Catalog,
    identifier: tuple[str, ...],
    *,
    schema: Schema,
    spec: PartitionSpec,
    topic: str,
    topic_id: str,
    properties: Mapping[str, str],
) -> Table:
    """Make a table, or load the one that another driver has just made."""
    with translated("create table", ".".join(identifier)):
        for depth in range(1, len(identifier)):
            try:
                catalog.create_namespace_if_not_exists(identifier[:depth])
            except NamespaceAlreadyExistsError:
                continue
        try:
            return catalog.create_table(
                identifier,
                schema=schema,
                partition_spec=spec,
                properties={
                    **_NEW_TABLE,
                    **properties,
                    TOPIC_PROPERTY: topic,
                    TOPIC_ID_PROPERTY: topic_id,
                },
            )
        except TableAlreadyExistsError:
            return catalog.load_table(identifier)


def ancestry(table: Table) -> list[Snapshot]:
    """The current snapshot and its ancestors, as far as they are left, nearest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshots: list[Snapshot] = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        snapshots.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.get(parent)
    return snapshots


def lineage_of(table: Table) -> Lineage:
    """Return the lineage of the table's current snapshot."""
    snapshots = ancestry(table)
    sequences = [snapshot.sequence_number or 0 for snapshot in snapshots]
    return Lineage(
        sequences=sequences,
        summaries=[summary_of(snapshot) for snapshot in snapshots],
        # Expiring a snapshot also takes its id from its child: only the number tells a first one.
        is_whole=not sequences or sequences[-1] == 1,
    )


def end_retries(table: Table) -> None:
    """Make sure that PyIceberg lays no refused commit of ours over another one.

    Raises:
        ConflictError: the property had to be set again: `table` is of that commit now, and may
            have content that wasn't looked at yet.
    """
    if table.properties.get(RETRIES_PROPERTY) == NO_RETRIES:
        return
    name = ".".join(table.name())
    with translated("end retries", name), table.transaction() as transaction:
        transaction.set_properties({RETRIES_PROPERTY: NO_RETRIES})
    raise ConflictError("commit", name, "its retries had to be ended")


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """A snapshot's summary properties."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


@contextmanager
def translated(operation: str, subject: str) -> Iterator[None]:
    """Translate errors of catalogs to Penstock's.

    Raises:
        ConflictError: another commit was first; nothing of this one happened.
        InvalidRequestError: the table is gone, or the catalog doesn't know the user.
        InDoubtError: anything else. Catalogs raise what their drivers raise (SQLAlchemy's,
            HTTP's, the store's), which doesn't say whether a commit happened.
    """
    try:
        yield
    except PenstockError:
        raise
    except (CommitFailedException, ValidationException) as error:
        raise ConflictError(operation, subject, str(error)) from error
    except NoSuchTableError as error:
        raise InvalidRequestError(
            operation, subject, "the table was dropped meanwhile", "--restart makes it again"
        ) from error
    except (UnauthorizedError, ForbiddenError, OAuthError) as error:
        raise InvalidRequestError(
            operation,
            subject,
            f"{type(error).__name__}: {error}",
            "the catalog's secrets are PYICEBERG_CATALOG__NAME__TOKEN and its like",
        ) from error
    except Exception as error:
        raise InDoubtError(operation, subject, f"{type(error).__name__}: {error}") from error


def _is_configured(name: str) -> bool:
    """Whether PyIceberg's own configuration (a file, PYICEBERG_CATALOG__NAME__*) has it."""
    from pyiceberg.utils.config import Config

    found = Config().get_catalog_config(name)
    return bool(found and ("uri" in found or "type" in found))
