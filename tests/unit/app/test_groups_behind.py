"""Groups while the disk has no room for the database: what was answered is never taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.app.server import Server
from penstock.config.about import MIB
from penstock.config.settings import ServerSettings
from penstock.groups.errors import GroupError
from penstock.groups.ownership import NotServedError
from penstock.groups.shard_plan import ShardPlan, plan_shards
from penstock.model.errors import StorageFullError
from penstock.replica.transaction import Transaction
from penstock.state.answers import TopicCreated
from penstock.state.command import OffsetWrite
from penstock.state.commands import CreateTopic, DrainAgent
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

TOPIC_ID = b"flights".ljust(16, b".")
GROUPS = [f"group {number}" for number in range(24)]
"""Enough that each of two workers coordinates one: not so once in eight million."""
MOVED = {
    GroupError.NOT_COORDINATOR,
    GroupError.COORDINATOR_NOT_AVAILABLE,
    GroupError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""What clients ask again after, of whoever coordinates the group then."""
DEADLINE_S = 120.0


class Disk:
    """Has room for the WAL, which lies there beforehand, and for the database if it isn't full."""

    is_full = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    commit = Transaction.commit

    def commit_if_there_is_room(transaction: Transaction[object]) -> None:
        if disk.is_full:
            raise StorageFullError("commit", "metadata.sqlite", "no space")
        commit(transaction)

    monkeypatch.setattr(Transaction, "commit", commit_if_there_is_room)
    return disk


async def run_servers(
    data: Path, workers: int, test: Callable[[list[Server]], Awaitable[None]]
) -> None:
    failed: list[BaseException] = []
    settings = ServerSettings(
        data=str(data),
        kafka="127.0.0.1:0",
        http="",
        workers=workers,
        wal_bytes_max=8 * MIB,
        wal_file_bytes=2 * MIB,
        drain_timeout_ms=0,
        # A slow machine is no silent agent.
        agent_timeout_ms=60_000,
    )
    servers: list[Server] = []
    try:
        for index in range(workers):
            server = Server(
                settings,
                clock=SystemClock(),
                random=SystemRandom(),
                on_fatal=failed.append,
                worker=index if workers > 1 else None,
            )
            await server.start()
            servers.append(server)
        async with asyncio.timeout(DEADLINE_S):
            await test(servers)
    finally:
        while servers:
            await servers.pop().stop()
    assert not failed


async def commit(servers: list[Server], group_id: str, offset: int) -> None:
    """As a client does, until it is told that the offset is stored."""
    write = OffsetWrite(topic_id=TOPIC_ID, partition=0, offset=offset)
    while True:
        for server in servers:
            result = await server.parts.groups.commit_offsets(
                group_id, [write], member_id="", instance_id=None, generation=-1
            )
            if result.error is GroupError.NONE:
                assert list(result.codes) == [0]
                return
            assert result.error in MOVED
        await asyncio.sleep(0.01)


async def fetched(servers: list[Server], group_id: str) -> list[int]:
    """What each that answers at all says of the group."""
    found = []
    for server in servers:
        try:
            offsets = await server.parts.groups.fetch_offsets(group_id)
        except NotServedError as refused:
            assert refused.error in MOVED
        else:
            found.append(offsets[(TOPIC_ID, 0)].offset)
    return found


def coordinates_some(server: Server) -> bool:
    groups = server.parts.groups
    return any(groups.refused(group_id) is GroupError.NONE for group_id in GROUPS)


def shards_rest(server: Server) -> bool:
    """Whether no shard is to move any more, as far as a server knows; one alone has none."""
    view = server.parts.view
    agents = list(view.agents())
    plans = [plan_shards(agent.agent_id, agents, view.shard_owner) for agent in agents]
    return server.settings.workers == 1 or all(plan == ShardPlan() for plan in plans)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_committed_offset_does_not_go_back(
    tmp_path: Path, disk: Disk, workers: int
) -> None:
    async def test(servers: list[Server]) -> None:
        (created,) = await servers[0].parts.broker.committer.commit(
            [CreateTopic(name="flights", topic_id=TOPIC_ID, partitions=1)]
        )
        assert isinstance(created, TopicCreated)
        # A shard that moves on a full disk leaves its groups unread until there is room again,
        # which is after the last commit.
        while not all(coordinates_some(server) and shards_rest(server) for server in servers):
            await asyncio.sleep(0.01)
        for group_id in GROUPS:
            await commit(servers, group_id, 5)
        disk.is_full = True
        for group_id in GROUPS:
            await commit(servers, group_id, 9)
            assert await fetched(servers, group_id) in ([], [9])
        disk.is_full = False
        for group_id in GROUPS:
            while not (found := await fetched(servers, group_id)):
                await asyncio.sleep(0.01)
            assert found == [9]

    await run_servers(tmp_path / "data", workers, test)


async def test_shards_move_to_a_worker_that_cannot_read_their_groups_yet(
    tmp_path: Path, disk: Disk
) -> None:
    """It learns of the move, and its claim is answered, though the file lacks it. Only what a
    drained worker has moves then."""

    async def test(servers: list[Server]) -> None:
        disk.is_full = True
        writer = servers[0].parts
        drain = DrainAgent(agent=writer.broker.node_id, draining=True)
        await writer.broker.committer.commit([drain])
        while not servers[1].parts.status()["group_shards"]:
            await asyncio.sleep(0.01)
        assert not coordinates_some(servers[1])
        disk.is_full = False
        while not coordinates_some(servers[1]):
            await asyncio.sleep(0.01)

    await run_servers(tmp_path / "data", 2, test)
