"""Agents are started as a server starts them, over one simulated journal, in virtual time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.agent.assembly import Agent, assemble
from penstock.agent.cluster import ClusterFoundation, is_chosen
from penstock.agent.jobs import Job
from penstock.agent.settings import AgentSettings, ClusterSettings
from penstock.groups.settings import GroupSettings
from penstock.kafka.settings import KafkaSettings
from penstock.log.archive import ArchiveSettings
from penstock.log.settings import LogSettings
from penstock.model.errors import PenstockError, RetryableError
from penstock.order.protocol import AgentIdentity
from penstock.ports.objects import ObjectInfo
from penstock.segment import object_key
from penstock.state.answers import TransactionSettled
from penstock.state.commands import CondemnObjects, CreateTopic
from penstock.state.digest_plan import Verdict
from penstock.state.schema import FEATURE_LEVEL_MAX
from penstock.state.transaction_commands import AddToTransaction, InitTransaction
from penstock.state.transactions import TransactionState
from support.agent_ports import cluster_ports
from support.cluster_rig import ScriptedStore, passing
from support.simulated.device import SimulatedDevice
from support.simulated.journal import SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import Node, VirtualClock, VirtualLoop
from support.waiting import until

TIME_OUTS = "time-outs of transactions"
WAIT_S = 30.0
"""A start that the journal holds up is given up after twice that."""


class Host:
    """One agent with a WAL, and the lives of it."""

    def __init__(self, world: World, agent_id: int) -> None:
        self.world = world
        self.agent_id = agent_id
        self.replica = world.folder / f"agent{agent_id}" / "replica.sqlite"
        self.replica.parent.mkdir()
        self.device = SimulatedDevice()
        self.node: Node | None = None
        self.agent: Agent | None = None
        self.has_started = False
        self._closes: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin a life as a process of its own."""
        loop = self.world.loop
        self.has_started = False
        self.node = loop.node(f"agent{self.agent_id}")
        loop.spawn(self.node, self._live())

    def crash(self) -> None:
        """The process dies."""
        if self.node is not None:
            self.world.loop.kill(self.node)
            self.node = None
        while self._closes:
            self._closes.pop()()

    async def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have something done in its process."""
        assert self.node is not None
        return await self.world.loop.spawn(self.node, work)

    async def creates(self, name: str) -> None:
        """Write."""
        topic_id = name.encode().ljust(16, b".")
        command = CreateTopic(name=name, topic_id=topic_id, partitions=1)
        await self.do(self.foundation.order.commit([command]))

    def flip(self) -> None:
        """What a disk or memory does to a cell."""
        connection = sqlite3.connect(self.replica)
        connection.execute("UPDATE partitions SET log_start = 7")
        connection.commit()
        connection.close()

    @property
    def foundation(self) -> ClusterFoundation:
        """Its order, state and log."""
        assert self.agent is not None
        assert isinstance(self.agent.foundation, ClusterFoundation)
        return self.agent.foundation

    @property
    def has_stopped_writing(self) -> bool:
        """Whether its state differs from another's, and none of them has a majority."""
        return self.agent is not None and self.foundation.order.write_stop.error is not None

    async def _live(self) -> None:
        world = self.world
        ports = cluster_ports(
            world.journal.connect(),
            cluster_id=world.journal.cluster_id,
            replica=self.replica,
            store=world.store,
            clock=VirtualClock(world.loop),
            random=SeededRandom(self.agent_id),
            fatal=world.ended,
            closes=self._closes,
            wal=self.device,
            on_opened=lambda order: self._closes.append(order._replica.close),
        )
        settings = AgentSettings(
            identity=AgentIdentity(agent_id=self.agent_id, level_max=FEATURE_LEVEL_MAX),
            advertised_host="agent",
            advertised_port=9092,
            log=LogSettings(durability="wal"),
            groups=GroupSettings(),
            kafka=KafkaSettings(auto_create_topics=False),
            retention_check_s=60.0,
            cluster=ClusterSettings(
                archive=world.archive, restore_window_ms=world.restore_window_ms
            ),
        )
        self.agent = await assemble(settings, ports)
        await self.agent.start()
        self.has_started = True
        (compare,) = (job for job in self.agent.jobs() if job.name == "comparison of states")
        while True:
            await asyncio.sleep(compare.interval_s)
            try:
                await compare.run()
            except PenstockError:
                continue


class World:
    """A journal, a store and two hosts."""

    def __init__(self, loop: VirtualLoop, folder: Path) -> None:
        self.loop = loop
        self.folder = folder
        clock = VirtualClock(loop)
        self.journal = SimulatedJournal(random=SeededRandom(1), clock=clock)
        self.store = ScriptedStore(loop)
        self.ended: list[BaseException] = []
        self.restore_window_ms = 0
        self.archive = ArchiveSettings()
        self.hosts = [Host(self, 1), Host(self, 2)]

    async def begin(self) -> list[Host]:
        """Both write, and nothing differs."""
        for host in self.hosts:
            host.start()
        await until(lambda: all(host.has_started for host in self.hosts))
        await self.hosts[0].creates("t")
        return self.hosts


@pytest.fixture
async def world(virtual_loop: VirtualLoop, tmp_path: Path) -> AsyncIterator[World]:
    world = World(virtual_loop, tmp_path)
    yield world
    for host in world.hosts:
        host.crash()
    assert not world.ended, world.ended


async def differ(world: World, bad: Host) -> None:
    bad.flip()
    bad.foundation.ask_digest()
    await until(lambda: all(host.has_stopped_writing for host in world.hosts))


async def test_two_agents_with_wals_that_differed_start_again_once_a_replica_is_removed(
    world: World,
) -> None:
    """Claiming a WAL is a write, which waits for a comparison, which must not wait for it."""
    good, bad = await world.begin()
    await differ(world, bad)
    for host in (good, bad):
        host.crash()
    bad.replica.unlink()
    for host in (good, bad):
        host.start()
    await until(lambda: good.has_started and bad.has_started)
    for host in (good, bad):
        assert host.foundation.digests is not None
        await until(partial(_is_equal, host))
        await host.creates(f"by-{host.agent_id}")


async def test_an_agent_whose_replica_was_removed_ends_the_stop_of_the_one_that_ran_on(
    world: World,
) -> None:
    good, bad = await world.begin()
    await differ(world, bad)
    bad.crash()
    bad.replica.unlink()
    bad.start()
    await until(lambda: bad.has_started and not good.has_stopped_writing)
    for host in (good, bad):
        await host.creates(f"by-{host.agent_id}")


@pytest.mark.slow
async def test_an_object_of_the_restore_window_is_deleted_after_the_window(world: World) -> None:
    world.restore_window_ms = 200_000
    one, _ = await world.begin()
    key = object_key(agent=9, epoch=1, n=1)
    world.store.objects[key] = (b"x", 0)
    await one.do(one.foundation.order.commit([CondemnObjects(keys=[key])]))
    keeper = one.foundation.log.keeper
    assert one.foundation.settings.log.delete_grace_ms < 150_000
    await passing(150)
    assert await one.do(keeper.delete_condemned()) == 0
    await passing(100)
    assert await one.do(keeper.delete_condemned()) == 1
    assert key not in world.store.objects


@pytest.mark.slow
async def test_no_orphan_is_condemned_before_archive_and_journal_were_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the journal has lost looks like an orphan to an agent that has just started."""
    one, _ = await world.begin()
    keeper, key = one.foundation.log.keeper, object_key(agent=9, epoch=1, n=1)
    world.store.objects[key] = (b"x", 0)
    await passing(2 * one.foundation.settings.log.delete_grace_ms / 1000)
    listed = world.store.list

    def list_but_the_archive(prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix.startswith("archive/"):
            raise RetryableError("list", prefix, "the store is away")
        return listed(prefix, after=after)

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "list", list_but_the_archive)
        with pytest.raises(RetryableError, match="away"):
            await one.do(keeper.condemn_orphans())
    assert await one.do(keeper.condemn_orphans()) == 1


@pytest.mark.slow
async def test_agents_whose_states_differ_archive_and_delete_nothing(world: World) -> None:
    world.archive = ArchiveSettings(snapshot_interval_ms=60_000)
    hosts = await world.begin()
    await passing(100)
    for host in hosts:
        error = RetryableError("compare", "states", "they differ")
        host.foundation.order.write_stop.error = error
        await host.do(host.foundation.archiver.run_once())
        (retention,) = (job for job in host.foundation.jobs() if job.name == "retention")
        with pytest.raises(RetryableError, match="they differ"):
            await host.do(_run(retention))
    assert not any(name.startswith("archive/") for name in world.store.objects)
    for host in hosts:
        host.foundation.order.write_stop.error = None
        await host.do(host.foundation.archiver.run_once())
    assert any(name.startswith("archive/") for name in world.store.objects), "it was due"


@pytest.mark.slow
async def test_time_outs_of_transactions_are_those_of_whichever_agent_is_alive(
    world: World,
) -> None:
    hosts = await world.begin()
    await until(lambda: hosts[0].foundation.view.feature_level == FEATURE_LEVEL_MAX)
    (keeper,) = [host for host in hosts if is_keeper(host)]
    (other,) = [host for host in hosts if host is not keeper]
    init = InitTransaction(transactional_id="x", timeout_ms=60_000)
    (begun,) = await keeper.do(keeper.foundation.order.commit([init]))
    assert isinstance(begun, TransactionSettled), begun
    await keeper.do(
        keeper.foundation.order.commit(
            [
                AddToTransaction(
                    transactional_id="x",
                    producer_id=begun.producer_id,
                    epoch=begun.epoch,
                    partitions=[],
                    groups=["g"],
                )
            ]
        )
    )
    (aborts,) = [job for job in other.foundation.jobs() if job.name == TIME_OUTS]
    keeper.crash()
    await until(lambda: is_keeper(other))
    assert await other.do(_run(aborts)) == 0
    await passing(61)
    assert await other.do(_run(aborts)) == 1
    (row,) = other.foundation.queries().transactions_page(-1, limit=9)
    assert (row.state, row.epoch) == (TransactionState.ABORTED, begun.epoch + 1)


def is_keeper(host: Host) -> bool:
    return is_chosen(b"keeper", host.foundation.view, host.agent_id)


async def _run(job: Job) -> object:
    return await job.run()


def _is_equal(host: Host) -> bool:
    digests = host.foundation.digests
    assert digests is not None
    return digests.judged.verdict is Verdict.EQUAL and not host.has_stopped_writing
