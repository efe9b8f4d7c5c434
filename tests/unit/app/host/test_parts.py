"""Workers of one host in this process: what lies in one's WAL when the database is behind, when
the host has fewer workers, or none."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
)
from pathlib import Path
from typing import Any

import pytest

from penstock.app.host.parts import WorkerParts, WriterParts
from penstock.app.server import Server
from penstock.config.about import MIB
from penstock.config.settings import ServerSettings
from penstock.log.append import lane
from penstock.log.append.frames import FrameCommitter
from penstock.log.append.plan import PartitionAppend
from penstock.log.findings import DamagedError
from penstock.membership.membership import Membership
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.records.batch import check_batch
from penstock.recovery.directory import find_data, verify_directory
from penstock.recovery.verify import FindingKind
from penstock.state.answers import BatchStatus, TopicCreated
from penstock.state.commands import CreateTopic
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from penstock.wal import WalWriter
from support.batches import ANY
from support.cluster_rig import START_MS, one_batch, passing, records_of
from support.waiting import until

VALUE = b"x" * 20_000


def settings_for(data: Path, workers: int, **changes: Any) -> ServerSettings:
    values: dict[str, Any] = {
        "kafka": "127.0.0.1:0",
        "http": "",
        "wal_bytes_max": 8 * MIB,
        "wal_file_bytes": 2 * MIB,
        "segment_age_ms": 600_000,
        "drain_timeout_ms": 0,
        "retention_check_ms": 600_000,
    }
    return ServerSettings(data=str(data), workers=workers, **(values | changes))


class Host:
    """Started servers: worker 0 and the others; or one that is alone."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.servers: list[Server] = []
        self.failed: list[BaseException] = []

    async def start(self, workers: int, **changes: Any) -> None:
        settings = settings_for(self.data, workers, **changes)
        for index in range(workers):
            server = Server(
                settings,
                clock=SystemClock(),
                random=SystemRandom(),
                on_fatal=self.failed.append,
                worker=index if workers > 1 else None,
            )
            await server.start()
            self.servers.append(server)

    async def stop(self) -> None:
        while self.servers:
            await self.servers.pop().stop()
        assert not self.failed

    def log(self, index: int) -> Any:
        return self.servers[index].parts.log

    async def topic(self, name: str) -> PartitionKey:
        (answer,) = await self.log(0).commit(
            [CreateTopic(name=name, topic_id=name.encode().ljust(16, b"."), partitions=1)]
        )
        assert isinstance(answer, TopicCreated), answer
        return partition_key(TopicKey(answer.topic_key), 0)

    async def append(self, index: int, key: PartitionKey, value: bytes) -> int:
        batch = one_batch(value, (-1, -1, -1))
        append = PartitionAppend(key, check_batch(memoryview(batch), ANY, 0))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def over(error: PenstockError | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.log(index).append([append], timeout_ms=60_000, done=over)
        await done
        assert append.status is BatchStatus.STORED
        return append.base_offset

    async def values(self, index: int, key: PartitionKey) -> list[bytes]:
        log = self.log(index)
        await log._order.confirm_head()
        for cached in list(log.tail.partitions()):
            log.tail.forget(cached)
        at, found = 0, []
        while at < log.high_watermark(key):
            read = await log.reader.read_loaded(key, at, 100_000)
            found += [value for _, value in records_of(b"".join(map(bytes, read.views)))]
            at = read.end_offset
        return found


@contextlib.asynccontextmanager
async def hosting(data: Path) -> AsyncIterator[Host]:
    host = Host(data)
    try:
        yield host
    finally:
        await host.stop()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with hosting(tmp_path) as host:
        yield host


def run_host(data: Path, test: Callable[[Host], Awaitable[None]]) -> None:
    """Run a part of a test."""

    async def main() -> None:
        async with hosting(data) as host:
            await test(host)

    asyncio.run(main())


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d " % number + VALUE for number in range(begin, begin + count)]


@pytest.mark.slow
async def test_a_worker_moves_and_keeps_what_the_database_lacks(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in which nothing seems to be named is written over: here the disk is full when the
    database is to follow, so that it follows only when it is asked to."""
    await host.start(2)
    key = await host.topic("t")
    worker = host.servers[1].parts
    assert isinstance(worker, WorkerParts)
    uploader = worker.log.uploader
    assert uploader is not None
    monkeypatch.setattr(FrameCommitter, "commit_behind", lambda _: False)
    wanted = numbered(600)
    # More than two files' worth, and uploads while it comes.
    for number, value in enumerate(wanted):
        await host.append(1, key, value)
        if number % 50 == 49:
            uploader.look_again()
            await passing(0.01)
        if number == 300:
            assert await uploader.drain(60)
    assert await host.values(1, key) == wanted
    assert await host.values(0, key) == wanted
    assert await uploader.drain(60), "what the database lacks is moved, too"
    assert await host.values(1, key) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_what_lies_in_the_wal_of_a_worker_that_is_no_more_is_served_and_moved(
    host: Host, workers: int
) -> None:
    await host.start(3)
    key = await host.topic("t")
    wanted = numbered(5)
    for value in wanted:
        await host.append(2, key, value)
    await host.stop()
    await host.start(workers)
    assert await host.values(0, key) == wanted, "served from where it lies"
    parts = host.servers[0].parts

    def is_moved() -> bool:
        queries = parts.queries()
        return not any(queries.wal_generations(wal.wal_key) for wal in queries.wals())

    await until(is_moved)
    assert await host.values(workers - 1, key) == wanted
    assert await host.append(workers - 1, key, b"more") == len(wanted)
    await host.stop()
    # Back again: the directory is another WAL now.
    await host.start(3)
    assert await host.append(2, key, b"again") == len(wanted) + 1
    for index in range(3):
        assert await host.values(index, key) == [*wanted, b"more", b"again"]


@pytest.mark.slow
def test_verify_names_damage_in_each_worker_s_wal(tmp_path: Path) -> None:
    async def fill(host: Host) -> None:
        await host.start(3)
        key = await host.topic("t")
        for value in numbered(3):
            await host.append(1, key, value)
            await host.append(2, key, value)

    run_host(tmp_path, fill)
    layout = find_data(tmp_path)
    report = asyncio.run(verify_directory(layout))
    assert report.ok, report.findings
    assert report.records == 6
    for path in layout.worker(1).glob("wal/*.wal"):
        data = path.read_bytes()
        path.write_bytes(data.replace(b"1 xxx", b"1 xyx", 1))
    (batch, frame) = asyncio.run(verify_directory(layout)).findings
    assert (batch.kind, frame.kind) == (FindingKind.DAMAGED, FindingKind.DAMAGED)
    assert "offsets 2 to 2 in WAL generation 1 of worker WAL" in batch.subject
    shutil.rmtree(layout.worker(2))
    report = asyncio.run(verify_directory(layout))
    missing = [found for found in report.findings if found.kind is FindingKind.MISSING]
    assert len(missing) == 3, report.findings
    assert all("no worker's directory" in found.detail for found in missing)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 1], ids=["its worker", "a worker that is no more"])
@pytest.mark.parametrize("owner", [0, 1])
def test_a_missing_wal_file_is_damage_to_every_worker(
    tmp_path: Path, owner: int, count: int
) -> None:
    """And never an error that a reader of another worker's WAL is told to try again for ever."""

    async def fill(host: Host) -> None:
        await host.start(2)
        for name, index in (("lost", owner), ("kept", 1 - owner)):
            key = await host.topic(name)
            for value in numbered(3):
                await host.append(index, key, value)

    run_host(tmp_path, fill)
    layout = find_data(tmp_path)
    for path in (layout.worker(1) if owner else layout.root).glob("wal/*.wal"):
        path.unlink()

    async def read(host: Host) -> None:
        await host.start(count)
        lost, kept = (
            partition_key(host.log(0)._view.topic(name).topic_key, 0) for name in ("lost", "kept")
        )
        for index in range(count):
            assert await host.values(index, kept) == numbered(3)
            for _ in range(200):
                with pytest.raises((DamagedError, RetryableError)) as caught:
                    await host.values(index, lost)
                if caught.type is DamagedError:
                    break
                await passing(0.05)  # the WAL of a worker that is no more is being taken over
            assert caught.type is DamagedError, caught.value
            assert host.log(index).damages.known()

    run_host(tmp_path, read)


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    assert server.http_address is not None
    connection = http.client.HTTPConnection(*server.http_address, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.slow
async def test_each_worker_tells_of_all_without_a_secret_and_no_web_page_may_change_that(
    host: Host,
) -> None:
    await host.start(3, http="127.0.0.1:0")
    for index, server in enumerate(host.servers):
        status, body = await asyncio.to_thread(ask, server, "/v1/agents")
        assert status == 200
        agents = json.loads(body)["agents"]
        assert {agent["status"] for agent in agents} == {"live"}
        assert sorted(agent["kafka"] for agent in agents) == sorted(
            str(other.advertised) for other in host.servers
        )
        status, body = await asyncio.to_thread(ask, server, "/v1/status")
        told = json.loads(body)
        assert told["worker"] == index
        page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text()
        assert [name for name in told if f"`{name}`" not in page] == []
        status, body = await asyncio.to_thread(ask, server, "/metrics")
        assert status == 200
        assert b"penstock_group_shards" in body, index
        assert index or b"penstock_wal_free_bytes" in body
    path = f"/v1/agents/{agents[0]['id']}"
    status, _ = await asyncio.to_thread(
        ask, host.servers[0], path, "DELETE", origin="http://example.org"
    )
    assert status == 403
    status, _ = await asyncio.to_thread(ask, host.servers[0], path, "DELETE")
    assert status == 409, "it lives"


async def test_each_worker_tells_of_its_own_wal(host: Host) -> None:
    await host.start(2)
    key = await host.topic("t")
    await host.append(0, key, b"first")
    await host.append(1, key, b"second")
    for server in host.servers:
        wal = server.parts.status()["wal"]
        assert 0 < wal["pending_bytes"] < 1000, "one batch"
        assert 0 < wal["free_bytes"] < wal["bytes_max"] == 8 * MIB
        assert (wal["drained"], wal["upload_error"]) == (False, None)
        gauges = server.parts.gauges()
        for name in ("pending_bytes", "free_bytes", "bytes_max"):
            assert gauges[f"penstock_wal_{name}"] == wal[name]


@pytest.mark.slow
def test_batches_of_a_worker_do_not_make_the_database_follow_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "BEHIND_S", 3600.0)

    async def test(host: Host) -> None:
        await host.start(3)
        key = await host.topic("t")
        await host.append(1, key, b"0")
        for number in range(1, 4):
            await host.append(1, key, b"%d" % number)
            # Whoever reads what the database lacks has it follow; so does whoever looks by time.
            for index in range(3):
                log = host.log(index)
                await log._order.confirm_head()
                assert await log.offset_for_time(key, START_MS) == (0, START_MS)
                assert await host.values(index, key) == [b"%d" % at for at in range(number + 1)]

    run_host(tmp_path, test)


@pytest.mark.slow
async def test_a_worker_says_that_it_lives_while_it_recovers_its_wal(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: silent, it would be fenced at each of its starts."""
    await host.start(2)
    key = await host.topic("t")
    sent = numbered(3)
    for value in sent:
        await host.append(1, key, value)
    await host.stop()

    me = int((tmp_path / "workers" / "1" / "agent-id").read_text())
    opens = WalWriter.open
    positions: set[int] = set()
    lived: list[bool] = []

    def open_slowly(*arguments: Any, **options: Any) -> WalWriter:
        if host.servers:  # worker 0 is there, so this is worker 1
            view = host.servers[0].parts.view
            while (agent := view.agent(me)) is not None and agent.live and len(positions) < 4:
                positions.add(view.last_position(me))
                threading.Event().wait(0.02)
            lived.append(agent is not None and agent.live)
        return opens(*arguments, **options)

    monkeypatch.setattr(WalWriter, "open", open_slowly)
    await host.start(2, heartbeat_ms=100)
    assert lived == [True]
    assert await host.values(1, key) == sent


def membership_of(server: Server) -> Membership:
    company = server.parts.agent.company
    assert company is not None
    assert company.membership is not None
    return company.membership


def leading(host: Host, index: int) -> tuple[int, ...]:
    """The agents that clients of a worker are sent to."""
    return host.servers[index].parts.broker.nodes.leaders("").candidates


async def test_workers_send_no_client_to_a_worker_that_has_missed_a_beat(host: Host) -> None:
    await host.start(3, heartbeat_ms=50, agent_timeout_ms=60_000)
    ids = sorted(server.parts.broker.node_id for server in host.servers)
    for index in range(3):
        await until(lambda: leading(host, index) == tuple(ids))  # noqa: B023
    silent = host.servers[2].parts.broker.node_id
    await membership_of(host.servers[2]).close()
    for index in range(2):
        await until(lambda: silent not in leading(host, index))  # noqa: B023
    assert host.servers[0].parts.view.agent(silent).live, "it is not fenced"


async def test_a_worker_that_no_longer_reaches_the_journal_sends_clients_to_others(
    host: Host,
) -> None:
    await host.start(3)
    worker = host.servers[1].parts
    assert isinstance(worker, WorkerParts)
    me = worker.broker.node_id
    await until(lambda: me in leading(host, 1))
    writer = host.servers[0].parts
    assert isinstance(writer, WriterParts)
    await writer.hub.close()
    worker.order.head_confirmed_s -= 3.0
    assert me not in leading(host, 1)
    assert len(leading(host, 1)) == 2
    await writer.hub.start()
    await until(lambda: me in leading(host, 1))
