"""Applies journals by the release that PYTHONPATH names, and says what each position gave.

    input: MessagePack, journals of entries (stamp in ms, body)
    output: {"file": of the package, "tables": {name: columns}, "journals": [[{name: digest}]]}

Uses what releases since level 3 have alike, so that it runs in each of them.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

OWN_TABLES = {"journal", "tail", "replica", "local", "snapshots"}


def apply_all(journals: list[Any], columns: dict[str, list[str]] | None = None) -> dict[str, Any]:
    """Apply each journal to a replica of its own.

    Args:
        columns: what is hashed, by table; None: all that there is. A later release may have more.
    """
    import penstock

    found = [_apply(journal, columns) for journal in journals]
    return {
        "file": penstock.__file__,
        "tables": found[0][0] if found else {},
        "journals": [digests for _, digests in found],
    }


def _apply(journal: list[Any], columns: dict[str, list[str]] | None) -> Any:
    from penstock.replica.replica import Replica

    try:
        from penstock.state.apply.machine import LogMachine
    except ModuleNotFoundError:  # releases before the package had its name
        from penstock.metadata.apply import (  # type: ignore[import-not-found,no-redef]
            LogMachine,
        )

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replica.sqlite"
        replica = Replica.open(path, LogMachine(), fsync=False, keeps_journal=False)
        reader = sqlite3.connect(path)
        columns = columns or _columns(reader)
        digests = []
        for stamp_ms, body in journal:
            replica.apply(body, stamp_ms=stamp_ms)
            replica.commit()
            digests.append({table: _digest(reader, table, columns[table]) for table in columns})
        reader.close()
        replica.close()
    return columns, digests


def _columns(connection: sqlite3.Connection) -> dict[str, list[str]]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        table: [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        for (table,) in sorted(names)
        if table not in OWN_TABLES and not table.startswith("sqlite")
    }


def _digest(connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    listed = ", ".join(f'"{column}"' for column in columns)
    rows = connection.execute(f'SELECT {listed} FROM "{table}" ORDER BY {listed}').fetchall()
    return hashlib.sha256(msgspec.msgpack.encode(rows)).hexdigest()[:16]


if __name__ == "__main__":
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.msgpack.encode(apply_all(asked)))
