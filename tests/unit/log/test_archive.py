"""Archiving on the real machine: what is trimmed is in the bucket, and replicas are made of it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.archive import ArchiveSettings
from penstock.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.ports.objects import ObjectInfo
from penstock.replica.archive_format import (
    JOURNAL_PREFIX,
    SNAPSHOTS_PREFIX,
    StretchName,
    parse_snapshot_key,
    parse_stretch_key,
)
from penstock.replica.bootstrap import bootstrap
from penstock.replica.dump import state_digest
from penstock.state.apply.machine import LogMachine
from support.agent_ports import BELIEVED_AFTER_MS
from support.archives import archive_of, archiver_of, keys, open_order, state_of, true_state, write
from support.cluster_rig import Cluster, ClusterAgent, passing
from support.simulated.virtual_loop import VirtualClock


def damage(cluster: Cluster, key: str, at: int = -1) -> None:
    data, modified_ms = cluster.store.objects[key]
    changed = bytearray(data)
    changed[at] ^= 1
    cluster.store.objects[key] = (bytes(changed), modified_ms)


@pytest.mark.slow
async def test_rows_are_archived_and_trimmed_only_behind_the_second_newest_snapshot(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    await passing(1)
    agent.pause_heartbeats()
    await archiver.run_once()
    assert archiver.archived_position == agent.order.position
    assert list(map(parse_stretch_key, keys(cluster, JOURNAL_PREFIX))) == [
        StretchName(1, archiver.archived_position)
    ]
    archived = [
        row
        async for rows in archive_of(cluster).rows(after=0, until=archiver.archived_position)
        for row in rows
    ]
    assert archived == cluster.journal.rows()[: len(archived)]
    (first,) = await archive_of(cluster).snapshots()
    assert archiver.trimmed_count == 0, "one snapshot is none, should it be damaged"
    assert cluster.journal.first == 1
    await write(agent)
    second = await archiver.snapshot()
    assert cluster.journal.first == first.position + 1
    await write(agent)
    await archiver.snapshot()
    assert cluster.journal.first == second.position + 1
    assert await state_of(cluster, "new") == await true_state(agent)


@pytest.mark.slow
async def test_the_schedule_is_kept(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    for _ in range(35):
        await passing(1)
        await archiver.run_once()
    assert len(keys(cluster, SNAPSHOTS_PREFIX)) == 4  # at once, then each 10 s
    assert len(keys(cluster, JOURNAL_PREFIX)) >= 30  # heartbeats each second
    by_count = archiver_of(agent, settings=ArchiveSettings(snapshot_entries=5))
    await write(agent, 10)
    before = len(keys(cluster, SNAPSHOTS_PREFIX))
    await by_count.run_once()
    assert len(keys(cluster, SNAPSHOTS_PREFIX)) == before + 1
    idle = archiver_of(agent, is_chosen=lambda: False)
    await passing(100)
    await idle.run_once()
    assert len(keys(cluster, SNAPSHOTS_PREFIX)) == before + 1


@pytest.mark.slow
async def test_a_damaged_snapshot_is_passed_over_for_an_older_one(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    for _ in range(3):
        await write(agent)
        await archiver.snapshot()
    snapshots = keys(cluster, SNAPSHOTS_PREFIX)
    for at in (-1, 20, 200):
        damage(cluster, snapshots[-1], at)
        assert await state_of(cluster, f"new{at}") == await true_state(agent)
        damage(cluster, snapshots[-1], at)
    data, modified_ms = cluster.store.objects[snapshots[-1]]
    cluster.store.objects[snapshots[-1]] = (data[:-10], modified_ms)
    assert await state_of(cluster, "cut") == await true_state(agent)
    # Older than what the journal holds: rows come from the archive.
    damage(cluster, snapshots[-2])
    assert parse_snapshot_key(snapshots[0]) is not None
    assert cluster.journal.first > parse_snapshot_key(snapshots[0]).position + 1  # type: ignore[union-attr]
    assert await state_of(cluster, "oldest") == await true_state(agent)
    damage(cluster, snapshots[0])
    with pytest.raises(CorruptDataError):
        await state_of(cluster, "none")
    for key in snapshots:
        del cluster.store.objects[key]
    with pytest.raises(NotFoundError, match="no snapshot"):
        await state_of(cluster, "no snapshot")


@pytest.mark.slow
async def test_a_replica_below_the_trim_or_of_another_cluster_is_made_anew(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    path = cluster.folder / "late.sqlite"
    order = await open_order(cluster, path)
    await order.close()
    for _ in range(3):
        await write(agent)
        await archiver.snapshot()
    assert cluster.journal.first > order.position + 1
    again = await open_order(cluster, path)
    assert again.digest() == await true_state(agent)
    await again.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = 'another' WHERE name = 'cluster_id'")
    again = await open_order(cluster, path)
    assert again.digest() == await true_state(agent)
    await again.close()
    with path.open("r+b") as file:
        file.write(b"no database at all" * 10)
    again = await open_order(cluster, path)
    assert again.digest() == await true_state(agent)
    await again.close()


@pytest.mark.slow
async def test_an_archive_whose_listing_lags_is_listed_again(cluster: Cluster) -> None:
    """It names rows that are deleted, and not the snapshot for whose sake they could be."""
    agent = await cluster.agent(1)
    archiver = archiver_of(agent, settings=ArchiveSettings(keep_ms=0))
    await write(agent)
    await archiver.snapshot()
    old = dict(cluster.store.objects)
    for _ in range(2):
        await write(agent)
        await archiver.snapshot()
    assert cluster.journal.first > 1
    listed, there = cluster.store.list, cluster.store.objects
    until_s = cluster.loop.time() + 3

    async def lag(prefix: str) -> AsyncIterator[ObjectInfo]:
        if cluster.loop.time() < until_s:
            cluster.store.objects = old
        found = [info async for info in listed(prefix)]
        cluster.store.objects = there
        for info in found:
            yield info

    cluster.store.list = lag  # type: ignore[method-assign]
    assert await state_of(cluster, "late") == await true_state(agent)


async def test_the_archive_of_another_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    agent = await cluster.agent(1)
    await write(agent)
    await archiver_of(agent).snapshot()
    with pytest.raises(InvalidRequestError, match="cluster"):
        await open_order(cluster, tmp_path / "x.sqlite", cluster_id="another-cluster")


async def test_an_archive_whose_last_row_was_trimmed_is_not_listed_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing costs requests, and a trimmed row is no sign of a journal that came back older."""
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    await archiver.snapshot()
    looks = 0
    look = archiver._look

    async def counted() -> object:
        nonlocal looks
        looks += 1
        return await look()

    monkeypatch.setattr(archiver, "_look", counted)
    archived = archiver.archived_position
    await write(agent)
    await agent.journal.trim(archived)
    assert await agent.journal.row(archived) is None
    await archiver.snapshot()
    assert looks == 0
    assert await state_of(cluster, "new") == await true_state(agent)


@pytest.mark.slow
async def test_nothing_is_trimmed_behind_another_agents_snapshot_that_is_damaged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """This agent has not read it back: it may have rotted since."""
    one, two = await cluster.agent(1), await cluster.agent(2)
    await write(one)
    await archiver_of(one).snapshot()
    await write(one)
    await two.catch_up()
    (first,) = keys(cluster, SNAPSHOTS_PREFIX)
    damage(cluster, first)
    await archiver_of(two).snapshot()
    assert cluster.journal.first == 1
    assert "nothing is trimmed behind a damaged snapshot" in caplog.text


@pytest.mark.slow
async def test_two_archivers_at_one_time_do_no_harm(cluster: Cluster) -> None:
    one, two = await cluster.agent(1), await cluster.agent(2)
    archivers = [archiver_of(one), archiver_of(two)]
    for _ in range(6):
        await write(one, 2)
        await write(two, 3)
        await asyncio.gather(*(archiver.run_once() for archiver in archivers))
        await passing(7)
        await asyncio.gather(
            *(archiver.snapshot() for archiver in archivers), return_exceptions=False
        )
    # One stalls, the other goes far ahead and trims; then the first goes on.
    for _ in range(3):
        await write(one)
        await archivers[0].snapshot()
    await passing(2)
    await archivers[1].run_once()
    await archivers[1].snapshot()
    assert await state_of(cluster, "new") == await true_state(one)
    await replayed_from_rows(cluster, two)


async def replayed_from_rows(cluster: Cluster, agent: ClusterAgent) -> None:
    """All rows since the first are in the archive, and give the same state."""
    archive = archive_of(cluster)
    names = await archive.stretches()
    end = max(name.last for name in names)
    count = 0
    async for rows in archive.rows(after=0, until=end):
        for row in rows:
            count += 1
            assert row.position == count
    assert count == end


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["away", "lost", "damaged", "damaged snapshot"])
async def test_nothing_is_trimmed_that_the_store_does_not_hold(
    cluster: Cluster, fault: str
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    await archiver.snapshot()
    await write(agent)
    await archiver.snapshot()
    first = cluster.journal.first
    assert first > 1
    await write(agent)

    async def after_put(key: str) -> None:
        if fault == "lost" and key.startswith("archive/"):
            del cluster.store.objects[key]
        prefix = {"damaged": JOURNAL_PREFIX, "damaged snapshot": SNAPSHOTS_PREFIX}.get(fault)
        if prefix is not None and key.startswith(prefix):
            damage(cluster, key)

    if fault == "away":
        cluster.store.away = RetryableError("put", "store", "it is away")
    cluster.store.after_put = after_put
    for _ in range(3):
        with pytest.raises(PenstockError):
            await archiver.snapshot()
        assert cluster.journal.first == first
    cluster.store.away = cluster.store.after_put = None
    await archiver.snapshot()
    assert cluster.journal.first > first
    assert await state_of(cluster, "new") == await true_state(agent)


@pytest.mark.slow
async def test_old_snapshots_and_the_rows_before_them_are_deleted_past_the_window(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent, settings=ArchiveSettings(interval_ms=1_000, keep_ms=60_000))
    names = []
    for _ in range(10):
        await write(agent, 1)
        names.append(await archiver.snapshot())
        await passing(20)
    left = await archive_of(cluster).snapshots()
    assert left == names[-4:]  # 60 s: four of 20 s each
    stretches = await archive_of(cluster).stretches()
    assert min(name.first for name in stretches) <= left[0].position + 1
    assert min(name.last for name in stretches) > left[0].position
    assert await state_of(cluster, "new") == await true_state(agent)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 1])
async def test_the_snapshot_before_an_open_lost_history_is_kept(
    cluster: Cluster, behind: int
) -> None:
    """A repair compares with the state in which the histories parted."""
    agent = await cluster.agent(1)
    held: list[int] = []
    archiver = archiver_of(
        agent,
        settings=ArchiveSettings(interval_ms=1_000, keep_ms=60_000),
        held_from=lambda: held[0] if held else None,
    )
    names = []
    for number in range(10):
        await write(agent, 1)
        names.append(await archiver.snapshot())
        if number == 2:
            held.append(names[2].position + behind)
        await passing(20)
    kept = 1 + behind
    assert await archive_of(cluster).snapshots() == names[kept:]
    stretches = await archive_of(cluster).stretches()
    assert min(name.first for name in stretches) <= names[kept].position + 1
    held.clear()
    await write(agent, 1)
    names.append(await archiver.snapshot())
    assert await archive_of(cluster).snapshots() == names[-4:]


@pytest.mark.slow
async def test_a_snapshot_of_a_time_that_was_ahead_holds_back_nothing_for_ever(
    cluster: Cluster,
) -> None:
    """And while a clock is in doubt nothing is deleted."""
    agent = await cluster.agent(1)
    archiver = archiver_of(agent, settings=ArchiveSettings(interval_ms=1_000, keep_ms=60_000))
    names = []

    async def snapshot() -> None:
        await write(agent, 1)
        names.append(await archiver.snapshot())
        await passing(20)

    for _ in range(3):
        await snapshot()
    ahead = VirtualClock(cluster.loop, skew_ms=10 * 365 * 86_400_000)
    real, cluster.journal.clock = cluster.journal.clock, ahead
    agent.clock.skew_ms = ahead.skew_ms
    await passing(5)
    await snapshot()
    assert await archive_of(cluster).snapshots() == names, "by its journal time all are old"
    cluster.journal.clock = real
    agent.clock.skew_ms = 0
    await passing(BELIEVED_AFTER_MS / 1000 + 5)
    await agent.log.keeper.run_once()
    assert abs(agent.order.time_ms - real.now_ms()) <= 5_000
    for _ in range(8):
        await snapshot()
    assert await archive_of(cluster).snapshots() == names[-4:]


@pytest.mark.slow
async def test_a_snapshot_goes_through_files_and_not_through_memory(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The store is given a mapped file and asked for pieces."""
    agent = await cluster.agent(1)
    await write(agent)
    archive = archive_of(cluster)
    path = tmp_path / "big.sqlite"
    info = agent.order.snapshot(path)
    with path.open("ab") as file:
        file.write(agent.cluster.random.token_bytes(20 << 20))  # SQLite ignores what follows
    cluster.store.gets.clear()
    name = await archive.put_snapshot(path, info)
    assert max(end - start for _, start, end in cluster.store.gets) <= 8 << 20
    await archive.fetch_snapshot(name, tmp_path / "back.sqlite")
    assert (tmp_path / "back.sqlite").read_bytes() == path.read_bytes()
    assert sorted(found.name for found in (cluster.folder / "archive").iterdir()) == []


async def test_a_bootstrap_from_rows_alone_gives_the_state(
    cluster: Cluster, tmp_path: Path
) -> None:
    """`apply_to` is what a snapshot below the trimmed rows needs."""
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    await write(agent)
    await archiver.snapshot()
    await write(agent)
    position, digest = await true_state(agent)
    await passing(1)
    await archiver.run_once()
    path = tmp_path / "made.sqlite"
    made = await bootstrap(archive_of(cluster), path, LogMachine, executor=None, apply_to=position)
    assert made is not None
    assert made.position == position
    with closing(sqlite3.connect(path)) as connection:
        assert state_digest(connection) == digest


async def test_a_journal_that_came_back_older_is_not_mixed_with_what_was_archived(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    await write(agent, 6)
    await archiver_of(agent).snapshot()
    position = agent.order.position
    before = dict(cluster.store.objects)
    await agent.close(0)
    cluster.agents.clear()
    cluster.journal.come_back_older(position - 4)
    # It has a replica as old as that; one made of the archive would refuse to serve.
    again = await cluster.agent(2)
    archiver = archiver_of(again)
    with pytest.raises(CorruptDataError, match="came back older"):
        await archiver.run_once()
    await write(again, 8, topic="u")
    assert again.order.position > position
    await passing(20)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="another row"):
            await archiver.run_once()
    with pytest.raises(CorruptDataError, match="another row"):
        await archiver_of(again).snapshot()
    assert dict(cluster.store.objects).keys() >= before.keys()
    assert [key for key in cluster.store.objects if key.startswith("archive/")] == [
        key for key in before if key.startswith("archive/")
    ]
    assert cluster.journal.first == 1
