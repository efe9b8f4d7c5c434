"""Checks a database's promise, before it may hold a journal, that a commit is durable."""

import logging

import psycopg

from penstock.model.errors import InvalidRequestError

logger = logging.getLogger(__name__)

_UNKNOWN_SETTING = "42704"
_WEAK = ("off", "local")
"""Values of `synchronous_commit` with which a commit is reported before it is durable, or before
the standbys that are to have it do."""


async def check_durability(
    connection: psycopg.AsyncConnection, *, allow_fsync_off: bool = False
) -> None:
    """Make commits of this session durable, and see that they are.

    Raises:
        InvalidRequestError: the server doesn't let them be.
    """
    if await _show(connection, "synchronous_commit") in _WEAK:
        await connection.execute("SET synchronous_commit = on")
        found = await _show(connection, "synchronous_commit")
        if found in _WEAK:
            raise _refused(f"synchronous_commit is {found}", "set it to on")
    if await _show(connection, "fsync") == "off":
        if not allow_fsync_off:
            raise _refused("fsync is off", "set it to on")
        logger.warning("the journal's database has fsync off: a power cut loses what was acked")
    if await _show(connection, "full_page_writes") == "off":
        logger.warning("the journal's database has full_page_writes off: is its file system safe?")


async def _show(connection: psycopg.AsyncConnection, name: str) -> str:
    """A setting's value; empty: a database that doesn't know it."""
    try:
        cursor = await connection.execute(f"SHOW {name}".encode())
        row = await cursor.fetchone()
    except psycopg.Error as error:
        if error.sqlstate == _UNKNOWN_SETTING:
            return ""
        raise
    return "" if row is None else str(row[0])


def _refused(detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        "use database", "journal", f"{detail}: acknowledged records could be lost", hint
    )
