"""Agents over one simulated journal and one scripted store, in virtual time.

Everything but the two is real, and assembled as a server does it: orders, followers, replicas and
WALs in real files, logs. Their groups aren't taken up, nor do they claim shards or beat by
themselves, so that a test of logs knows what is in the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from typing_extensions import Buffer

from penstock.agent.assembly import Agent, assemble
from penstock.agent.cluster import ClusterFoundation, is_chosen
from penstock.agent.settings import AgentSettings, ClusterSettings
from penstock.groups.settings import GroupSettings
from penstock.kafka.settings import KafkaSettings
from penstock.log.append.plan import PartitionAppend
from penstock.log.archive import ArchiveSettings
from penstock.log.fetch.remote_wal import RemoteWal
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.protocol import AgentIdentity
from penstock.peers.zone import ZoneStore
from penstock.ports.device import Device
from penstock.ports.objects import ObjectInfo
from penstock.records.batch import check_batch, stored_header
from penstock.records.decode import Record, decode_batch
from penstock.records.encode import encode_batch
from penstock.replica.follower import FollowerSettings
from penstock.state.answers import BatchStatus, TopicCreated
from penstock.state.commands import CreateTopic, Heartbeat, SetFeatureLevel
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.agent_ports import BELIEVED_AFTER_MS, FILE_BYTES, cluster_limits, cluster_ports
from support.batches import ANY
from support.simulated.journal import JournalFaults, SimulatedConnection, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import START_MS, VirtualClock, VirtualLoop, run

LEVEL = FEATURE_LEVEL_MAX
POLL_MS = 1_000
"""Ten times as long as a server's: hours of virtual time are mostly polls."""


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


@contextlib.contextmanager
def standing_in(store: Any, remote_wal: RemoteWal | None) -> Iterator[None]:
    """Have the agents that are put together meanwhile read other agents' WALs by `remote_wal`, and
    `store` in place of a zone's caches; None: as servers do."""
    with contextlib.ExitStack() as patches:
        for name, stand_in in (("ZoneStore", store), ("PeerWal", remote_wal)):
            if stand_in is not None:
                replaced = mock.patch(f"penstock.agent.cluster.{name}", return_value=stand_in)
                patches.enter_context(replaced)
        yield


class ClusterAgent:
    """One life of an agent, of which order and log run; its groups aren't taken up."""

    def __init__(
        self,
        cluster: Cluster,
        agent: Agent,
        foundation: ClusterFoundation,
        journal: SimulatedConnection,
        clock: VirtualClock,
        fatal: list[BaseException],
        closes: list[Callable[[], None]],
    ) -> None:
        self.cluster = cluster
        self.agent = agent
        self.agent_id = foundation.agent_id
        self.foundation = foundation
        self.log, self.order = foundation.log, foundation.order
        self.ages = foundation.ages
        self.queries = foundation.queries()
        self.journal = journal
        self.clock = clock
        self.fatal = fatal
        self._closes = closes
        self.beating: asyncio.Task[None] | None = None

    @property
    def stopped(self) -> list[BaseException]:
        """The error by which its epoch ended, if it has."""
        return [error for error in self.fatal if isinstance(error, FencedError)]

    def is_keeper(self) -> bool:
        """Whether it deletes objects and runs for all."""
        return is_chosen(b"keeper", self.foundation.view, self.agent_id)

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
        # The epoch stays open, as after a crash.
        await self.order.close()
        if isinstance(self.foundation.store, ZoneStore):
            await self.foundation.store.close()
        self.close_files()
        return drained

    def close_files(self) -> None:
        while self._closes:
            self._closes.pop()()


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
        self.parents: dict[str, ScriptedStore] = {}
        """The stores of clusters that this one was restored from, by URL."""
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
            store: read and written in place of what the zone's caches hold.
            fresh: begin with an empty replica, as on another machine. Needed while a former life
                of the agent still follows: no two may write one database.
        """
        name = f"agent{agent_id}"
        path = self.folder / name / f"replica{next(self._lives) if fresh else ''}.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert path not in self._in_use, "another life has this replica open"
        clock = VirtualClock(self.loop)
        connection = self.journal.connect()
        fatal: list[BaseException] = []
        closes: list[Callable[[], None]] = []

        ports = cluster_ports(
            connection,
            cluster_id=self.journal.cluster_id,
            replica=path,
            store=self.store,
            parents=self.parents,
            clock=clock,
            random=self.random,
            fatal=fatal,
            closes=closes,
            wal=None if isinstance(wal, bool) else wal,
            wal_bytes_max=wal_bytes_max,
        )
        settings = AgentSettings(
            identity=AgentIdentity(agent_id=agent_id, level_max=LEVEL),
            advertised_host="127.0.0.1",
            advertised_port=1,
            log=cluster_limits(**limits),
            groups=GroupSettings(),
            kafka=KafkaSettings(),
            retention_check_s=60.0,
            cluster=ClusterSettings(
                archive=ArchiveSettings(),
                restore_window_ms=0,
                order=ClusterOrderSettings(
                    commit_timeout_s=4.0,
                    confirm_timeout_s=2.0,
                    clock_believed_after_ms=BELIEVED_AFTER_MS,
                    follower=FollowerSettings(poll_ms=POLL_MS),
                ),
            ),
        )
        with standing_in(store, remote_wal):
            assembled = await assemble(settings, ports)
        foundation = assembled.foundation
        assert isinstance(foundation, ClusterFoundation)
        order, log, view = foundation.order, foundation.log, foundation.view
        agent = ClusterAgent(self, assembled, foundation, connection, clock, fatal, closes)
        try:
            await foundation.follow()
            if view.feature_level < LEVEL:
                await order.commit([SetFeatureLevel(level=LEVEL)])
            await foundation.begin()
        except BaseException:
            await log.close(0)
            await order.close()
            agent.close_files()
            raise
        if beats:
            agent.beating = self.loop.create_task(self._beat(agent))
        self.agents.append(agent)
        self._in_use.add(path)
        closes.append(lambda: self._in_use.discard(path))
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
    agents = [agent for each in (cluster, *cluster.descendants) for agent in each.agents]
    assert not [error for agent in agents for error in agent.fatal if error not in agent.stopped]


def run_cluster(
    folder: Path, test: Callable[[Cluster], Coroutine[Any, Any, None]], *, seed: int = 1
) -> None:
    """Run a part of a test on a cluster; a whole test has the fixture `cluster`."""

    async def main(loop: VirtualLoop) -> None:
        async with opened_cluster(loop, folder, seed) as cluster:
            await test(cluster)
        assert not loop.faults, "\n".join(loop.faults)

    run(main, SeededRandom(seed))
