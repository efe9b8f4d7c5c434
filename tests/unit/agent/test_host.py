"""The worker that writes a host's journal and another one, assembled as servers assemble them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.agent.assembly import Agent, assemble
from penstock.agent.host import HostFoundation, HostJournal
from penstock.agent.host_place import HostPlace
from penstock.agent.own import OwnFoundation, OwnJournal
from penstock.agent.ports import AgentJournal, AgentPorts
from penstock.agent.settings import AgentSettings
from penstock.agent.thread_queries import ThreadQueries
from penstock.groups.settings import GroupSettings
from penstock.kafka.settings import KafkaSettings
from penstock.log import LogSettings
from penstock.log.append.plan import PartitionAppend
from penstock.log.wals.claims import WalFolder
from penstock.model.errors import FatalStorageError, PenstockError, RetryableError
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.objects import open_store
from penstock.order.host.streams import socket_path
from penstock.order.protocol import AgentIdentity
from penstock.records.batch import check_batch
from penstock.state.answers import TopicCreated, TransactionSettled
from penstock.state.commands import CreateTopic
from penstock.state.schema import FEATURE_LEVEL_MAX
from penstock.state.transaction_commands import AddToTransaction, InitTransaction
from penstock.system.believed_clock import BelievedClock
from support.batches import ANY
from support.cluster_rig import one_batch, records_of
from support.simulated.clock import ManualClock
from support.simulated.device import SimulatedDevice
from support.simulated.randomness import SeededRandom
from support.waiting import until

GRACE_S = 60.0
WRITER, WORKER = 1, 2


class Life:
    """One agent, its clock, and the file system under its WAL."""

    def __init__(self, folder: Path, agent_id: int) -> None:
        self.folder = folder
        self.agent_id = agent_id
        self.clock = ManualClock()
        self.device = SimulatedDevice()
        self.fatal: list[BaseException] = []
        self.agent: Agent
        self._pool = ThreadPoolExecutor(2)
        self._closes: list[Callable[[], object]] = []

    async def start(self, journal: AgentJournal) -> None:
        random = SeededRandom(self.agent_id)
        ports = AgentPorts(
            clock=BelievedClock(self.clock, after_ms=600_000),
            random=random,
            on_fatal=self.fatal.append,
            journal=journal,
            open_store=lambda _: open_store(self.folder / "objects", executor=self._pool),
            open_queries=self._open_queries,
            wal_folder=WalFolder(
                device=self.device, random=random, file_bytes=64 << 10, bytes_max=512 << 10
            ),
            scratch=self.folder / f"scratch{self.agent_id}",
            pool=self._pool,
            on_close=self._closes.append,
        )
        settings = AgentSettings(
            identity=AgentIdentity(
                agent_id=self.agent_id,
                endpoint=f"host:{self.agent_id}",
                level_max=FEATURE_LEVEL_MAX,
            ),
            advertised_host="host",
            advertised_port=self.agent_id,
            log=LogSettings(
                frame_bytes_max=32 << 10,
                segment_age_ms=3_600_000,
                delete_grace_ms=int(GRACE_S * 1000),
            ),
            groups=GroupSettings(),
            kafka=KafkaSettings(auto_create_topics=False),
            retention_check_s=3600.0,
        )
        self.agent = await assemble(settings, ports)
        await self.agent.start()

    async def end(self) -> None:
        await self.agent.groups.close()
        await self.agent.drain(0.0)
        self._pool.shutdown()
        while self._closes:
            self._closes.pop()()

    async def topic(self, name: str, **configs: str) -> PartitionKey:
        (answer,) = await self.agent.foundation.order.commit(
            [
                CreateTopic(
                    name=name,
                    topic_id=name.encode().ljust(16, b"."),
                    partitions=1,
                    configs={key.replace("_", "."): value for key, value in configs.items()},
                )
            ]
        )
        assert isinstance(answer, TopicCreated), answer
        return partition_key(TopicKey(answer.topic_key), 0)

    def send(self, key: PartitionKey, value: bytes) -> asyncio.Future[None]:
        batch = check_batch(memoryview(one_batch(value)), ANY, 0)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        self.agent.foundation.log.append(
            [PartitionAppend(key, batch)], timeout_ms=60_000, done=done
        )
        return answer

    async def values(self, key: PartitionKey) -> list[bytes]:
        """Read what lies in WALs and objects, since memory is emptied first."""
        log = self.agent.foundation.log
        log.tail.forget(key)
        read = await log.reader.read_loaded(key, 0, 100_000)
        assert read is not None
        return [value for _, value in records_of(b"".join(map(bytes, read.views)))]

    def _open_queries(self, path: Path, _: object) -> ThreadQueries:
        queries = ThreadQueries(path)
        self._closes.append(queries.close)
        return queries


class Pair:
    """Two workers of one host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer, self.worker = Life(folder, WRITER), Life(folder, WORKER)

    async def start(self) -> None:
        devices = {0: self.writer.device}
        place = HostPlace(socket=socket_path(self.folder), find_wals=lambda _: devices.get)
        database = self.folder / "metadata.sqlite"
        await self.writer.start(OwnJournal(database=database, host=place))
        await self.worker.start(HostJournal(database=database, host=place))

    @property
    def own(self) -> OwnFoundation:
        foundation = self.writer.agent.foundation
        assert isinstance(foundation, OwnFoundation)
        return foundation

    @property
    def other(self) -> HostFoundation:
        foundation = self.worker.agent.foundation
        assert isinstance(foundation, HostFoundation)
        return foundation


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    await pair.start()
    yield pair
    await pair.worker.end()
    await pair.writer.end()


async def test_a_worker_serves_nothing_stored_once_its_state_may_be_too_old(pair: Pair) -> None:
    """What it takes for stored may have been deleted by now."""
    key = await pair.writer.topic("t")
    await pair.writer.send(key, b"a")
    await pair.other.order.confirm_head()
    assert await pair.worker.values(key) == [b"a"]
    assert pair.own.hub is not None
    await pair.own.hub.close()
    pair.worker.clock.advance(GRACE_S)
    with pytest.raises(RetryableError, match="has not been confirmed for"):
        await pair.worker.values(key)
    await pair.own.hub.start()
    await until(lambda: pair.other.order.answering_since_s is not None)


async def test_only_the_worker_that_writes_the_journal_applies_retention(pair: Pair) -> None:
    key = await pair.writer.topic("t", penstock_retention_messages="1")
    for value in (b"a", b"b", b"c"):
        await pair.writer.send(key, value)
    await pair.other.order.confirm_head()
    await pair.other.log.keeper.run_once()
    await pair.own.order.confirm_head()
    assert pair.own.log.log_start(key) == 0
    await pair.own.log.keeper.run_once()
    assert pair.own.log.log_start(key) == 2


async def test_only_the_worker_that_writes_the_journal_ends_transactions(pair: Pair) -> None:
    init = InitTransaction(transactional_id="x", timeout_ms=1_000)
    (begun,) = await pair.other.log.commit([init])
    assert isinstance(begun, TransactionSettled), begun
    add = AddToTransaction(
        transactional_id="x",
        producer_id=begun.producer_id,
        epoch=begun.epoch,
        partitions=[],
        groups=["g"],
    )
    await pair.other.log.commit([add])
    for life in (pair.writer, pair.worker):
        life.clock.advance(1)
    assert await pair.other.log.transactions.abort_timed_out() == 0
    assert await pair.own.log.transactions.abort_timed_out() == 1


async def test_no_worker_goes_by_age_while_the_writer_doubts_its_clock(pair: Pair) -> None:
    await pair.writer.topic("before")
    await pair.other.order.confirm_head()
    assert pair.other.ages.now_ms() is not None
    pair.writer.clock.set_wall(pair.writer.clock.now_ms() - 86_400_000)
    await pair.writer.topic("after")
    await pair.other.order.confirm_head()
    assert pair.other.ages.now_ms() is None


@pytest.mark.slow
async def test_a_frame_that_is_not_synced_ends_the_process_and_is_not_acknowledged(
    pair: Pair,
) -> None:
    key = await pair.writer.topic("t")
    pair.writer.device.fail("sync")
    answer = pair.writer.send(key, b"a")
    await until(lambda: bool(pair.writer.fatal))
    assert isinstance(pair.writer.fatal[0], FatalStorageError | OSError)
    assert not answer.done()
