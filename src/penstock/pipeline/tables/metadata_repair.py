"""A table whose metadata file is lost or damaged: an error that says so, and the way back.

A catalog in SQL names a table's metadata file and the one before. Where the first can't be read,
the newest that can takes its place. The commits since are gone then, with their offsets: the
table's next run writes their rows again, as far as the log has them, and their data files become
orphans.
"""

import re
from collections.abc import Iterator
from typing import Final, Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
)
from penstock.pipeline.tables.files import TableFiles, files_options

UNREADABLE: Final = (OSError, ValueError, ValidationError)
"""PyIceberg's errors of files that are gone, or hold no metadata."""
_METADATA_NAME: Final = re.compile(r"/metadata/(\d+)-[^/]*\.metadata\.json$")


class _Row(Protocol):
    @property
    def metadata_location(self) -> str | None: ...

    @property
    def previous_metadata_location(self) -> str | None: ...


def find_damage(catalog: Catalog, identifier: tuple[str, ...]) -> CorruptDataError | None:
    """Find out why a table's metadata could not be loaded; None: nothing is known to be wrong.

    Raises:
        RetryableError: the store doesn't answer.
    """
    row = _row(catalog, identifier)
    if row is None or not row.metadata_location or _is_readable(catalog, row.metadata_location):
        return None
    before = row.previous_metadata_location or "none"
    how = "is gone" if _is_gone(catalog, row.metadata_location) else "is damaged"
    return CorruptDataError(
        "load table",
        ".".join(identifier),
        f"its metadata {row.metadata_location} {how}; the one before it is {before}",
        "put the file back from a copy, or go back to the newest that can be read by "
        "`penstock pipeline table --repair`: the rows since are written again from the log",
    )


def repair_metadata(catalog: Catalog, identifier: tuple[str, ...]) -> tuple[str, str]:
    """Go back to the newest metadata that can be read: (the file before, the file now); the same
    where nothing is wrong.

    Raises:
        InvalidRequestError: the catalog isn't in SQL: its own server keeps the metadata.
        NotFoundError: there is no such table, or no metadata that can be read.
        ConflictError: another program changed the table meanwhile.
    """
    name = ".".join(identifier)
    if not isinstance(catalog, SqlCatalog):
        raise InvalidRequestError(
            "repair table",
            name,
            "the catalog is not in SQL",
            "repair it by the catalog's own means",
        )
    row = _row(catalog, identifier)
    if row is None or not row.metadata_location:
        raise NotFoundError("repair table", name, "there is no such table")
    damaged = row.metadata_location
    if _is_readable(catalog, damaged):
        return damaged, damaged
    for url in _candidates(catalog, row):
        if url != damaged and _is_readable(catalog, url):
            _point(catalog, identifier, damaged, url)
            return damaged, url
    raise NotFoundError(
        "repair table",
        name,
        f"no metadata in the folder of {damaged} can be read",
        "put the file back from a copy, or drop the table and make it again with --restart",
    )


def _row(catalog: Catalog, identifier: tuple[str, ...]) -> _Row | None:
    if not isinstance(catalog, SqlCatalog):
        return None
    engine: Engine = catalog.engine
    with Session(engine) as session:
        found: _Row | None = session.scalar(
            select(IcebergTables).where(
                IcebergTables.catalog_name == catalog.name,
                IcebergTables.table_namespace == ".".join(identifier[:-1]),
                IcebergTables.table_name == identifier[-1],
            )
        )
    return found


def _point(catalog: SqlCatalog, identifier: tuple[str, ...], damaged: str, url: str) -> None:
    engine: Engine = catalog.engine
    with Session(engine) as session:
        changed = session.execute(
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == catalog.name,
                IcebergTables.table_namespace == ".".join(identifier[:-1]),
                IcebergTables.table_name == identifier[-1],
                IcebergTables.metadata_location == damaged,
            )
            .values(metadata_location=url, previous_metadata_location=None)
        )
        session.commit()
    if getattr(changed, "rowcount", 0) != 1:
        raise ConflictError(
            "repair table",
            ".".join(identifier),
            "another program changed it meanwhile",
            "try again",
        )


def _candidates(catalog: Catalog, row: _Row) -> Iterator[str]:
    """The file before, then all of the folder, the newest first."""
    if row.previous_metadata_location:
        yield row.previous_metadata_location
    assert row.metadata_location is not None
    folder = row.metadata_location.rpartition("/")[0]
    numbered = []
    for file in TableFiles(files_options(catalog.properties)).list(folder):
        found = _METADATA_NAME.search(file.url)
        if found:
            numbered.append((int(found[1]), file.modified_ms, file.url))
    for _, _, url in sorted(numbered, reverse=True):
        yield url


def _is_readable(catalog: Catalog, url: str) -> bool:
    try:
        FromInputFile.table_metadata(load_file_io(catalog.properties, url).new_input(url))
    except UNREADABLE:
        # Raises where the store doesn't answer.
        _is_gone(catalog, url)
        return False
    return True


def _is_gone(catalog: Catalog, url: str) -> bool:
    try:
        TableFiles(files_options(catalog.properties)).get(url)
    except NotFoundError:
        return True
    return False
