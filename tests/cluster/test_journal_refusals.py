"""What PostgreSQL refuses while it answers: each is retriable, is told by its own words, and is
over once the database's owner has mended it. No refusal ends an agent, and none loses a commit.

Only one SQLSTATE means something else to the product (23505: a sealed position), so that there is
no list of them which could lack one; here are those that a real server can be made to give.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from penstock.model.errors import RetryableError
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.replica.postgres import PostgresJournal, PostgresSettings
from penstock.replica.postgres.pipeline import StatementError
from penstock.state.answers import ProducerIds
from penstock.state.commands import AllocateProducerIds
from penstock.system import SystemClock
from support.cluster_orders import Agent, outcome
from support.postgres import PATIENT, PostgresServer

ONE = [AllocateProducerIds(count=1)]
QUICK = PostgresSettings(**PATIENT | {"lock_timeout_ms": 200})


@dataclass(frozen=True)
class Tenant:
    """A role of the server that owns nothing, and the name of its journal."""

    server: PostgresServer
    role: str

    @property
    def url(self) -> str:
        return f"postgresql://{self.role}@127.0.0.1:{self.server.port}/postgres"

    @property
    def rows(self) -> str:
        return f"{self.role}_journal"

    def sql(self, statement: str) -> str:
        return self.server.sql(statement.format(role=self.role, rows=self.rows))

    async def open(self) -> PostgresJournal:
        return await PostgresJournal.open(
            self.url, name=self.role, new_cluster_id=lambda: "a-cluster", settings=QUICK
        )


@pytest.fixture
def tenant(own_postgres: PostgresServer, journal_name: str) -> Iterator[Tenant]:
    tenant = Tenant(own_postgres, journal_name)
    tenant.sql("CREATE ROLE {role} LOGIN")
    tenant.sql("GRANT CREATE ON SCHEMA public TO {role}")
    yield tenant
    tenant.sql("DROP OWNED BY {role} CASCADE")
    tenant.sql("DROP ROLE {role}")


async def answered(call: Callable[[], Awaitable[object]]) -> object:
    """The first answer that is no refusal."""
    async with asyncio.timeout(60):
        while isinstance(found := await outcome(call()), RetryableError):
            await asyncio.sleep(0.02)
    return found


async def refused(call: Callable[[], Awaitable[object]], sqlstate: str) -> StatementError:
    """The first refusal of this kind; what a lost connection says before it doesn't count."""
    async with asyncio.timeout(60):
        while True:
            found = await outcome(call())
            assert isinstance(found, RetryableError), found
            if isinstance(found, StatementError):
                assert found.sqlstate == sqlstate, found
                return found


async def test_a_role_that_may_not_create_the_journal_is_told_so(tenant: Tenant) -> None:
    tenant.sql("REVOKE CREATE ON SCHEMA public FROM {role}")
    tenant.sql("REVOKE CREATE ON SCHEMA public FROM public")
    found = await refused(tenant.open, "42501")
    assert "permission denied" in str(found)
    tenant.sql("GRANT CREATE ON SCHEMA public TO {role}")
    journal = await tenant.open()
    assert journal.cluster_id == "a-cluster"
    await journal.close()


@dataclass(frozen=True)
class Refusal:
    """How the server comes to refuse an append, and what ends that."""

    sqlstate: str
    begin: str
    end: str


REFUSALS = {
    "permission": Refusal(
        "42501",
        "REVOKE INSERT ON {rows} FROM {role}",
        "GRANT INSERT ON {rows} TO {role}",
    ),
    "read-only": Refusal(
        "25006",
        "ALTER SYSTEM SET default_transaction_read_only = on",
        "SET default_transaction_read_only = off; ALTER SYSTEM RESET default_transaction_read_only",
    ),
    "trigger": Refusal(
        "P0001",
        "CREATE FUNCTION {rows}_no() RETURNS trigger AS"
        " 'BEGIN RAISE EXCEPTION ''not today''; END' LANGUAGE plpgsql;"
        " CREATE TRIGGER no BEFORE INSERT ON {rows} EXECUTE FUNCTION {rows}_no()",
        "DROP FUNCTION {rows}_no CASCADE",
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_an_append_that_is_refused_is_retriable_and_works_again_afterwards(
    tenant: Tenant, kind: str
) -> None:
    refusal = REFUSALS[kind]
    journal = await tenant.open()
    assert await journal.append(b"one") == 1
    assert (await journal.head()).position == 1
    with system_changed(tenant, refusal):
        await eventually_refused(journal, refusal.sqlstate)
        assert [row.body for row in await journal.read(0, 9)][:1] == [b"one"]
    assert isinstance(await answered(lambda: journal.append(b"two")), int)
    rows = await journal.read(0, 99)
    assert [rows[0].body, rows[-1].body] == [b"one", b"two"]
    assert b"refused" not in [row.body for row in rows]
    await journal.close()


async def eventually_refused(journal: PostgresJournal, sqlstate: str) -> None:
    """A setting reaches the connection that appends some time after it was changed."""
    async with asyncio.timeout(60):
        while not isinstance(found := await outcome(journal.append(b"early")), RetryableError):
            await asyncio.sleep(0.02)
    assert isinstance(found, StatementError)
    assert found.sqlstate == sqlstate, found
    # A connection is made anew, and what it finds is told as well.
    assert isinstance(await outcome(journal.append(b"refused")), RetryableError)


@contextmanager
def system_changed(tenant: Tenant, refusal: Refusal) -> Iterator[None]:
    tenant.sql(refusal.begin)
    tenant.sql("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        for statement in refusal.end.split("; "):
            tenant.sql(statement)
        tenant.sql("SELECT pg_reload_conf()")


async def test_too_many_connections_are_retriable(tenant: Tenant) -> None:
    journal = await tenant.open()
    tenant.sql("ALTER ROLE {role} CONNECTION LIMIT 0")
    found = await outcome(journal.append(b"none"))
    assert isinstance(found, RetryableError)
    assert "too many connections" in str(found)
    assert isinstance(await outcome(tenant.open()), RetryableError)
    tenant.sql("ALTER ROLE {role} CONNECTION LIMIT -1")
    assert await answered(lambda: journal.append(b"one")) == 1
    await journal.close()


@pytest.mark.parametrize(
    ("way", "sqlstate"), [("lock", "55P03"), ("cancel", "57014"), ("terminate", "57P01")]
)
async def test_a_read_that_waits_for_a_lock_is_ended_retriably(
    tenant: Tenant, way: str, sqlstate: str
) -> None:
    settings = PostgresSettings(**PATIENT | {"lock_timeout_ms": 200 if way == "lock" else 0})
    await (await tenant.open()).close()
    journal = await PostgresJournal.open(tenant.url, name=tenant.role, settings=settings)
    await journal.append(b"one")
    await journal.head()
    async with await psycopg.AsyncConnection.connect(tenant.server.url) as holder:
        await holder.execute(f"LOCK TABLE {tenant.rows} IN ACCESS EXCLUSIVE MODE".encode())
        read = asyncio.ensure_future(outcome(journal.read(0, 9)))
        while way != "lock" and not read.done():
            cursor = await holder.execute(
                f"SELECT pg_{way}_backend(pid) FROM pg_stat_activity"
                f" WHERE wait_event_type = 'Lock' AND usename = '{tenant.role}'".encode()
            )
            await cursor.fetchall()
            await asyncio.sleep(0.02)
        found = await read
    assert isinstance(found, RetryableError), found
    # One that is ended with its connection may be told by that alone.
    assert way == "terminate" or getattr(found, "sqlstate", "") == sqlstate, found
    rows = await answered(lambda: journal.read(0, 9))
    assert isinstance(rows, list)
    assert [row.body for row in rows] == [b"one"]
    await journal.close()


async def test_a_crash_of_another_backend_is_retriable_and_over_once_the_server_has_recovered(
    tenant: Tenant,
) -> None:
    """The server warns everybody (57P02) and ends them, which is what is seen of it, and is in
    recovery for a while (57P03)."""
    settings = PostgresSettings(**PATIENT | {"lock_timeout_ms": 0})
    await (await tenant.open()).close()
    journal = await PostgresJournal.open(tenant.url, name=tenant.role, settings=settings)
    await journal.append(b"one")
    await journal.head()
    holder = await psycopg.AsyncConnection.connect(tenant.server.url)
    await holder.execute(f"LOCK TABLE {tenant.rows} IN ACCESS EXCLUSIVE MODE".encode())
    read = asyncio.ensure_future(outcome(journal.read(0, 9)))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with asyncio.timeout(60):
        while await asyncio.to_thread(tenant.sql, waiting) != "1":
            assert not read.done()
    os.kill(holder.info.backend_pid, signal.SIGKILL)
    assert isinstance(await read, RetryableError)
    await holder.close()
    rows = await answered(lambda: journal.read(0, 9))
    assert isinstance(rows, list)
    assert [row.body for row in rows] == [b"one"]
    # The sequence leaves out some positions after a crash.
    assert isinstance(await answered(lambda: journal.append(b"two")), int)
    await journal.close()


async def test_a_server_that_shuts_down_refuses_retriably_and_goes_on_afterwards(
    tenant: Tenant,
) -> None:
    """Whoever is connected goes on until it has gone; who comes anew is refused (57P03)."""
    journal = await tenant.open()
    assert await journal.append(b"one") == 1
    tenant.server.begin_stop()
    async with asyncio.timeout(60):
        while not isinstance(found := await outcome(tenant.open()), RetryableError):
            assert isinstance(found, PostgresJournal)
            await found.close()
    assert "shutting down" in str(found)
    assert await journal.append(b"two") == 2
    await asyncio.to_thread(tenant.server.restart)
    rows = await answered(lambda: journal.read(0, 9))
    assert isinstance(rows, list)
    assert [row.body for row in rows] == [b"one", b"two"]
    assert await answered(lambda: journal.append(b"three")) == 3
    await journal.close()


NOW_AND_THEN = """
CREATE FUNCTION {rows}_no() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF random() < 0.1 THEN
        RAISE EXCEPTION 'now and then' USING ERRCODE = (
            ARRAY['40001', '40P01', '53100', '53200', '53400', '57014', '55P03', '58030', 'XX000']
        )[1 + floor(random() * 9)::int];
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER no BEFORE INSERT ON {rows} FOR EACH ROW EXECUTE FUNCTION {rows}_no()
"""
"""Of appends and of seals: serialization, deadlock, disk and memory full, and what else ends a
statement in the middle of the others."""


async def test_appends_and_seals_that_are_refused_now_and_then_lose_nothing(
    tenant: Tenant, tmp_path: Path
) -> None:
    await (await tenant.open()).close()
    tenant.sql(NOW_AND_THEN)
    agents = []
    for number in (1, 2):
        journal = await tenant.open()
        agent = Agent(number, tmp_path / str(number), journal, journal.cluster_id)
        settings = ClusterOrderSettings(commit_timeout_s=60)
        await agent.start(SystemClock(), number, settings=settings, tries=100)
        agents.append(agent)
    acked: list[int] = []
    for _ in range(10):
        answers = await asyncio.gather(
            *(agent.order.commit(ONE) for agent in agents for _ in range(5))
        )
        for (answer,) in answers:
            assert isinstance(answer, ProducerIds)
            acked.append(answer.first)
    for agent in agents:
        await answered(lambda agent=agent: agent.order.confirm_head(60))  # type: ignore[misc]
        assert agent.stopped is None
        applied = [
            answer.first
            for entry in agent.applied
            for answer in entry.outcome.answers
            if isinstance(answer, ProducerIds)
        ]
        assert sorted(applied) == sorted(acked)
        await agent.close()
