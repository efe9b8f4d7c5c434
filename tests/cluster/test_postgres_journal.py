"""The journal on a real PostgreSQL keeps the port's contract."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import psycopg
import pytest
import uvloop

from penstock.ports.journal import Journal
from penstock.replica.beginning import Beginning
from penstock.replica.postgres import PostgresJournal, PostgresSettings, begin_journal
from penstock.testing.journal_conformance import JournalSuite, JournalWorld
from support.postgres import PATIENT


class _World:
    def __init__(self, url: str, name: str, settings: PostgresSettings) -> None:
        self._url = url
        self._name = name
        self._settings = settings

    async def connect(self) -> Journal:
        return await PostgresJournal.open(
            self._url,
            name=self._name,
            new_cluster_id=lambda: "a-cluster",
            settings=self._settings,
        )

    async def begin(self, beginning: Beginning) -> None:
        await begin_journal(
            self._url, name=self._name, beginning=beginning, settings=self._settings
        )

    async def leave_gap(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            await connection.execute(
                f"INSERT INTO {self._name}_journal (stamp_ms, body) VALUES (0, 'x')".encode()
            )
            await connection.rollback()


class TestContract(JournalSuite):
    settings = PostgresSettings(**PATIENT)

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str, journal_name: str) -> None:
        self._made = _World(postgres_url, journal_name, self.settings)

    def world(self) -> AbstractAsyncContextManager[JournalWorld]:
        @asynccontextmanager
        async def open_world() -> AsyncIterator[JournalWorld]:
            yield self._made

        return open_world()


class TestOnTheServersLoop(TestContract):
    runner = staticmethod(uvloop.run)


class TestWithoutHints(TestContract):
    settings = PostgresSettings(**PATIENT, notifies=False)
