"""The journal in a SQLite file keeps the rules of all journals."""

import asyncio
import contextlib
import sqlite3

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.replica.beginning import encode_beginning
from penstock.replica.sqlite_journal import SqliteJournal
from penstock.system.clock import SystemClock
from penstock.testing.journal_conformance import JournalSuite

pytestmark = pytest.mark.slow


async def connected(path, name="list"):
    return await SqliteJournal.open(
        path, name=name, clock=SystemClock(), new_cluster_id=lambda: "an id"
    )


class World:
    def __init__(self, path):
        self.path = path

    async def connect(self):
        return await connected(self.path)

    async def begin(self, beginning):
        await (await self.connect()).close()
        self.execute("INSERT INTO journal VALUES (1, 0, ?)", (encode_beginning(beginning),))
        self.execute("UPDATE journal_info SET trimmed = 1")

    async def leave_gap(self):
        count = self.execute("UPDATE sqlite_sequence SET seq = seq + 1").rowcount
        if not count:
            self.execute("INSERT INTO sqlite_sequence VALUES ('journal', 1)")

    def execute(self, *statement):
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(*statement)


class TestSqliteJournal(JournalSuite):
    @contextlib.asynccontextmanager
    async def world(self):
        yield World(self.path)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "journal.sqlite"


async def test_appends_of_one_turn_share_a_transaction(tmp_path):
    journal = await connected(tmp_path / "j")
    runs = []
    run = journal._run
    journal._run = lambda work, **more: (runs.append(work), run(work, **more))[1]
    try:
        assert await asyncio.gather(*(journal.append(b"%d" % n) for n in range(50))) == list(
            range(1, 51)
        )
        assert len(runs) == 1
    finally:
        await journal.close()


async def test_another_services_journal_is_refused(tmp_path):
    await (await connected(tmp_path / "j")).close()
    with pytest.raises(InvalidRequestError, match="journal of list, this is other"):
        await connected(tmp_path / "j", "other")


async def test_what_another_process_appends_ends_a_wait(tmp_path):
    mine, other = await connected(tmp_path / "j"), await connected(tmp_path / "j")
    try:
        await mine.wait(0, 0.001)  # the first look knows nothing of before
        await other.append(b"one")
        await mine.wait(0, 300.0)
        assert [row.body for row in await mine.read(0, 10)] == [b"one"]
    finally:
        await mine.close()
        await other.close()
