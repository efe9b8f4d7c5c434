"""Clusters of which the bucket alone is left, and others that are made of it."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.archive import Archiver
from penstock.model.epochs import EPOCH_ORIGIN_MS
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.recovery.point_in_time import Moment, RestoredState, restore_state
from penstock.replica.bootstrap import bootstrap
from penstock.state.apply.machine import LogMachine
from support.archives import archive_of, archiver_of
from support.cluster_rig import Cluster, ClusterAgent, ScriptedStore, passing, run_cluster
from support.simulated.clock import ManualClock
from support.simulated.inline_executor import InlineExecutor
from support.simulated.journal import SimulatedJournal

URL = "s3://parent/prefix"


NEW_ID = "restored-cluster-00001"


Contents = dict[PartitionKey, list[tuple[int, bytes]]]


@dataclass
class History:
    """What a cluster held at positions of its journal, and when."""

    at: dict[int, tuple[int, Contents]] = field(default_factory=dict)

    async def note(self, agent: ClusterAgent) -> int:
        beating = agent.beating is not None
        agent.pause_heartbeats()
        contents = await contents_of(agent)
        self.at[agent.order.position] = (agent.order.time_ms, contents)
        if beating:
            agent.beating = agent.cluster.loop.create_task(agent.cluster._beat(agent))
        return agent.order.position


async def contents_of(agent: ClusterAgent) -> Contents:
    await agent.catch_up()
    return {
        key: await agent.read_all(key)
        for topic_key, _, _, partitions, *_ in agent.queries.topic_rows()
        for key in (partition_key(TopicKey(topic_key), number) for number in range(partitions))
    }


async def restored(
    cluster: Cluster,
    moment: Moment,
    *,
    allow_loss: bool = False,
    name: str = "restore",
    now_ms: int | None = None,
) -> RestoredState:
    """By default in the first seconds that there are, so that the first leader epoch is 1."""
    if now_ms is None:
        now_ms = EPOCH_ORIGIN_MS + 2_000 * len(list(cluster.folder.glob("*/restored*")))
    return await restore_state(
        cluster.store,
        URL,
        cluster_id=NEW_ID,
        moment=moment,
        scratch=cluster.folder / name,
        executor=InlineExecutor(cluster.random),
        clock=ManualClock(now_ms=now_ms),
        random=cluster.random,
        allow_loss=allow_loss,
    )


def empty_cluster(
    cluster: Cluster, cluster_id: str, name: str, *, store: ScriptedStore | None = None
) -> Cluster:
    """A cluster with a journal and a store of its own, both empty, which may inherit another's
    objects."""
    other = Cluster(cluster.loop, cluster.folder / name, seed=5)
    cluster.descendants.append(other)
    other.folder.mkdir()
    other.journal = SimulatedJournal(random=other.random, clock=other.clock, cluster_id=cluster_id)
    other.store = store or ScriptedStore(cluster.loop)
    other.parents = {URL: cluster.store} | cluster.parents
    return other


async def another_cluster(cluster: Cluster, state: RestoredState, name: str) -> Cluster:
    """A cluster with a journal and a store of its own, which begins with the state."""
    other = empty_cluster(cluster, state.cluster_id, name)
    await archive_of(other).put_snapshot(state.snapshot, state.info)
    other.journal.begin(state.beginning)
    await bootstrap_agent(other, 1)
    return other


async def bootstrap_agent(cluster: Cluster, agent_id: int) -> None:
    path = cluster.folder / f"agent{agent_id}" / "replica.sqlite"
    path.parent.mkdir(parents=True)
    assert await bootstrap(archive_of(cluster), path, LogMachine, executor=None) is not None


async def history_of(cluster: Cluster) -> tuple[ClusterAgent, Archiver, History]:
    """Records by two agents, with snapshots, trims and a deleted topic on the way."""
    one, two = await cluster.agent(1), await cluster.agent(2)
    archiver = archiver_of(one)
    history = History()
    keys = await one.topic("t", 2)
    (gone,) = await one.topic("gone")
    for turn in range(4):
        for number in range(3):
            await asyncio.gather(
                one.append(keys[0], b"one %d %d" % (turn, number)),
                two.append(keys[1], b"two %d %d" % (turn, number)),
                one.append(gone, b"gone %d %d" % (turn, number)),
            )
        await history.note(one)
        if turn == 1:
            await archiver.snapshot()
        await two.append(keys[0], b"after %d" % turn)
        await history.note(one)
        await passing(20)
    await passing(2)
    await archiver.run_once()
    return one, archiver, history


async def kill(cluster: Cluster) -> dict[str, bytes]:
    """All agents and the journal are gone; what is left is the bucket."""
    for agent in cluster.agents:
        await agent.close(0)
    cluster.agents.clear()
    cluster.journal.go_away()
    return {key: data for key, (data, _) in cluster.store.objects.items()}


def bucket_on_disk(folder: Path) -> Path:
    """The bucket, as a directory, of a cluster of which nothing else is left."""
    bucket = folder / "bucket"

    async def live(cluster: Cluster) -> None:
        await history_of(cluster)
        for key, data in (await kill(cluster)).items():
            path = bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    run_cluster(folder / "cluster", live)
    return bucket
