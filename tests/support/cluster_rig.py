"""Logs of several agents over one simulated journal and one scripted store, in virtual time.

Everything but the two is real: orders, followers, replicas and WALs in real files, logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import Buffer

from penstock.agent.cluster import is_chosen
from penstock.log import Log
from penstock.log.append.plan import PartitionAppend
from penstock.log.fetch.remote_wal import RemoteWal
from penstock.log.settings import LogSettings
from penstock.log.state_queries import ReplicaQueries
from penstock.log.wals.claims import WalFolder
from penstock.log.wals.cluster_wal import ClusterWal
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.protocol import AgentIdentity
from penstock.ports.device import Device
from penstock.ports.objects import ObjectInfo
from penstock.records.batch import BatchLimits, check_batch, stored_header
from penstock.records.decode import Record, decode_batch
from penstock.records.encode import encode_batch
from penstock.replica import Replica
from penstock.replica.follower import FollowerSettings
from penstock.state.ages import Ages
from penstock.state.answers import BatchStatus, TopicCreated
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import CreateTopic, Heartbeat, SetFeatureLevel
from penstock.state.orders import ClusterOrder, begin_cluster_order
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.system.believed_clock import BelievedClock
from penstock.system.files import PosixDevice
from support.simulated.inline_executor import InlineExecutor
from support.simulated.journal import JournalFaults, SimulatedConnection, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import START_MS, VirtualClock, VirtualLoop, run

FILE_BYTES = 64 << 10
LEVEL = 4
BELIEVED_AFTER_MS = 600_000
POLL_MS = 1_000
"""Ten times as long as a server's: hours of virtual time are mostly polls."""
ANY = BatchLimits(
    message_bytes_max=1 << 30,
    timestamp_before_max_ms=2**63 - 1,
    timestamp_after_max_ms=2**63 - 1,
    log_append_time=False,
    compacts=False,
)


def cluster_limits(**changes: Any) -> LogSettings:
    """Small caches, and no upload that a test doesn't ask for."""
    values: dict[str, Any] = {
        "durability": "object",
        "frame_bytes_max": FILE_BYTES // 2,
        "append_wait_ms_max": 10_000,
        "flush_bytes": 64 << 10,
        "flush_interval_ms": 250,
        "tail_cache_bytes": 1 << 20,
        "block_cache_bytes": 256 << 10,
        "block_bytes": 16 << 10,
        "segment_bytes": 1 << 30,
        "segment_age_ms": 3_600_000,
        "delete_grace_ms": 60_000,
    }
    return LogSettings(**(values | changes))


async def passing(seconds: float) -> None:
    """Let time pass."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    timer = loop.call_later(seconds, _settle, done)
    try:
        await done
    finally:
        timer.cancel()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ScriptedStore:
    """An object store in memory. `before_put` and `after_put` may wait or raise."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.put_s = 0.03
        self.get_s = 0.01
        self.puts: list[str] = []
        self.gets: list[tuple[str, int, int]] = []
        self.deleted: list[str] = []
        self.away: PenstockError | None = None
        self.before_put: Callable[[str], Awaitable[None]] | None = None
        self.after_put: Callable[[str], Awaitable[None]] | None = None

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self._check()
        self.puts.append(key)
        data = b"".join(bytes(part) for part in parts)
        await passing(self.put_s)
        if self.before_put is not None:
            await self.before_put(key)
        self._check()
        if if_absent and key in self.objects:
            raise ConflictError("put", key, "it exists")
        self.objects[key] = (data, self._now_ms())
        if self.after_put is not None:
            await self.after_put(key)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        self.gets.append((key, start, end))
        await passing(self.get_s)
        self._check()
        found = self.objects.get(key)
        if found is None:
            raise NotFoundError("read", key, "no such object")
        if end > len(found[0]):
            raise CorruptDataError("read", key, "too short")
        return found[0][start:end]

    async def size(self, key: str) -> int:
        self._check()
        if key not in self.objects:
            raise NotFoundError("look up", key, "no such object")
        return len(self.objects[key][0])

    async def delete(self, keys: Sequence[str]) -> None:
        self._check()
        for key in keys:
            self.deleted.append(key)
            self.objects.pop(key, None)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        self._check()
        for key, (data, modified_ms) in sorted(self.objects.items()):
            if key.startswith(prefix) and key > after:
                yield ObjectInfo(key=key, size_bytes=len(data), modified_ms=modified_ms)

    def _check(self) -> None:
        if self.away is not None:
            raise self.away

    def _now_ms(self) -> int:
        return START_MS + int(self._loop.time() * 1000)


@dataclass(eq=False)
class ClusterAgent:
    """One life of an agent's log."""

    cluster: Cluster
    agent_id: int
    log: Log
    order: ClusterOrder
    queries: Queries
    journal: SimulatedConnection
    clock: VirtualClock
    ages: Ages
    fatal: list[BaseException] = field(default_factory=list)
    stopped: list[PenstockError] = field(default_factory=list)
    beating: asyncio.Task[None] | None = None
    on_closed: Callable[[], None] = lambda: None
    is_keeper: Callable[[], bool] = lambda: False

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> list[PartitionKey]:
        """Create a topic; its partition keys. `__` in a name of a config stands for a dot."""
        (answer,) = await self.log.commit(
            [
                CreateTopic(
                    name=name,
                    topic_id=self.cluster.random.token_bytes(16),
                    partitions=partitions,
                    configs={key.replace("__", "."): value for key, value in configs.items()},
                )
            ]
        )
        assert isinstance(answer, TopicCreated), answer
        return [partition_key(TopicKey(answer.topic_key), number) for number in range(partitions)]

    def send(
        self,
        *batches: tuple[PartitionKey, bytes],
        producer: tuple[int, int, int] = (-1, -1, -1),
        timeout_ms: int = 5_000,
    ) -> asyncio.Future[list[PartitionAppend]]:
        """One request with a batch of one record each. The future raises what befell it."""
        appends = [
            PartitionAppend(key, check_batch(memoryview(one_batch(value, producer)), ANY, 0))
            for key, value in batches
        ]
        answer: asyncio.Future[list[PartitionAppend]] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            assert not answer.done(), "answered twice"
            if error is None:
                answer.set_result(appends)
            else:
                answer.set_exception(error)

        self.log.append(appends, timeout_ms=timeout_ms, done=done)
        return answer

    async def append(
        self, key: PartitionKey, value: bytes, **options: Any
    ) -> tuple[BatchStatus | None, int]:
        """Append one record: its status and offset (or refusal)."""
        (append,) = await self.send((key, value), **options)
        return append.status, append.base_offset

    async def catch_up(self) -> None:
        """Return at a head of the journal; what breaks off is asked again."""
        for left in range(20, -1, -1):
            try:
                await self.order.confirm_head()
            except RetryableError:
                if not left:
                    raise
            else:
                return

    async def read_all(self, key: PartitionKey) -> list[tuple[int, bytes]]:
        """(offset, value) of all records, as of the journal's head now."""
        await self.catch_up()
        at = self.log.log_start(key)
        found = []
        while at < self.log.high_watermark(key):
            read = await self.log.reader.read_loaded(key, at, 10_000)
            assert read is not None, at
            found += records_of(b"".join(read.views))
            assert read.end_offset > at
            at = read.end_offset
        return found

    def forget_memory(self) -> None:
        """Empty the tail cache, so that reads go to the WAL or the objects."""
        for key in list(self.log.tail.partitions()):
            self.log.tail.forget(key)

    def pause_heartbeats(self) -> None:
        if self.beating is not None:
            self.beating.cancel()
            self.beating = None

    async def close(self, deadline_s: float = 5.0) -> bool:
        self.pause_heartbeats()
        drained = await self.log.close(deadline_s)
        await self.order.close()
        self.queries.close()
        self.on_closed()
        return drained


class Cluster:
    """What the agents share."""

    def __init__(self, loop: VirtualLoop, folder: Path, seed: int) -> None:
        self.loop = loop
        self.folder = folder
        self.random = SeededRandom(seed)
        self.clock = VirtualClock(loop)
        self.journal = SimulatedJournal(
            random=self.random, clock=self.clock, faults=JournalFaults(delay_ms=(1, 2))
        )
        self.store = ScriptedStore(loop)
        self.agents: list[ClusterAgent] = []
        self.descendants: list[Cluster] = []
        """Made of its bucket by a test; closed with it."""
        self._in_use: set[Path] = set()
        self._lives = itertools.count(1)

    async def agent(
        self,
        agent_id: int,
        *,
        wal: bool | Device = False,
        fresh: bool = False,
        remote_wal: RemoteWal | None = None,
        beats: bool = True,
        wal_bytes_max: int = 8 * FILE_BYTES,
        store: Any = None,
        **limits: Any,
    ) -> ClusterAgent:
        """Start an agent.

        Args:
            wal: whether it has a directory for one, or where.
            fresh: begin with an empty replica, as on another machine. Needed while a former life
                of the agent still follows: no two may write one database.
        """
        name = f"agent{agent_id}"
        path = self.folder / name / f"replica{next(self._lives) if fresh else ''}.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert path not in self._in_use, "another life has this replica open"
        machine = LogMachine()
        clock = VirtualClock(self.loop)
        believed = BelievedClock(clock, after_ms=BELIEVED_AFTER_MS)
        connection = self.journal.connect()
        replica = Replica.open(path, machine, fsync=False, keeps_journal=False)
        order = await begin_cluster_order(
            connection,
            replica,
            machine,
            identity=AgentIdentity(agent_id=agent_id, level_max=LEVEL),
            cluster_id=self.journal.cluster_id,
            clock=believed,
            wall=clock,
            random=self.random,
            executor=InlineExecutor(self.random, workers=1),
            settings=ClusterOrderSettings(
                commit_timeout_s=4.0,
                confirm_timeout_s=2.0,
                clock_believed_after_ms=BELIEVED_AFTER_MS,
                follower=FollowerSettings(poll_ms=POLL_MS),
            ),
        )
        believed.start_from(order.found_ms)
        ages = Ages(
            believed,
            journal_ms=lambda: order.time_ms,
            is_doubted=lambda: order.is_clock_doubted,
        )
        queries = Queries(path)
        view = StateView.load(queries)
        fatal: list[BaseException] = []
        stopped: list[PenstockError] = []
        folder = None
        if wal:
            device = PosixDevice(self.folder / name) if wal is True else wal
            folder = WalFolder(
                device=device, random=self.random, file_bytes=FILE_BYTES, bytes_max=wal_bytes_max
            )
        is_keeper = partial(is_chosen, b"keeper", view, agent_id)
        log = Log(
            order=order,
            own_wal=partial(ClusterWal, folder=folder),
            view=view,
            queries=ReplicaQueries(lambda: queries),
            store=store or self.store,
            clock=believed,
            ages=ages,
            limits=cluster_limits(**limits),
            agent_id=agent_id,
            pool=InlineExecutor(self.random, workers=4),
            on_fatal=fatal.append,
            heads=order,
            is_keeper=is_keeper,
            remote_wal=remote_wal,
        )
        try:
            await order.start(
                on_applied=log.on_applied,
                on_answered=log.on_answered,
                on_stopped=stopped.append,
            )
            if view.feature_level < LEVEL:
                await order.commit([SetFeatureLevel(level=LEVEL)])
            await log.start(epoch=order.epoch)
        except BaseException:
            await log.close(0)
            await order.close()
            queries.close()
            raise
        agent = ClusterAgent(
            self, agent_id, log, order, queries, connection, clock, ages, fatal, stopped
        )
        agent.is_keeper = is_keeper
        if beats:
            agent.beating = self.loop.create_task(self._beat(agent))
        self.agents.append(agent)
        self._in_use.add(path)
        agent.on_closed = lambda: self._in_use.discard(path)
        return agent

    async def close(self) -> None:
        """Close the agents, with a journal and a store that answer."""
        self.journal.come_back()
        self.store.away = None
        for agent in self.agents:
            agent.journal.cut = False
        for agent in self.agents:
            await agent.close(0.5)

    async def _beat(self, agent: ClusterAgent) -> None:
        while True:
            await passing(0.5)
            agent.order.submit([Heartbeat()]).add_done_callback(
                lambda future: future.cancelled() or future.exception()
            )


def one_batch(value: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytearray:
    """A batch of one record."""
    record = Record(offset_delta=0, timestamp=START_MS, key=None, value=value, headers=())
    return bytearray(
        encode_batch(
            [record],
            codec="none",
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
    )


def records_of(data: bytes) -> list[tuple[int, bytes]]:
    """(offset, value) of the records in whole batches."""
    found = []
    position = 0
    while position < len(data):
        header = stored_header(data, position)
        for record in decode_batch(memoryview(data)[position : position + header.length]):
            found.append((header.base_offset + record.offset_delta, record.value or b""))
        position += header.length
    return found


@contextlib.asynccontextmanager
async def opened_cluster(loop: VirtualLoop, folder: Path, seed: int = 1) -> AsyncIterator[Cluster]:
    """A cluster without agents; those that the test starts are closed."""
    cluster = Cluster(loop, folder, seed)
    try:
        yield cluster
    finally:
        for each in (cluster, *cluster.descendants):
            await each.close()
    assert not any(agent.fatal for each in (cluster, *cluster.descendants) for agent in each.agents)


def run_cluster(
    folder: Path, test: Callable[[Cluster], Coroutine[Any, Any, None]], *, seed: int = 1
) -> None:
    """Run a part of a test on a cluster; a whole test has the fixture `cluster`."""

    async def main(loop: VirtualLoop) -> None:
        async with opened_cluster(loop, folder, seed) as cluster:
            await test(cluster)
        assert not loop.faults, "\n".join(loop.faults)

    run(main, SeededRandom(seed))
