"""Batches are labelled with the leader epoch that they were appended in, wherever they lie, and a
restore begins one: of a backup, and of a cluster's bucket."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

import penstock.recovery.restore
from penstock.model.errors import InvalidRequestError
from penstock.model.ids import PartitionKey, partition_key
from penstock.objects.bucket import BucketStore
from penstock.records.batch import stored_header
from penstock.recovery.point_in_time import Moment
from penstock.state.commands import DeleteTopic
from penstock.state.read.view import StateView
from support.archives import archiver_of
from support.backups import copy_to, restore_to
from support.cluster_rig import Cluster, ClusterAgent, passing
from support.log_contents import verify_path
from support.log_rig import Rig, run_rig
from support.restored_clusters import another_cluster, kill, restored

DURABILITIES = ("wal", "object")


def labels_in(data: bytes) -> list[tuple[int, int]]:
    """(base offset, leader epoch) of whole batches."""
    found, position = [], 0
    while position < len(data):
        header = stored_header(data, position)
        found.append((header.base_offset, header.leader_epoch))
        position += header.length
    return found


async def labels(log: Any, key: PartitionKey) -> list[tuple[int, int]]:
    """Of all batches of a partition, as a client reads them."""
    found: list[tuple[int, int]] = []
    at = log.log_start(key)
    while at < log.high_watermark(key):
        read = await log.reader.read_loaded(key, at, 10_000)
        assert read is not None, at
        found += labels_in(b"".join(read.views))
        at = read.end_offset
    return found


def keys_of(view: StateView) -> dict[str, PartitionKey]:
    """The first partition of each topic, by name."""
    return {topic.name: partition_key(topic.topic_key, 0) for topic in view.topics()}


async def append_everywhere(rig: Rig, expected: list[tuple[int, int]]) -> None:
    """One batch to each topic, and labels as expected from memory, from where it was appended to,
    and from a segment."""
    for key in keys_of(rig.view).values():
        await rig.append(key, b"a", b"b")
    for step in ("memory", "storage", "segment"):
        if step == "segment":
            await rig.drain()
        if step != "memory":
            rig.forget_memory()
            rig.log.reader.forget_all_places()
        for name, key in keys_of(rig.view).items():
            assert await labels(rig.log, key) == expected, (step, name)


@pytest.mark.slow
def test_each_restore_of_a_backup_begins_an_epoch(tmp_path: Path) -> None:
    """What is appended behind it, and only that, is of it."""

    async def fill(rig: Rig) -> None:
        for durability in DURABILITIES:
            await rig.topic(durability, penstock_durability=durability)
        await append_everywhere(rig, [(0, 0)])

    source = tmp_path / "0"
    run_rig(source, fill, flush_interval_ms=5)
    expected = [(0, 0)]
    for epoch in range(1, 4):
        to = BucketStore(MemoryStore())
        copy_to(source, to)
        source = tmp_path / str(epoch)
        restore_to(source, to)
        expected.append((2 * epoch, epoch))

        async def go_on(rig: Rig, epoch: int = epoch) -> None:
            assert rig.view.leader_epoch == epoch
            await append_everywhere(rig, expected)
            starts = ((0, 0), *((before, 2 * before) for before in range(1, epoch + 1)))
            for key in keys_of(rig.view).values():
                assert rig.view.epoch_starts(key) == starts
            (new,) = await rig.topic(f"of {epoch}")
            await rig.append(new, b"x")
            assert await labels(rig.log, new) == [(0, epoch)]
            topic = rig.view.topic(f"of {epoch}")
            assert topic is not None
            await rig.log.commit([DeleteTopic(topic_id=topic.topic_id)])

        run_rig(source, go_on, flush_interval_ms=5)
        assert not verify_path(source).findings


@pytest.mark.slow
def test_what_lies_in_the_wal_at_a_backup_is_of_the_epoch_that_it_was_appended_in(
    tmp_path: Path,
) -> None:
    async def append(rig: Rig) -> None:
        if rig.view.topic("t") is None:
            await rig.topic("t")
        (key,) = keys_of(rig.view).values()
        await rig.append(key, b"x")

    source = tmp_path / "source"
    run_rig(source, append)
    for number in (1, 2):
        to = BucketStore(MemoryStore())
        copy_to(source, to)
        source = tmp_path / str(number)
        restore_to(source, to)
        run_rig(source, append)

    async def read(rig: Rig) -> None:
        (key,) = keys_of(rig.view).values()
        assert await labels(rig.log, key) == [(0, 0), (1, 1), (2, 2)]

    run_rig(source, read)


def test_no_cut_of_a_restore_leaves_a_directory_of_the_old_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        await rig.append(key, b"x")

    run_rig(tmp_path / "source", fill)
    to = BucketStore(MemoryStore())
    copy_to(tmp_path / "source", to)
    make = penstock.recovery.restore.restore_state

    def cut_behind(*arguments: Any) -> Any:
        make(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(penstock.recovery.restore, "restore_state", cut_behind)
    with pytest.raises(KeyboardInterrupt):
        restore_to(tmp_path / "restored", to)
    # The last step was done: the directory is whole, and nobody restores into it again.
    with pytest.raises(InvalidRequestError):
        restore_to(tmp_path / "restored", to)

    async def look(rig: Rig) -> None:
        assert rig.view.leader_epoch == 1

    run_rig(tmp_path / "restored", look)


async def append_to(agent: ClusterAgent, value: bytes) -> None:
    await asyncio.gather(*(agent.append(key, value) for key in keys_of(agent.log._view).values()))


@pytest.mark.slow
@pytest.mark.parametrize("wal", [False, True])
async def test_a_cluster_that_is_made_of_anothers_bucket_begins_an_epoch(
    cluster: Cluster, wal: bool
) -> None:
    """Raw objects, and what lay in a WAL, are of the parent's epoch; the grown one of the next."""
    options: dict[str, Any] = (
        {"wal": True, "durability": "wal", "segment_age_ms": 5_000} if wal else {}
    )
    agent = await cluster.agent(1, **options)
    await agent.topic("t")
    await append_to(agent, b"0")
    await append_to(agent, b"1")
    await passing(30)
    archiver = archiver_of(agent)
    await archiver.snapshot()
    await append_to(agent, b"lost to the restore")
    await kill(cluster)
    state = await restored(cluster, Moment(), allow_loss=True)
    if wal:
        assert state.lost == []
    other = await another_cluster(cluster, state, "new")
    again = await other.agent(1, **options)
    assert again.log._view.leader_epoch == 1
    (key,) = keys_of(again.log._view).values()
    assert again.log._view.epoch_starts(key) == ((0, 0), (1, 2))
    await append_to(again, b"2")
    (new,) = await again.topic("new")
    await append_to(again, b"3")
    expected = [(0, 0), (1, 0), (2, 1), (3, 1)]
    for _ in range(2):
        assert await labels(again.log, key) == expected
        assert await labels(again.log, new) == [(0, 1)]
        again.forget_memory()
        again.log.reader.forget_all_places()
    await passing(30)
    assert await labels(again.log, key) == expected
    # Another agent reads what this one has appended.
    await archiver_of(again).snapshot()
    await again.close()
    third = await other.agent(1, **options)
    assert third.log._view.leader_epoch == 1
    assert await labels(third.log, key) == expected


@pytest.mark.slow
async def test_a_restore_of_a_restored_cluster_begins_the_next(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    await agent.topic("t")
    await append_to(agent, b"0")
    await archiver_of(agent).snapshot()
    await kill(cluster)
    parent = cluster
    for epoch in (1, 2):
        state = await restored(parent, Moment(), name=f"r{epoch}")
        other = await another_cluster(parent, state, f"c{epoch}")
        again = await other.agent(1)
        assert again.log._view.leader_epoch == epoch
        (key,) = keys_of(again.log._view).values()
        await append_to(again, b"x")
        starts = again.log._view.epoch_starts(key)
        assert starts == tuple((number, number) for number in range(epoch + 1))
        await archiver_of(again).snapshot()
        await kill(other)
        parent = other
