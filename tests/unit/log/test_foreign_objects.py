"""Another writer's object under a segment's key stays, and nothing is lost for it."""

import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import ConflictError, RetryableError
from penstock.ports.journal import JournalRow
from penstock.segment import object_key
from penstock.state.answers import BatchStatus
from support.archives import archive_of, archiver_of, keys, write
from support.cluster_rig import Cluster, ClusterAgent, passing, run_cluster
from support.log_rig import Rig, run_rig

OBJECT: dict[str, Any] = {}
WAL: dict[str, Any] = {"wal": True, "durability": "wal", "segment_age_ms": 1_000}


def place_foreign(agent: ClusterAgent, *numbers: int) -> dict[str, bytes]:
    """Objects of somebody else under this agent's next keys."""
    epoch = agent.order.epoch
    placed = {
        object_key(agent=agent.agent_id, epoch=epoch, n=n): b"foreign %d" % n for n in numbers
    }
    for key, data in placed.items():
        agent.cluster.store.objects[key] = (data, 0)
    return placed


@pytest.mark.slow
@pytest.mark.parametrize("options", [OBJECT, WAL], ids=["object", "wal"])
def test_its_number_is_skipped(
    tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1, **options)
        (key,) = await agent.topic("t")
        placed = place_foreign(agent, 1, 2, 4)
        for number in range(3):
            answer = await agent.append(key, b"%d" % number)
            assert answer == (BatchStatus.STORED, number)
            await passing(5)
        agent.forget_memory()
        assert await agent.read_all(key) == [(n, b"%d" % n) for n in range(3)]
        named = {row.key for row in agent.queries.objects("", 99)}
        epoch = agent.order.epoch
        assert named == {object_key(agent=1, epoch=epoch, n=n) for n in (3, 5, 6)}
        assert agent.log.numbers.foreign == {1, 2, 4}
        # While the epoch lasts they are not its keeper's to delete.
        for _ in range(5):
            await agent.log.keeper.run_once()
            await passing(100)
        found = {name: data for name, (data, _) in cluster.store.objects.items() if name in placed}
        assert found == placed

    with caplog.at_level(logging.ERROR, logger="penstock.log.numbers"):
        run_cluster(tmp_path, test)
    first = object_key(agent=1, epoch=0, n=1).rpartition("-")[2]
    (line, *_) = [record.getMessage() for record in caplog.records]
    assert "another object is there already" in line
    assert first in line


@pytest.mark.parametrize("options", [OBJECT, WAL], ids=["object", "wal"])
async def test_a_put_whose_answer_was_lost_is_its_own(
    cluster: Cluster, options: dict[str, Any]
) -> None:
    agent = await cluster.agent(1, **options)
    (key,) = await agent.topic("t")
    lost: list[str] = []

    async def lose(name: str) -> None:
        if not lost:
            lost.append(name)
            raise RetryableError("put", name, "the reply was lost")

    cluster.store.after_put = lose
    assert await agent.append(key, b"x") == (BatchStatus.STORED, 0)
    await passing(10)
    assert lost
    assert not agent.log.numbers.foreign
    if not options:
        assert [row.key for row in agent.queries.objects("", 9)] == lost


async def test_an_embedded_servers_segments_are_put_once(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    first = object_key(agent=rig.journal.agent_id, epoch=rig.journal.epoch, n=1)
    await rig.store.put(first, [b"foreign"])
    await rig.append(key, b"x")
    await rig.drain()
    assert bytes(await rig.store.get_range(first, 0, 7)) == b"foreign"
    (run,) = rig.queries().runs_from(key, 0, limit=9)
    assert run.object_key == object_key(agent=rig.journal.agent_id, epoch=rig.journal.epoch, n=2)


async def test_a_stretch_is_never_overwritten_by_other_rows(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    await write(agent)
    archive = archive_of(cluster)
    rows = cluster.journal.rows()
    name = await archive.put_stretch(rows)
    before = dict(cluster.store.objects)
    assert await archive.put_stretch(rows) == name
    other = [*rows[:-1], JournalRow(rows[-1].position, rows[-1].stamp_ms, b"another row")]
    with pytest.raises(
        ConflictError, match=rf"another row at position {rows[-1].position}: .* 11 bytes"
    ):
        await archive.put_stretch(other)
    assert cluster.store.objects == before
    assert await archive.read_stretch(name) == rows


async def test_a_snapshot_is_put_once(cluster: Cluster) -> None:
    """Of the same state: the bytes of its file may differ."""
    agent = await cluster.agent(1)
    await write(agent)
    agent.pause_heartbeats()
    await passing(2)
    one, two = archiver_of(agent), archiver_of(agent)
    await one.snapshot()
    (name,) = keys(cluster, "archive/snapshots/")
    puts = cluster.store.puts.count(name)
    await two.snapshot()
    assert keys(cluster, "archive/snapshots/") == [name]
    assert cluster.store.puts.count(name) == puts == 1
    # A damaged one is replaced.
    data, modified_ms = cluster.store.objects[name]
    cluster.store.objects[name] = (data[:-1] + bytes([data[-1] ^ 1]), modified_ms)
    await archiver_of(agent).snapshot()
    assert cluster.store.objects[name][0] == data


@pytest.mark.slow
def test_an_embedded_servers_snapshot_is_not_overwritten_by_another_state(tmp_path: Path) -> None:
    """As where somebody has put metadata.sqlite back, and the log went on otherwise."""

    async def make(rig: Rig) -> bytes:
        await rig.topic("t")
        info = await rig.upkeep.snapshot()
        found.append(info.position)
        # The same state again: it stays.
        before = await whole(rig, info.position)
        await rig.upkeep.snapshot()
        assert await whole(rig, info.position) == before
        return before

    async def whole(rig: Rig, position: int) -> bytes:
        key = f"snapshots/{position:020d}.sqlite"
        return bytes(await rig.store.get_range(key, 0, await rig.store.size(key)))

    found: list[int] = []
    others: list[bytes] = []

    async def first(rig: Rig) -> None:
        others.append(await make(rig))

    async def second(rig: Rig) -> None:
        await rig.topic("t")
        key = f"snapshots/{found[0]:020d}.sqlite"
        await rig.store.put(key, [others[0]])
        with pytest.raises(ConflictError, match="the store's has state"):
            await rig.upkeep.snapshot()
        assert await whole(rig, found[0]) == others[0]
        await rig.store.put(key, [others[0][:-100]])
        await rig.upkeep.snapshot()
        assert await whole(rig, found[0]) != others[0]

    run_rig(tmp_path / "one", first)
    run_rig(tmp_path / "two", second)
