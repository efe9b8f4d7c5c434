"""A cluster is killed; of its bucket alone another is made, as it was at a moment."""

from pathlib import Path

import pytest

from penstock.model.errors import CorruptDataError, InvalidRequestError, NotFoundError
from penstock.objects.origins import OriginStore, inherited_key, origin_digest
from penstock.recovery.point_in_time import Moment, RestoredState, restore_state
from penstock.state.command import OffsetWrite
from penstock.state.commands import CommitOffsets, SaveGroup
from penstock.state.orders import restore
from penstock.state.read.queries import Queries
from support.archives import archiver_of
from support.cluster_rig import Cluster, ScriptedStore, passing
from support.restored_clusters import (
    NEW_ID,
    URL,
    History,
    another_cluster,
    bootstrap_agent,
    contents_of,
    history_of,
    kill,
    restored,
)
from support.state_rows import group_offsets


@pytest.mark.slow
async def test_a_cluster_is_made_of_the_bucket_alone_as_of_any_moment(cluster: Cluster) -> None:
    _, _, history = await history_of(cluster)
    left = await kill(cluster)
    assert len(history.at) == 8
    for position, (time_ms, contents) in history.at.items():
        for moment in (Moment(position=position), Moment(time_ms=time_ms)):
            name = f"{position}-{moment.time_ms is None}"
            state = await restored(cluster, moment, name=f"r{name}")
            assert state.parent_position == position
            assert state.time_ms == time_ms
            assert state.parent_cluster_id == "simulated-cluster-0001"
            assert not state.lost
            other = await another_cluster(cluster, state, name)
            agent = await other.agent(1)
            assert await contents_of(agent) == contents
            assert agent.queries.cluster_id() == NEW_ID
            await agent.close()
    assert {key: data for key, (data, _) in cluster.store.objects.items()} == left


@pytest.mark.slow
async def test_the_new_cluster_goes_on_and_never_deletes_what_is_its_parents(
    cluster: Cluster, tmp_path: Path
) -> None:
    _, _, history = await history_of(cluster)
    left = await kill(cluster)
    position = max(history.at)
    before = history.at[position][1]
    state = await restored(cluster, Moment())
    other = await another_cluster(cluster, state, "new")
    agent = await other.agent(1, delete_grace_ms=1_000)
    (key, *_) = before
    for number in range(3):
        _, offset = await agent.append(key, b"new %d" % number)
        assert offset == len(before[key]) + number
    assert [value for _, value in await agent.read_all(key)] == [
        *(value for _, value in before[key]),
        b"new 0",
        b"new 1",
        b"new 2",
    ]
    # The parent's part is trimmed: its objects are forgotten, and stay.
    await agent.log.delete_records([(key, len(before[key]))])
    for _ in range(6):
        await agent.log.keeper.run_once()
        await passing(3)
    assert await agent.read_all(key) == [
        (len(before[key]) + number, b"new %d" % number) for number in range(3)
    ]
    assert {key: data for key, (data, _) in cluster.store.objects.items()} == left
    assert not cluster.store.deleted
    # Another agent joins: it bootstraps of what was restored, too.
    await bootstrap_agent(other, 2)
    second = await other.agent(2)
    assert await contents_of(second) == await contents_of(agent)
    # Its own archive, and a restore of the restored.
    archiver = archiver_of(agent)
    await archiver.snapshot()
    await kill(other)
    state = await restore_state(
        other.store,
        "s3://second/one",
        cluster_id="third-cluster-00000001",
        moment=Moment(),
        scratch=tmp_path / "third",
        executor=None,
        clock=cluster.clock,
        random=cluster.random,
    )
    with_queries = Queries(_database_of(state, tmp_path / "third.sqlite"))
    keys = [row.key for row in with_queries.objects("", 100)]
    assert with_queries.origins() == sorted([URL, "s3://second/one"])
    with_queries.close()
    assert any(key.startswith(f"origins/{origin_digest(URL)}/segments/") for key in keys)
    assert any(
        key.startswith(f"origins/{origin_digest('s3://second/one')}/segments/") for key in keys
    )


def _database_of(state: RestoredState, path: Path) -> Path:
    restore(state.snapshot, path)
    return path


async def test_agents_groups_and_claims_of_the_parent_are_not_those_of_the_new_one(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"x")
    topic_id = agent.queries.topic_rows()[0][1]
    await agent.log.commit(
        [
            SaveGroup(group_id="g", generation=3, protocol_type="consumer", empty=True, state=b"s"),
            CommitOffsets(
                group_id="g",
                offsets=[
                    OffsetWrite(
                        topic_id=topic_id, partition=0, offset=1, leader_epoch=0, metadata="m"
                    )
                ],
            ),
        ]
    )
    before = agent.queries.group("g"), group_offsets(agent.queries, "g")
    await archiver_of(agent).snapshot()
    epoch = agent.order.epoch
    await kill(cluster)
    state = await restored(cluster, Moment())
    other = await another_cluster(cluster, state, "new")
    path = other.folder / "agent1" / "replica.sqlite"
    queries = Queries(path)
    assert queries.agents() == []
    assert queries.shards() == []
    assert queries.wals() == []
    assert (queries.group("g"), group_offsets(queries, "g")) == before
    queries.close()
    again = await other.agent(1)
    assert again.order.epoch > epoch, "no entry of the parent's can be one of the new one's"


@pytest.mark.slow
async def test_bytes_that_were_in_a_wal_are_found_where_they_went_later(cluster: Cluster) -> None:
    agent = await cluster.agent(1, wal=True, durability="wal", segment_age_ms=5_000)
    archiver = archiver_of(agent)
    history = History()
    (key,) = await agent.topic("t")
    for number in range(5):
        await agent.append(key, b"%d" % number)
    position = await history.note(agent)
    await archiver.snapshot()
    assert agent.queries.wal_runs(1)
    with pytest.raises(CorruptDataError, match=r"only in a WAL.*t-0 offsets 0 to"):
        await restored(cluster, Moment())
    state = await restored(cluster, Moment(), allow_loss=True)
    assert state.lost
    # The uploader moves them; then they can be had as of before.
    await passing(30)
    assert not agent.queries.wal_runs(1)
    await archiver.snapshot()
    await agent.append(key, b"in the WAL alone")
    await history.note(agent)
    await archiver.snapshot()
    await kill(cluster)
    state = await restored(cluster, Moment(position=position), name="again")
    assert not state.lost
    other = await another_cluster(cluster, state, "new")
    reader = await other.agent(1)
    assert await contents_of(reader) == history.at[position][1]
    await reader.close()
    state = await restored(cluster, Moment(), allow_loss=True, name="lossy")
    assert state.lost == ["t-0 offsets 5 to 5"]
    other = await another_cluster(cluster, state, "lossy-new")
    reader = await other.agent(1)
    _, offset = await reader.append(key, b"next")
    assert offset == 6, "the lost offset is a gap, not given again"


@pytest.mark.slow
async def test_what_cannot_be_restored_is_told(cluster: Cluster) -> None:
    with pytest.raises(NotFoundError, match="no archive"):
        await restored(cluster, Moment())
    one, _, history = await history_of(cluster)
    end = one.order.position
    first_ms = min(time_ms for time_ms, _ in history.at.values())
    await kill(cluster)
    with pytest.raises(InvalidRequestError, match="archive ends at"):
        await restored(cluster, Moment(position=end + 1000))
    with pytest.raises(NotFoundError, match="did not exist"):
        await restored(cluster, Moment(time_ms=first_ms - 3_600_000))
    segments = [key for key in cluster.store.objects if key.startswith("segments/")]
    taken = cluster.store.objects.pop(segments[0])
    with pytest.raises(CorruptDataError, match="restore window"):
        await restored(cluster, Moment())
    cluster.store.objects[segments[0]] = taken
    stretches = sorted(key for key in cluster.store.objects if "/journal/" in key)
    for key in stretches:
        del cluster.store.objects[key]
    with pytest.raises((CorruptDataError, InvalidRequestError)):
        await restored(cluster, Moment(position=max(history.at)))


async def test_inherited_keys_are_read_from_the_origin_and_never_written(cluster: Cluster) -> None:
    own = ScriptedStore(cluster.loop)
    store = OriginStore(own, {origin_digest(URL): cluster.store})
    await cluster.store.put("segments/1", [b"parent"])
    await store.put("segments/1", [b"own"])
    key = inherited_key(URL, "segments/1")
    assert bytes(await store.get_range(key, 0, 6)) == b"parent"
    assert bytes(await store.get_range("segments/1", 0, 3)) == b"own"
    assert await store.size(key) == 6
    with pytest.raises(InvalidRequestError):
        await store.put(key, [b"x"])
    with pytest.raises(InvalidRequestError):
        await store.delete(["segments/1", key])
    assert not own.deleted
    assert not cluster.store.deleted
    assert [info.key async for info in store.list("")] == ["segments/1"]
    # Copies in a backup of a restored cluster lie under such keys, of origins it has not.
    unknown = inherited_key("s3://else/where", "segments/1")
    await store.put(unknown, [b"copy"])
    assert bytes(await store.get_range(unknown, 0, 4)) == b"copy"
