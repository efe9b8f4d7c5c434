"""A user's machine on PostgreSQL: instances agree, and a submit in doubt is applied once."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from penstock.replica import AsyncService, Entry, Machine, Settings

PATIENT = Settings(wait_s=120.0)
COUNT = 40


class Sums(Machine):
    """A sum, and how many made it."""

    schema = "CREATE TABLE sum (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, count INTEGER) STRICT"

    def apply(self, connection: sqlite3.Connection, entry: Entry) -> Any:
        connection.execute(
            "INSERT INTO sum VALUES (1, ?1, 1)"
            " ON CONFLICT DO UPDATE SET n = n + ?1, count = count + 1",
            (entry.value,),
        )
        return connection.execute("SELECT n FROM sum").fetchone()[0]


def sums(connection: sqlite3.Connection) -> tuple[int, int]:
    """Give the sum and its count."""
    found: tuple[int, int] = connection.execute("SELECT n, count FROM sum").fetchone()
    return found


async def test_instances_on_postgresql_agree(
    postgres_url: str, journal_name: str, tmp_path: Path
) -> None:
    class Named(Sums):
        name = journal_name

    names = ("one", "two", "three")
    instances = [
        await AsyncService.open(Named(), tmp_path / name, journal=postgres_url, settings=PATIENT)
        for name in names
    ]
    try:
        answers = await asyncio.gather(
            *(
                # Each under one name twice, at two instances.
                instances[(number + again) % 3].submit(number, client="me", number=number)
                for number in range(1, COUNT + 1)
                for again in range(2)
            )
        )
        assert sum(answer.is_repeat for answer in answers) == COUNT
        token = max(answers, key=lambda answer: answer.position).token
        for instance in instances:
            assert await instance.read(sums, token=token) == (COUNT * (COUNT + 1) // 2, COUNT)
        # Who asked at once for the end has all of it.
        late = await AsyncService.open(
            Named(), tmp_path / "late", journal=postgres_url, settings=PATIENT
        )
        instances.append(late)
        assert await late.read(sums) == (COUNT * (COUNT + 1) // 2, COUNT)
    finally:
        for instance in instances:
            await instance.close()
