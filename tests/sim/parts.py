"""An agent's parts, put together as `penstock.app` does for a cluster, on simulated ports."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cluster.membership import Membership, MembershipSettings
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.settings import GroupSettings
from penstock.groups.shards import ShardKeeper, ShardSettings
from penstock.kafka.broker import Broker
from penstock.kafka.nodes import ClusterNodes
from penstock.kafka.settings import KafkaSettings
from penstock.log.archive import Archiver, ArchiveSettings
from penstock.log.cluster_log import ClusterLog
from penstock.log.cluster_opening import open_cluster_order
from penstock.log.limits import LogLimits
from penstock.log.own_wal import WalFolder
from penstock.metadata.ages import Ages
from penstock.metadata.cluster_order import AgentIdentity, ClusterOrderSettings
from penstock.metadata.order import Applied
from penstock.metadata.queries import Queries
from penstock.metadata.view import MetadataView
from penstock.model.errors import FatalStorageError, JournalOlderError, PenstockError
from penstock.peers.blocks import OwnBlocks
from penstock.peers.wal import PeerWal
from penstock.peers.zone import ZoneStore
from penstock.placement.rendezvous import owner_of
from penstock.replica.archive import Archive
from penstock.replica.dump import canonical_dump
from penstock.replica.follower import FollowerSettings
from penstock.system.believed_clock import BelievedClock
from penstock.testing.inline_executor import InlineExecutor
from penstock.testing.journal import SimulatedConnection
from penstock.testing.simulated_store import SimulatedStore
from sim.door import open_door, sources_of

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from sim.agent import Agent
    from sim.chance import Chance
    from sim.world import World

DATABASE = "replica.sqlite"
LEVEL = 4
BELIEVED_AFTER_MS = 2_000
"""A simulated life lasts for seconds."""
WAL_FILES_MAX = 6
JOB_S = 0.7


@dataclass(slots=True)
class Parts:
    """One life's parts. What it opens is closed by `let_go`, since a death runs no `finally`."""

    agent: Agent
    journal: SimulatedConnection
    store: SimulatedStore
    pool: InlineExecutor
    replica_pool: InlineExecutor
    random: Chance
    order: Any = None
    log: Any = None
    own_blocks: Any = None
    broker: Broker | None = None
    door: Starlette | None = None
    closes: list[Callable[[], None]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def let_go(self) -> None:
        """Close files and connections, as the system does for a dead process."""
        while self.closes:
            self.closes.pop()()

    def dump(self) -> tuple[int, list[bytes]]:
        """The replica as a file: its position and canonical dump."""
        connection = sqlite3.connect(self.agent.folder / DATABASE)
        try:
            (position,) = connection.execute("SELECT position FROM replica").fetchone()
            return position, list(canonical_dump(connection))
        finally:
            connection.close()


async def assemble(parts: Parts, *, on_end: Callable[[BaseException], None]) -> None:
    """Open everything and begin to serve.

    Args:
        on_end: called when the process has to end.
    """
    agent, world = parts.agent, parts.agent.world
    path = agent.folder / DATABASE
    me = agent.agent_id
    clock = BelievedClock(agent.clock, after_ms=BELIEVED_AFTER_MS)
    archive = Archive(
        parts.store,
        cluster_id=world.journal.cluster_id,
        scratch=agent.folder / "scratch",
        executor=parts.pool,
    )
    open_order = partial(
        open_cluster_order,
        parts.journal,
        archive,
        path,
        identity=AgentIdentity(
            agent_id=me,
            labels={"zone": agent.zone},
            software="simulated",
            endpoint=agent.endpoint,
            peer=agent.peer,
            level_max=LEVEL,
        ),
        cluster_id=world.journal.cluster_id,
        clock=clock,
        random=parts.random,
        executor=parts.replica_pool,
        settings=ClusterOrderSettings(
            commit_timeout_s=4.0,
            confirm_timeout_s=2.0,
            clock_believed_after_ms=BELIEVED_AFTER_MS,
            # So small that what is applied by a thread is simulated, too.
            follower=FollowerSettings(inline_bytes_max=200),
        ),
        wal=agent.device,
    )
    try:
        order = await open_order()
    except JournalOlderError as error:
        world.noticed_older(agent, error)
        order = await open_order()
    parts.closes.append(order._replica.close)
    clock.start_from(order.found_ms)
    ages = Ages(
        clock,
        journal_ms=lambda: order.time_ms,
        is_doubted=lambda: order.is_clock_doubted,
    )
    queries = Queries(path)
    parts.closes.append(queries.close)
    view = MetadataView.load(queries)
    limits = log_limits(world)
    parts.own_blocks = OwnBlocks(parts.store, bytes_max=limits.block_cache_bytes)
    calls = agent.peer_calls()
    zone = ZoneStore(
        parts.store,
        agent_id=me,
        agents=lambda: {
            other.agent_id: other.peer
            for other in view.agents()
            if other.live and other.labels.get("zone") == agent.zone
        },
        owner_of=owner_of,
        own=parts.own_blocks,
        calls=calls,
        block_bytes=limits.block_bytes,
        clock=agent.clock,
    )

    def address_of(other: int) -> str | None:
        found = view.agent(other)
        return found.peer if found is not None and found.live else None

    log = ClusterLog(
        ordering=order,
        view=view,
        queries=lambda: queries,
        store=zone,
        clock=clock,
        ages=ages,
        limits=limits,
        agent_id=me,
        pool=parts.pool,
        on_fatal=on_end,
        wal_folder=WalFolder(
            device=agent.device,
            random=parts.random,
            file_bytes=world.profile.wal_file_bytes,
            bytes_max=WAL_FILES_MAX * world.profile.wal_file_bytes,
        ),
        remote_wal=PeerWal(calls, address_of=address_of),
    )
    shards = ShardKeeper(
        me=me,
        order=order,
        view=view,
        clock=agent.clock,
        settings=ShardSettings(move_delay_ms=800),
    )

    def on_applied(applied: list[Applied]) -> None:
        log.on_applied(applied)
        shards.follow()

    parts.order, parts.log = order, log
    await order.start(on_applied=on_applied, on_stopped=on_end)
    membership = Membership(
        me=me,
        epoch=order.epoch,
        order=order,
        view=view,
        clock=agent.clock,
        on_fenced=on_end,
        settings=MembershipSettings(rejoin_ms=1_000, others_first_ms=500),
    )
    membership.start()
    while view.feature_level < LEVEL:
        await asyncio.sleep(0.05)
    await log.start(epoch=order.epoch)
    groups = GroupCoordinator(
        committer=order,
        view=view,
        queries=queries,
        clock=agent.clock,
        random=parts.random,
        settings=group_settings(),
        ownership=shards,
        shows_answers=lambda: order.shows_answers,
        now_ms=ages.now_ms,
    )
    shards.start(groups)
    archiver = Archiver(
        journal=parts.journal,
        order=order,
        archive=archive,
        is_chosen=lambda: _is_chosen(view, me),
        scratch=agent.folder / "scratch",
        clock=clock,
        age_ms=ages.now_ms,
        executor=parts.pool,
        settings=ArchiveSettings(
            interval_ms=500,
            keep_ms=2_000,
            snapshot_interval_ms=3_000,
            snapshot_entries=60,
        ),
    )
    jobs: list[Callable[[], Awaitable[object]]] = [log.keeper.run_once]
    if world.archives:
        jobs.append(archiver.run_once)
    for job in jobs:
        parts.tasks.append(asyncio.create_task(_repeat(job, on_end)))
    parts.door = open_door(
        sources_of(
            cluster_id=order.cluster_id,
            ages=ages,
            view=view,
            queries=lambda: queries,
            log=log,
            heads=order,
            store=zone,
            pool=parts.pool,
        )
    )
    parts.broker = Broker(
        view=view,
        committer=order,
        log=log,
        groups=groups,
        clock=agent.clock,
        random=parts.random,
        cluster_id=order.cluster_id,
        node_id=me,
        advertised_host=agent.name,
        advertised_port=9092,
        settings=KafkaSettings(auto_create_topics=False, confirm_timeout_s=2.0),
        heads=order,
        cluster=ClusterNodes(me=me, view=view, coordinators=shards, quiet=lambda: membership.quiet),
    )


async def _repeat(
    job: Callable[[], Awaitable[object]], on_end: Callable[[BaseException], None]
) -> None:
    """As the app's jobs."""
    while True:
        await asyncio.sleep(JOB_S)
        try:
            await job()
        except FatalStorageError as error:
            on_end(error)
        except PenstockError:
            continue


def _is_chosen(view: MetadataView, me: int) -> bool:
    live = [agent.agent_id for agent in view.agents() if agent.live]
    return owner_of(b"archive", live or [me]) == me


def log_limits(world: World) -> LogLimits:
    """So small that a few hundred records fill caches, and objects come and go within a run."""
    return LogLimits(
        frame_bytes_max=8 << 10,
        append_wait_ms_max=3_000,
        durability="wal" if world.mode == "wal" else "object",
        flush_bytes=world.flush_bytes,
        flush_interval_ms=world.flush_interval_ms,
        flush_puts_max=4,
        flushes_open_max=8,
        tail_cache_bytes=4 << 10,
        block_cache_bytes=16 << 10,
        block_bytes=1 << 10,
        segment_bytes=4 << 10,
        segment_age_ms=world.segment_age_ms,
        delete_grace_ms=world.grace_ms,
        producer_id_block=4,
    )


def group_settings() -> GroupSettings:
    """Quick enough for runs of some seconds."""
    return GroupSettings(initial_rebalance_delay_ms=100, session_timeout_ms_min=500)
