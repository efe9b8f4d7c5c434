"""Archives of a simulated cluster, and replicas that are made of its journal and its bucket."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.log.archive import Archiver, ArchiveSettings
from penstock.log.history.archived_loss import NoteLost
from penstock.log.opening.cluster import open_cluster_order
from penstock.log.snapshot_check import SnapshotCheck
from penstock.model.ids import TopicKey, partition_key
from penstock.order.protocol import AgentIdentity
from penstock.replica.archive import Archive
from penstock.state.orders import ClusterOrder
from support.cluster_rig import Cluster, ClusterAgent
from support.simulated.inline_executor import InlineExecutor

SETTINGS = ArchiveSettings(interval_ms=1_000, snapshot_interval_ms=10_000, snapshot_entries=1_000)


def archive_of(
    cluster: Cluster, name: str = "archive", *, cluster_id: str | None = None
) -> Archive:
    return Archive(
        cluster.store,
        cluster_id=cluster.journal.cluster_id if cluster_id is None else cluster_id,
        scratch=cluster.folder / name,
        executor=InlineExecutor(cluster.random),
    )


def archiver_of(
    agent: ClusterAgent,
    *,
    settings: ArchiveSettings = SETTINGS,
    is_chosen: Callable[[], bool] = lambda: True,
    note_lost: NoteLost | None = None,
    drop_lost: Callable[[int], Awaitable[None]] | None = None,
    held_from: Callable[[], int | None] = lambda: None,
    ask_digest: Callable[[], None] = lambda: None,
    equal_position: Callable[[], int] = lambda: 0,
) -> Archiver:
    cluster = agent.cluster
    archive = archive_of(cluster, f"archive{agent.agent_id}")
    scratch = cluster.folder / f"scratch{agent.agent_id}"
    executor = InlineExecutor(cluster.random)
    check = SnapshotCheck(
        journal=agent.journal, archive=archive, scratch=scratch, executor=executor
    )
    return Archiver(
        journal=agent.journal,
        order=agent.order,
        archive=archive,
        compare_snapshot=check.compare,
        ask_digest=ask_digest,
        equal_position=equal_position,
        note_lost=note_lost,
        drop_lost=drop_lost,
        held_from=held_from,
        is_chosen=is_chosen,
        scratch=scratch,
        clock=agent.clock,
        age_ms=agent.ages.now_ms,
        executor=executor,
        settings=settings,
    )


async def write(agent: ClusterAgent, count: int = 3, topic: str = "t") -> None:
    """Some entries of several kinds."""
    known = {topic.name: topic.topic_key for topic in agent.queries.topic_rows()}
    if topic in known:
        key = partition_key(TopicKey(known[topic]), 0)
    else:
        (key,) = await agent.topic(topic)
    for number in range(count):
        status, _ = await agent.append(key, b"value %d" % number)
        assert status is not None


async def open_order(
    cluster: Cluster, path: Path, *, cluster_id: str | None = None, journal: object = None
) -> ClusterOrder:
    return await open_cluster_order(
        cluster.journal.connect(),
        archive_of(cluster, f"scratch-{path.stem}", cluster_id=cluster_id),
        path,
        identity=AgentIdentity(agent_id=99, level_max=2),
        cluster_id=cluster.journal.cluster_id,
        clock=cluster.clock,
        random=cluster.random,
        executor=InlineExecutor(cluster.random, workers=1),
    )


async def state_of(cluster: Cluster, name: str) -> tuple[int, bytes]:
    """Position and digest of a replica that is made anew."""
    order = await open_order(cluster, cluster.folder / f"{name}.sqlite")
    try:
        return order.digest()
    finally:
        await order.close()


async def true_state(agent: ClusterAgent) -> tuple[int, bytes]:
    agent.pause_heartbeats()
    await agent.catch_up()
    return agent.order.digest()


def keys(cluster: Cluster, prefix: str) -> list[str]:
    return sorted(key for key in cluster.store.objects if key.startswith(prefix))
