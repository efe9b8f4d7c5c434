"""Agents on a real PostgreSQL that is cut off, killed, hung, or brought back older."""

import asyncio
import shutil
import sqlite3
import traceback
from pathlib import Path

import psycopg
import pytest

from penstock.model.errors import InvalidRequestError, JournalOlderError, RetryableError
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.replica.dump import state_digest
from penstock.replica.postgres import PostgresJournal, PostgresSettings
from penstock.replica.postgres.checks import check_durability
from penstock.state.answers import ProducerIds
from penstock.state.commands import AllocateProducerIds
from penstock.system import SystemClock
from support.cluster_orders import Agent, outcome
from support.postgres import PATIENT, PostgresServer
from support.tcp_proxy import TcpProxy
from support.waiting import until

ONE = [AllocateProducerIds(count=1)]
QUICK = PostgresSettings(append_timeout_s=2, call_timeout_s=2, connect_timeout_s=2)


async def connected(
    url: str, name: str, *, settings: PostgresSettings | None = None
) -> PostgresJournal:
    settings = settings or PostgresSettings(**PATIENT)
    return await PostgresJournal.open(
        url, name=name, new_cluster_id=lambda: "a-cluster", settings=settings
    )


async def started(
    url: str,
    name: str,
    folder: Path,
    agent_id: int,
    *,
    settings: PostgresSettings | None = None,
) -> Agent:
    async with asyncio.timeout(90):
        # A disk that is busy may take longer for a new table than a call has.
        while isinstance(
            journal := await outcome(connected(url, name, settings=settings)), Exception
        ):
            assert isinstance(journal, RetryableError), journal
            await asyncio.sleep(0.1)
    assert isinstance(journal, PostgresJournal)
    agent = Agent(agent_id, folder / str(agent_id), journal, journal.cluster_id)
    timeouts = ClusterOrderSettings(commit_timeout_s=60)
    await agent.start(SystemClock(), agent_id, settings=timeouts, tries=100)
    return agent


class Load:
    """Commits from some agents until told to end, and what became of each."""

    def __init__(self, agents: list[Agent]) -> None:
        self.acked: list[int] = []
        self.failed: list[object] = []
        self._ending = False
        self._tasks = [asyncio.ensure_future(self._run(agent)) for agent in agents]

    async def _run(self, agent: Agent) -> None:
        while not self._ending:
            calls = [outcome(agent.order.commit(ONE)) for _ in range(5)]
            firsts = []
            for found in await asyncio.gather(*calls):
                if isinstance(found, list):
                    assert isinstance(found[0], ProducerIds)
                    firsts.append(found[0].first)
                else:
                    self.failed.append(found)
            assert firsts == sorted(firsts)
            self.acked += firsts

    async def end(self) -> None:
        self._ending = True
        await asyncio.gather(*self._tasks)

    async def until(self, count: int) -> None:
        """Until so many more are acked."""
        wanted = len(self.acked) + count
        await until(
            lambda: len(self.acked) >= wanted or any(t.done() for t in self._tasks), timeout_s=90
        )


async def check_equal(agents: list[Agent], load: Load) -> None:
    """All that was acked is in every agent's state, once, and the states are equal."""
    for agent in agents:
        await agent.order.confirm_head(90)
        assert agent.stopped is None, agent.stopped
    assert len(load.acked) == len(set(load.acked))
    for agent in agents:
        applied = [
            answer.first
            for entry in agent.applied
            for answer in entry.outcome.answers
            if isinstance(answer, ProducerIds)
        ]
        assert set(load.acked) <= set(applied)
    assert len({agent.order.position for agent in agents}) == 1
    for agent in agents:
        await agent.close()
    assert len({digest_of(agent) for agent in agents}) == 1


def digest_of(agent: Agent) -> bytes:
    connection = sqlite3.connect(agent.folder / "replica.sqlite")
    try:
        return state_digest(connection)
    finally:
        connection.close()


async def test_two_agents_interleave(postgres_url: str, journal_name: str, tmp_path: Path) -> None:
    agents = [await started(postgres_url, journal_name, tmp_path, n) for n in (1, 2)]
    load = Load(agents)
    await load.until(500)
    await load.end()
    assert not load.failed
    await check_equal(agents, load)


async def test_commits_in_doubt_are_resolved_by_their_numbers(
    own_postgres: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    """Requests arrive and replies are lost, again and again: nothing is lost or done twice."""
    proxy = TcpProxy(own_postgres.port)
    await proxy.start()
    mine = await started(proxy.url(), journal_name, tmp_path, 1)
    other = await started(own_postgres.url, journal_name, tmp_path, 2)
    load = Load([mine, other])
    for _ in range(8):
        await load.until(20)
        proxy.swallows = True
        await asyncio.sleep(0.02)
        proxy.swallows = False
        proxy.cut()
    await load.until(100)
    await load.end()
    assert not load.failed
    await check_equal([mine, other], load)
    await proxy.stop()


async def test_backends_that_are_terminated_lose_nothing(
    own_postgres: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    agents = [await started(own_postgres.url, journal_name, tmp_path, n) for n in (1, 2)]
    load = Load(agents)
    async with await psycopg.AsyncConnection.connect(
        own_postgres.url, autocommit=True
    ) as connection:
        for _ in range(6):
            await load.until(30)
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'penstock'"
            )
    await load.until(30)
    await load.end()
    assert not load.failed
    await check_equal(agents, load)


async def test_a_killed_and_restarted_server_loses_nothing(
    own_postgres: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    agents = [await started(own_postgres.url, journal_name, tmp_path, n) for n in (1, 2, 3)]
    load = Load(agents)
    loop = asyncio.get_running_loop()
    for _ in range(3):
        await load.until(100)
        await loop.run_in_executor(None, own_postgres.kill)
        found = await outcome(agents[0].order.confirm_head())
        assert isinstance(found, RetryableError)
        await loop.run_in_executor(None, own_postgres.start)
    await load.until(100)
    await load.end()
    assert not load.failed
    await check_equal(agents, load)


async def test_a_gap_that_an_open_transaction_holds_is_waited_for_and_what_it_left_is_read(
    own_postgres: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    agent = await started(own_postgres.url, journal_name, tmp_path, 1)
    other = await started(own_postgres.url, journal_name, tmp_path, 2)
    rows = f"{journal_name}_journal"
    for ends in ("COMMIT", "ROLLBACK"):
        holder = await psycopg.AsyncConnection.connect(own_postgres.url)
        cursor = await holder.execute(
            f"INSERT INTO {rows} (stamp_ms, body) SELECT stamp_ms, body FROM {rows}"
            " ORDER BY position LIMIT 1 RETURNING position".encode()
        )
        row = await cursor.fetchone()
        assert row is not None
        held = row[0]
        commit = asyncio.ensure_future(agent.order.commit(ONE))
        await until(lambda held=held: other.order.position == held - 1, timeout_s=90)  # type: ignore[misc]
        # Past the time at which the gap is sealed: the seal waits for the transaction.
        await asyncio.sleep(0.4)
        assert not commit.done()
        assert other.order.position == held - 1
        await holder.execute(ends.encode())
        await holder.close()
        await commit
        found = await other.journal.row(held)
        assert found is not None
        assert bool(found.body) == (ends == "COMMIT")
    await other.order.confirm_head()
    assert other.order.position == agent.order.position
    await agent.close()
    await other.close()


async def test_a_seal_beats_an_append_that_has_taken_its_position_and_not_inserted(
    own_postgres: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    """The position of a sequence that nobody inserted is sealed, whatever comes later."""
    agents = [await started(own_postgres.url, journal_name, tmp_path, n) for n in (1, 2)]
    load = Load(agents)
    async with await psycopg.AsyncConnection.connect(
        own_postgres.url, autocommit=True
    ) as connection:
        for _ in range(20):
            await load.until(5)
            await connection.execute(
                "SELECT nextval(pg_get_serial_sequence(%s, 'position'))",
                (f"{journal_name}_journal",),
            )
            # Seals ahead of the sequence meet appends that take their position just then.
            await agents[0].journal.seal([agents[0].order.position + 3])
    await load.until(20)
    await load.end()
    assert not load.failed
    await check_equal(agents, load)


@pytest.mark.parametrize("way", ["proxy", "server"])
async def test_a_server_that_hangs_does_not_hang_the_agent(
    own_postgres: PostgresServer, journal_name: str, tmp_path: Path, way: str
) -> None:
    proxy = TcpProxy(own_postgres.port)
    await proxy.start()
    agent = await started(proxy.url(), journal_name, tmp_path, 1, settings=QUICK)
    await agent.order.commit(ONE)
    if way == "proxy":
        proxy.hang()
    else:
        own_postgres.pause()
    try:
        found = await outcome(agent.order.commit(ONE, timeout_s=0.5))
        assert isinstance(found, RetryableError)
        found = await outcome(agent.order.confirm_head(0.5))
        assert isinstance(found, RetryableError)
        # All its connections are given up by themselves.
        await until(lambda: agent.order.answering_since_s is None, timeout_s=90)
    finally:
        if way == "proxy":
            proxy.cut()
            proxy.flow()
        else:
            own_postgres.resume()
    (answer,) = await agent.order.commit(ONE, timeout_s=90)
    assert answer == ProducerIds(2, 1)
    await agent.close()
    await proxy.stop()


async def test_a_journal_that_was_restored_older_is_noticed(
    own_postgres: PostgresServer, journal_name: str, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    agents = [await started(own_postgres.url, journal_name, tmp_path, n) for n in (1, 2)]
    load = Load(agents)
    await load.until(50)
    await load.end()
    # A cold copy, as of now.
    copy = own_postgres.folder / "copy"
    await loop.run_in_executor(None, own_postgres.stop)
    shutil.copytree(own_postgres.data, copy)
    for path in [copy, *copy.rglob("*")]:
        shutil.chown(path, own_postgres.data.owner(), own_postgres.data.group())
    await loop.run_in_executor(None, own_postgres.start)
    load = Load(agents)
    await load.until(50)
    await load.end()
    assert not load.failed
    await loop.run_in_executor(None, own_postgres.stop)
    shutil.rmtree(own_postgres.data)
    copy.rename(own_postgres.data)
    await loop.run_in_executor(None, own_postgres.start)
    for agent in agents:
        await until(lambda agent=agent: agent.stopped is not None, timeout_s=90)  # type: ignore[misc]
        assert isinstance(agent.stopped, JournalOlderError)
        assert isinstance(await outcome(agent.order.commit(ONE)), JournalOlderError)
        await agent.close()


async def test_what_was_not_replicated_is_not_called_done(
    own_postgres: PostgresServer, journal_name: str
) -> None:
    """A server that stops waiting for its standby reports success, with a warning."""
    # As long as it takes to find the backend that waits, on a slow machine.
    settings = PostgresSettings(**PATIENT)
    journal = await connected(own_postgres.url, journal_name, settings=settings)
    assert await journal.append(b"one") == 1
    loop = asyncio.get_running_loop()
    own_postgres.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    own_postgres.sql("SELECT pg_reload_conf()")
    try:
        await until(
            lambda: own_postgres.sql("SHOW synchronous_standby_names") == "nobody", timeout_s=90
        )
        append = asyncio.ensure_future(outcome(journal.append(b"two")))
        waiting = (
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event = 'SyncRep' AND application_name = 'penstock'"
        )
        while not append.done():
            await loop.run_in_executor(None, own_postgres.sql, waiting)
            await asyncio.sleep(0.05)
        found = await append
        assert isinstance(found, RetryableError)
        assert "warns" in str(found)
    finally:
        own_postgres.sql("ALTER SYSTEM RESET synchronous_standby_names")
        own_postgres.sql("SELECT pg_reload_conf()")
    await journal.append(b"three")
    await journal.close()


async def test_a_connection_that_was_lost_unused_is_told_by_a_read_that_fails(
    own_postgres: PostgresServer, journal_name: str
) -> None:
    """Else a follower would go on, on another database, without looking at it first."""
    journal = await connected(own_postgres.url, journal_name)
    await journal.append(b"one")
    for call in (lambda: journal.read(0, 9), lambda: journal.row(1), journal.head):
        await call()
        own_postgres.sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'penstock'"
        )
        await asyncio.sleep(0.2)
        with pytest.raises(RetryableError):
            await call()
        await call()
    # An append has its number: it needs no telling.
    assert await journal.append(b"two") == 2
    await journal.close()


async def test_an_append_that_fails_takes_those_behind_it_along(
    own_postgres: PostgresServer, journal_name: str
) -> None:
    settings = PostgresSettings(**PATIENT | {"lock_timeout_ms": 300})
    journal = await connected(own_postgres.url, journal_name, settings=settings)
    await journal.append(b"one")
    holder = await psycopg.AsyncConnection.connect(own_postgres.url)
    await holder.execute(f"LOCK TABLE {journal_name}_journal IN ACCESS EXCLUSIVE MODE".encode())
    appends = [asyncio.ensure_future(outcome(journal.append(b"%d" % n))) for n in range(5)]
    await asyncio.wait([appends[0]])
    await holder.rollback()
    await holder.close()
    for found in await asyncio.gather(*appends):
        assert isinstance(found, RetryableError), found
    position = await journal.append(b"two")
    rows = await journal.read(0, 99)
    # Some may have been carried out before the connection was gone; in order all the same.
    assert rows[-1].position == position
    assert b"0" not in [row.body for row in rows]
    bodies = [row.body for row in rows[1:-1]]
    assert bodies == sorted(bodies)
    await journal.close()


async def test_hints_wake_a_follower_that_polls_seldom(
    own_postgres: PostgresServer, journal_name: str
) -> None:
    # Whoever has just heard a hint sends none, and what it heard may have come late here.
    settings = PostgresSettings(**PATIENT, notify_quiet_ms=0)
    mine = await connected(own_postgres.url, journal_name, settings=settings)
    other = await connected(own_postgres.url, journal_name, settings=settings)
    async with asyncio.timeout(60):
        listening = (
            "SELECT count(*) FROM pg_stat_activity"
            f" WHERE state = 'idle' AND query = 'LISTEN {journal_name}_journal'"
        )
        while own_postgres.sql(listening) != "2":
            await mine.wait(0, 0.05)
            await other.wait(0, 0.05)
    for position in range(1, 4):
        waiting = asyncio.ensure_future(mine.wait(position - 1, 600))
        assert await other.append(b"x") == position
        async with asyncio.timeout(60):
            await waiting
    await mine.close()
    await other.close()


@pytest.mark.parametrize("setting", ["fsync=off", "synchronous_commit=off"])
async def test_a_server_that_loses_commits_is_refused_or_told_better(
    own_postgres: PostgresServer, journal_name: str, setting: str
) -> None:
    name, value = setting.split("=")

    async def scenario() -> None:
        if name == "fsync":
            with pytest.raises(InvalidRequestError, match="fsync is off"):
                await connected(own_postgres.url, journal_name)
            allowed = PostgresSettings(**PATIENT, allow_fsync_off=True)
            journal = await connected(own_postgres.url, journal_name, settings=allowed)
        else:
            # It is a setting of the session, so that the session sets it.
            async with await psycopg.AsyncConnection.connect(
                own_postgres.url, autocommit=True
            ) as connection:
                found = []
                for _ in range(2):
                    row = await (await connection.execute("SHOW synchronous_commit")).fetchone()
                    assert row is not None
                    found += row
                    await check_durability(connection)
                assert found == ["off", "on"]
            journal = await connected(own_postgres.url, journal_name)
            await journal.append(b"x")
        await journal.close()

    own_postgres.sql(f"ALTER SYSTEM SET {name} = {value}")
    own_postgres.restart_plain()
    try:
        await scenario()
    finally:
        own_postgres.sql(f"ALTER SYSTEM RESET {name}")
        own_postgres.restart()


async def test_a_server_that_is_not_there_is_retriable(journal_name: str) -> None:
    with pytest.raises(RetryableError):
        await connected("postgresql://postgres@127.0.0.1:1/postgres", journal_name)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/db", RetryableError),
        ("postgresql://me:s3cret@127.0.0.1:1/db?nonsense=1", InvalidRequestError),
        ("host=127.0.0.1 port=1 password=s3cret nonsense", InvalidRequestError),
        ("postgresql://me:s3cret@[::1/db", InvalidRequestError),
    ],
)
async def test_errors_have_no_password_in_them(url: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        await connected(url, "name")
    told = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in told.replace(url, "")


async def test_agents_that_start_at_once_create_one_journal(
    own_postgres: PostgresServer, journal_name: str
) -> None:
    # Which error PostgreSQL gives to whom comes second is chance: 12 rounds of 8 meet all three.
    for number in range(12):
        name = f"{journal_name}_{number}"
        agents = await asyncio.gather(*(connected(own_postgres.url, name) for _ in range(8)))
        late = await PostgresJournal.open(
            own_postgres.url, name=name, new_cluster_id=lambda: "another"
        )
        for journal in (*agents, late):
            assert journal.cluster_id == "a-cluster"
            await journal.close()
