"""The tables of a journal: read, or created by the first agent that needs them."""

from collections.abc import Callable
from typing import Final, TypeAlias

import psycopg

from penstock.model.errors import ConflictError, InvalidRequestError, NotFoundError
from penstock.replica.postgres.statements import FORMAT_VERSION, Statements

_UNDEFINED_TABLE: Final = "42P01"
_CREATE_TRIES: Final = 5
"""When several processes create one journal at once, all but the first fail, with errors that
differ from database to database; each failure means that another got further."""


FirstRows: TypeAlias = Callable[[], tuple[str, tuple[object, ...]]]
"""Gives, for each try, the statement that fills an empty journal, and its parameters."""


async def open_tables(
    connection: psycopg.AsyncConnection,
    statements: Statements,
    name: str,
    first_rows: FirstRows | None,
) -> str:
    """The cluster's id, after creating what isn't there.

    Args:
        first_rows: None: the journal must exist.

    Raises:
        NotFoundError: there is no such journal.
        ConflictError: it can't be made.
        InvalidRequestError: it is a newer release's.
    """
    info = await _read_info(connection, statements)
    failure: psycopg.Error | None = None
    for _ in range(_CREATE_TRIES):
        if info is not None:
            break
        if first_rows is None:
            raise NotFoundError("open journal", name, "there is no such journal")
        try:
            for sql in statements.create:
                await connection.execute(sql.encode())
            sql, parameters = first_rows()
            await connection.execute(sql.encode(), parameters)
        except psycopg.Error as error:
            # Another process has created it, if there is a journal now; else what is raised at
            # last.
            failure = error
        info = await _read_info(connection, statements)
    if info is None:
        if failure is not None:
            raise failure
        raise ConflictError(
            "create journal",
            name,
            "its tables come and go, or there are rows in them and no cluster",
            "choose another name, or drop the tables",
        )
    cluster_id, version = info
    if version > FORMAT_VERSION:
        raise InvalidRequestError(
            "open journal",
            name,
            f"format version {version}, this release knows {FORMAT_VERSION}",
            "upgrade this agent",
        )
    return cluster_id


async def _read_info(
    connection: psycopg.AsyncConnection, statements: Statements
) -> tuple[str, int] | None:
    try:
        cursor = await connection.execute(statements.select_info.encode())
        row = await cursor.fetchone()
    except psycopg.Error as error:
        if error.sqlstate == _UNDEFINED_TABLE:
            return None
        raise
    return None if row is None else (str(row[0]), int(row[1]))
