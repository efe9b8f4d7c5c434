"""Agents of a restored cluster begin with the restored state, whatever a listing shows."""

import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.ports.objects import ObjectInfo
from penstock.recovery.cluster import check_replay
from penstock.recovery.point_in_time import Moment, RestoredState, restore_state
from penstock.recovery.verify import VerifyReport
from penstock.replica.archive_format import JOURNAL_PREFIX, SNAPSHOTS_PREFIX
from penstock.replica.beginning import Beginning
from penstock.replica.replica import Replica
from penstock.replica.snapshot import SnapshotInfo, write_snapshot
from penstock.state.apply.machine import LogMachine
from penstock.state.orders import restore
from penstock.state.read.queries import Queries
from support.archives import archive_of, archiver_of, keys, open_order, write
from support.cluster_rig import Cluster, ScriptedStore, passing, run_cluster
from support.restored_clusters import empty_cluster, history_of, kill, restored


class LaggingStore(ScriptedStore):
    """Its listings don't show these keys."""

    hidden: frozenset[str] = frozenset()

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix, after=after):
            if info.key not in self.hidden:
                yield info


Restored = tuple[Cluster, LaggingStore, RestoredState]


async def restored_cluster(
    cluster: Cluster, *, of: Callable[[Beginning], Beginning] = lambda right: right
) -> Restored:
    """A journal and a bucket as a restore leaves them, and listings show nothing of it.

    Args:
        of: gives what the journal says that it begins with.
    """
    await history_of(cluster)
    await kill(cluster)
    state = await restored(cluster, Moment())
    store = LaggingStore(cluster.loop)
    other = empty_cluster(cluster, state.cluster_id, "other", store=store)
    await archive_of(other).put_snapshot(state.snapshot, state.info)
    other.journal.begin(of(state.beginning))
    store.hidden = frozenset(store.objects)
    return other, store, state


def topics_in(path: Path) -> list[str]:
    queries = Queries(path)
    try:
        return sorted(topic.name for topic in queries.topic_rows())
    finally:
        queries.close()


@pytest.mark.slow
async def test_what_no_listing_shows_is_found_by_its_key(cluster: Cluster) -> None:
    other, store, state = await restored_cluster(cluster)
    assert [info.key async for info in store.list("")] == []
    path = other.folder / "a.sqlite"
    order = await open_order(other, path)
    assert order.digest() == (1, state.info.digest)
    await order.close()
    assert "t" in topics_in(path)


@pytest.mark.slow
async def test_without_it_the_start_waits_and_nothing_is_made(cluster: Cluster) -> None:
    other, store, state = await restored_cluster(cluster)
    key = state.beginning.snapshot.key
    put = store.objects.pop(key)
    path = other.folder / "a.sqlite"
    for _ in range(2):
        with pytest.raises(RetryableError, match=f"bootstrap {key}.*does not hold"):
            await open_order(other, path)
        assert not path.exists()
    assert other.journal.head == 1, "nothing was journaled"
    store.objects[key] = put
    order = await open_order(other, path)
    assert order.digest() == (1, state.info.digest)
    await order.close()


@pytest.mark.slow
async def test_a_later_snapshot_that_is_listed_does_as_well(cluster: Cluster) -> None:
    other, store, state = await restored_cluster(cluster)
    await open_first(other)
    agent = await other.agent(1)
    await write(agent, topic="later")
    agent.pause_heartbeats()
    archiver = archiver_of(agent)
    await archiver.snapshot()
    del store.objects[state.beginning.snapshot.key]
    path = other.folder / "b.sqlite"
    order = await open_order(other, path)
    assert order.digest() == agent.order.digest()
    await order.close()


async def open_first(cluster: Cluster) -> None:
    """Agent 1's replica, where the rig looks for it."""
    path = cluster.folder / "agent1" / "replica.sqlite"
    path.parent.mkdir()
    order = await open_order(cluster, path)
    await order.close()


@pytest.mark.slow
async def test_an_agent_that_stands_at_nothing_begins_again(cluster: Cluster) -> None:
    """An empty replica (a start that was cut) must not read on past the row."""
    other, _, state = await restored_cluster(cluster)
    path = other.folder / "a.sqlite"
    Replica.open(path, LogMachine(), fsync=False, keeps_journal=False).close()
    order = await open_order(other, path)
    assert order.digest() == (1, state.info.digest)
    await order.close()
    assert list(other.folder.glob("lost-*")) == [], "it was of no lost history"


def other_than(digest: bytes) -> bytes:
    """A digest with the same first half."""
    return digest[:-1] + bytes([digest[-1] ^ 1])


@pytest.mark.slow
async def test_another_state_under_the_key_is_refused(cluster: Cluster) -> None:
    # The key has the digest's first half alone.
    other, _, _ = await restored_cluster(
        cluster, of=lambda right: replace(right, digest=other_than(right.digest))
    )
    path = other.folder / "a.sqlite"
    with pytest.raises(CorruptDataError, match="the journal begins with that of"):
        await open_order(other, path)
    assert not path.exists()


@pytest.mark.slow
async def test_tables_of_two_journals_are_not_mixed(cluster: Cluster) -> None:
    other, _, _ = await restored_cluster(
        cluster, of=lambda right: replace(right, cluster_id="another-cluster-000001")
    )
    with pytest.raises(InvalidRequestError, match="of cluster another-cluster-000001"):
        await open_order(other, other.folder / "a.sqlite")


@pytest.mark.slow
async def test_a_cluster_that_an_older_release_restored_is_opened_as_ever(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its state lies at position 0, and nothing in its journal says so."""
    await history_of(cluster)
    await kill(cluster)
    state = await restored(cluster, Moment())
    other = empty_cluster(cluster, state.cluster_id, "other")
    snapshot = tmp_path / "at-0.sqlite"
    info = at_position_0(state.snapshot, snapshot)
    await archive_of(other).put_snapshot(snapshot, info)
    await open_first(other)
    agent = await other.agent(1)
    assert "t" in {topic.name for topic in agent.queries.topic_rows()}
    await write(agent, topic="later")
    path = other.folder / "b.sqlite"
    order = await open_order(other, path)
    assert order.position >= agent.order.position
    await order.close()
    assert {"t", "later"} <= set(topics_in(path))


def at_position_0(snapshot: Path, target: Path) -> SnapshotInfo:
    """The same state where releases before docs/decisions/0018 put it."""
    database = target.with_suffix(".database")
    restore(snapshot, database)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE replica SET position = 0")
    return write_snapshot(database, target)


@pytest.mark.slow
async def test_the_archive_of_a_restored_cluster_begins_after_its_beginning(
    cluster: Cluster,
) -> None:
    """Also where the archiver sees no snapshot; and what it archives is compared with the named
    one and the rows since."""
    other, store, _ = await restored_cluster(cluster)
    await open_first(other)
    agent = await other.agent(1)
    await write(agent, topic="later")
    archiver = archiver_of(agent)
    await archiver.snapshot()
    assert (archiver.refused_count, archiver.uncompared_count) == (0, 0)
    first = min(key for key in store.objects if key.startswith(JOURNAL_PREFIX))
    assert int(first.removeprefix(JOURNAL_PREFIX)[:20]) == 2
    assert len(keys(other, SNAPSHOTS_PREFIX)) == 2


async def leave_behind(cluster: Cluster, parent: Cluster, *, above: str) -> str:
    """What a restore to the same prefix leaves that is killed between its put and its delete: a
    snapshot that is listed after the right one, too. Returns its key."""
    archive = archive_of(cluster, cluster_id="killed-cluster-000001")
    for number in range(20):
        state = await restored(
            parent, Moment(), name=f"killed{number}", now_ms=10**12 * (number + 2)
        )
        name = await archive.put_snapshot(state.snapshot, state.info)
        if name.key > above:
            return name.key
    raise AssertionError("none is listed after it")


@pytest.mark.slow
def test_the_state_that_a_killed_restore_left_there_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: Cluster) -> None:
        other, store, state = await restored_cluster(cluster)
        store.hidden = frozenset()
        left = await leave_behind(other, cluster, above=state.beginning.snapshot.key)
        # Where none is of a cluster, the prefix is another's, and nothing begins without them.
        foreign = archive_of(other, cluster_id="another-cluster-00001")
        assert [name.key for name in await foreign.snapshots()] == keys(other, SNAPSHOTS_PREFIX)
        # Not even this cluster knows which is its own, while nothing else is there.
        with pytest.raises(InvalidRequestError, match="a restore was killed"):
            await restore_again(cluster, other, tmp_path / "again")
        order = await open_order(other, other.folder / "a.sqlite")
        assert order.digest() == (1, state.info.digest)
        await order.close()
        await open_first(other)
        agent = await other.agent(1)
        archiver = archiver_of(agent)
        for turn in range(4):
            await write(agent, topic=f"later{turn}")
            await archiver.run_once()
            await archiver.snapshot()
            await passing(400)
        assert archiver.uncompared_count == 0
        # As the archiver does when it is old.
        del store.objects[state.beginning.snapshot.key]
        await archiver_of(agent).snapshot()
        assert left in store.objects
        report = VerifyReport()
        await check_replay(archive_of(other), tmp_path / "replayed.sqlite", report)
        assert report.replayed_entries
        await kill(other)
        again = await restore_again(cluster, other, tmp_path / "again2")
        assert again.parent_cluster_id == state.cluster_id

    with caplog.at_level(logging.WARNING, logger="penstock.replica.archive"):
        run_cluster(tmp_path, test)
    assert "a restore of cluster killed-cluster-000001 has left it" in caplog.text


async def test_a_restore_of_the_restored_never_begins_with_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    other, store, state = await restored_cluster(cluster)
    await open_first(other)
    agent = await other.agent(1)
    await write(agent, topic="later")
    archiver = archiver_of(agent)
    await archiver.run_once()
    await kill(other)
    store.hidden = frozenset(keys(other, SNAPSHOTS_PREFIX))
    with pytest.raises(NotFoundError, match="no archive from that moment or before"):
        await restore_again(cluster, other, tmp_path / "again")
    store.hidden = frozenset()
    again = await restore_again(cluster, other, tmp_path / "again2")
    assert again.parent_cluster_id == state.cluster_id


async def restore_again(cluster: Cluster, parent: Cluster, scratch: Path) -> RestoredState:
    return await restore_state(
        parent.store,
        "s3://second/one",
        cluster_id="third-cluster-00000001",
        moment=Moment(),
        scratch=scratch,
        executor=None,
        clock=cluster.clock,
        random=cluster.random,
    )
