"""WAL files that were used again, since rows which the journal has lost had moved their records."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.log.findings import DamagedError
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey, partition_key
from penstock.state.answers import BatchStatus, Done
from penstock.state.commands import Fence
from penstock.system.files import PosixDevice
from penstock.wal.format import FILE_HEADER_BYTES, encode_file_header
from penstock.wal.recovery import find_files
from support.cluster_rig import Cluster, ClusterAgent, passing
from unit.log.history.test_repair import lost_life, repair_of

STORED = BatchStatus.STORED


def use_again(folder: Path) -> None:
    """Each WAL file of a directory gets a header of another generation."""
    device = PosixDevice(folder)
    found = find_files(device)
    assert found
    for number, file in enumerate(found):
        assert file.header is not None
        header = encode_file_header(
            generation=file.header.generation + 10 + number,
            file_bytes=file.size_bytes,
            first_position=0,
        )
        _write_head(folder / file.name, header)


def damage_headers(folder: Path) -> None:
    """No header says any more of which generation its file is."""
    for file in find_files(PosixDevice(folder)):
        _write_head(folder / file.name, b"\1" * FILE_HEADER_BYTES)


def _write_head(path: Path, data: bytes) -> None:
    with path.open("r+b") as opened:
        opened.write(data)


async def moved_by_lost_rows(cluster: Cluster) -> tuple[ClusterAgent, PartitionKey]:
    """Rows that are lost have moved a record from agent 1's WAL, whose file was then used again."""
    keys: list[PartitionKey] = []

    async def before(agent: ClusterAgent) -> None:
        keys.extend(await agent.topic("t"))
        await agent.append(keys[0], b"common")

    async def after(agent: ClusterAgent) -> None:
        assert agent.log.uploader is not None
        assert await agent.log.uploader.drain(30)

    survivor = await lost_life(cluster, before, after, wal=True, durability="wal")
    use_again(cluster.folder / "agent1")
    return survivor, keys[0]


@pytest.mark.slow
async def test_an_agent_starts_and_serves_all_else_until_a_repair(cluster: Cluster) -> None:
    survivor, key = await moved_by_lost_rows(cluster)
    agent = await cluster.agent(1, wal=True, durability="wal")
    with pytest.raises(DamagedError, match="no WAL file has this generation"):
        await agent.read_all(key)
    # The WAL is filled and emptied beside it.
    assert await agent.append(key, b"later") == (STORED, 1)
    assert agent.log.uploader is not None
    assert not await agent.log.uploader.drain(5)
    assert any(name.startswith("segments/") for name in cluster.store.objects)
    assert agent.queries.runs_from(key, 1, limit=1)[0].object_key
    await survivor.catch_up()
    (report,) = await repair_of(survivor, cluster.folder / "agent1").append()
    assert (report.moves, report.closed) == (1, True)
    await agent.catch_up()
    assert await agent.read_all(key) == [(0, b"common"), (1, b"later")]


async def test_it_is_taken_over_but_for_what_is_gone(cluster: Cluster) -> None:
    survivor, key = await moved_by_lost_rows(cluster)
    agent = await cluster.agent(1, wal=True, durability="wal")
    assert await agent.append(key, b"later") == (STORED, 1)
    agent.pause_heartbeats()
    await passing(0.1)
    await survivor.catch_up()
    (answer,) = await survivor.log.commit(
        [Fence(agent=1, epoch=agent.order.epoch, seen_position=survivor.order.position)]
    )
    assert isinstance(answer, Done), answer
    with pytest.raises(CorruptDataError, match="no WAL file has this generation"):
        await survivor.log.take_over(PosixDevice(cluster.folder / "agent1"), deadline_s=60)
    assert survivor.queries.runs_from(key, 1, limit=1)[0].object_key


@pytest.mark.slow
@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("damage", [use_again, damage_headers])
async def test_a_missing_file_is_damage_whether_or_not_rows_are_lost(
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    *,
    loses: bool,
) -> None:
    """Of lost rows it is said what may bring the records back."""

    async def before(agent: ClusterAgent) -> None:
        (key,) = await agent.topic("t")
        await agent.append(key, b"common")

    async def after(agent: ClusterAgent) -> None:
        await agent.topic("u")

    if loses:
        await lost_life(cluster, before, after, wal=True, durability="wal")
    else:
        agent = await cluster.agent(1, wal=True, durability="wal")
        await before(agent)
        await agent.close(0)
    damage(cluster.folder / "agent1")
    agent = await cluster.agent(1, wal=True, durability="wal")
    (topic,) = [topic for topic in agent.log._view.topics() if topic.name == "t"]
    key = partition_key(topic.topic_key, 0)
    said = "and has lost rows" in caplog.text
    if damage is damage_headers:
        # The frames say of which generation the file is.
        assert await agent.read_all(key) == [(0, b"common")]
        assert not said
        return
    with pytest.raises(DamagedError, match="no WAL file has this generation"):
        await agent.read_all(key)
    assert said == loses
