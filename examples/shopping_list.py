"""A shopping list of which any number of instances hold a copy.

Start three in three terminals: `python examples/shopping_list.py one`, `two`, `three`. Each reads
commands: `add milk 2`, `bought milk`, `list`. docs/replica.md explains each line.
"""

import sqlite3
import sys
from pathlib import Path

from penstock.replica import Entry, Machine, RefusedError, Service


class ShoppingList(Machine):
    """What is to be bought."""

    schema = "CREATE TABLE item (name TEXT PRIMARY KEY, count INT, since_ms INT) STRICT"

    def apply(self, connection: sqlite3.Connection, entry: Entry) -> int:
        """Change the list; answer how many of the thing are on it now."""
        command, name, count = entry.value
        row = connection.execute("SELECT count FROM item WHERE name = ?", (name,)).fetchone()
        if command == "bought":
            if row is None:
                raise RefusedError(f"{name} isn't on the list")
            connection.execute("DELETE FROM item WHERE name = ?", (name,))
            return 0
        total: int = count + (row[0] if row else 0)
        row = (name, total, entry.time_ms)
        connection.execute("INSERT OR REPLACE INTO item VALUES (?, ?, ?)", row)
        return total


def all_items(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Read the list."""
    return connection.execute("SELECT name, count FROM item ORDER BY name").fetchall()


def main(instance: str, journal: str = "shopping-list/journal.sqlite") -> None:
    """Run an instance until its input ends."""
    folder = Path("shopping-list") / instance
    with Service.open(ShoppingList(), folder, journal=journal) as service:
        token = service.token()
        for line in sys.stdin:
            if line.strip() == "list":
                items = service.read(all_items, token=token)
                print("; ".join(f"{count} {name}" for name, count in items), flush=True)
                continue
            try:
                command, name, count = (*line.split(), "1", "1")[:3]
                answer = service.submit([command, name, int(count)])
                token = answer.token
                print(f"{answer.value} {name}", flush=True)
            except RefusedError as error:
                print(error.detail, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
