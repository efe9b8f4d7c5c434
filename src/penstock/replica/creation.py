"""Creating and migrating a replica's tables: each in one transaction, the ids included, so that a
file is whole or is found empty."""

import sqlite3
from typing import TypeVar

from penstock.replica.database import REPLICA_SCHEMA, pragma_integer
from penstock.replica.machine import StateMachine

OutcomeT = TypeVar("OutcomeT")


def create_tables(connection: sqlite3.Connection, machine: StateMachine[OutcomeT]) -> None:
    """Make all tables of a new file."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for sql in REPLICA_SCHEMA:
            connection.execute(sql)
        machine.create(connection)
        connection.execute("INSERT INTO replica VALUES (1, 0, 0)")
        connection.execute(f"PRAGMA application_id = {machine.application_id}")
        connection.execute(f"PRAGMA user_version = {machine.format_version}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def migrate_tables(connection: sqlite3.Connection, machine: StateMachine[OutcomeT]) -> None:
    """Bring an older format version's tables to the machine's, in one transaction."""
    found = pragma_integer(connection, "user_version")
    if found == machine.format_version:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        machine.migrate(connection, found)
        connection.execute(f"PRAGMA user_version = {machine.format_version}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
