"""Creating and migrating a replica's tables: each in one transaction, the ids included, so that a
file is whole or is found empty."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from penstock.replica.database import REPLICA_SCHEMA, pragma_integer
from penstock.replica.machine import StateMachine

OutcomeT = TypeVar("OutcomeT")


def create_tables(connection: sqlite3.Connection, machine: StateMachine[OutcomeT]) -> None:
    """Make all tables of a new file."""
    with _one_transaction(connection):
        for sql in REPLICA_SCHEMA:
            connection.execute(sql)
        machine.create(connection)
        connection.execute("INSERT INTO replica VALUES (1, 0, 0)")
        connection.execute(f"PRAGMA application_id = {machine.application_id}")
        connection.execute(f"PRAGMA user_version = {machine.format_version}")


def migrate_tables(connection: sqlite3.Connection, machine: StateMachine[OutcomeT]) -> None:
    """Bring an older format version's tables to the machine's, in one transaction."""
    found = pragma_integer(connection, "user_version")
    if found == machine.format_version:
        return
    with _one_transaction(connection):
        machine.migrate(connection, found)
        connection.execute(f"PRAGMA user_version = {machine.format_version}")


@contextmanager
def _one_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except sqlite3.Error:
        # Some errors have rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
