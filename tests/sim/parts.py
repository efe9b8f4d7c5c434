"""An agent's parts, put together as `penstock.app` does for a cluster, on simulated ports."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.cluster.membership import Membership, MembershipSettings
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.settings import GroupSettings
from penstock.groups.shards import ShardKeeper, ShardSettings
from penstock.kafka.broker import Broker
from penstock.kafka.nodes import ClusterNodes
from penstock.kafka.settings import KafkaSettings
from penstock.log.cluster_log import ClusterLog
from penstock.log.limits import LogLimits
from penstock.log.own_wal import WalFolder
from penstock.metadata.apply import LogMachine
from penstock.metadata.cluster_order import AgentIdentity, ClusterOrder, ClusterOrderSettings
from penstock.metadata.order import Applied
from penstock.metadata.queries import Queries
from penstock.metadata.view import MetadataView
from penstock.model.errors import FatalStorageError, PenstockError
from penstock.replica import Replica
from penstock.replica.dump import canonical_dump
from penstock.testing.inline_executor import InlineExecutor
from penstock.testing.journal import SimulatedConnection
from penstock.testing.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.chance import Chance

DATABASE = "replica.sqlite"
LEVEL = 2
WAL_FILE_BYTES = 16 << 10
WAL_BYTES_MAX = 6 * WAL_FILE_BYTES
KEEPER_S = 0.7


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
    broker: Broker | None = None
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
    machine = LogMachine()
    replica = Replica.open(path, machine, fsync=False, keeps_journal=False)
    parts.closes.append(replica.close)
    order = await ClusterOrder.open(
        parts.journal,
        replica,
        machine,
        identity=AgentIdentity(
            agent_id=agent.agent_id,
            labels={"zone": agent.zone},
            software="simulated",
            endpoint=agent.endpoint,
            peer=agent.peer,
            level_max=LEVEL,
        ),
        cluster_id=world.journal.cluster_id,
        clock=agent.clock,
        random=parts.random,
        executor=parts.replica_pool,
        settings=ClusterOrderSettings(commit_timeout_s=4.0, confirm_timeout_s=2.0),
    )
    queries = Queries(path)
    parts.closes.append(queries.close)
    view = MetadataView.load(queries)
    log = ClusterLog(
        ordering=order,
        view=view,
        queries=lambda: queries,
        store=parts.store,
        clock=agent.clock,
        limits=log_limits(world.mode, world.grace_ms),
        agent_id=agent.agent_id,
        pool=parts.pool,
        on_fatal=on_end,
        wal_folder=WalFolder(
            device=agent.device,
            random=parts.random,
            file_bytes=WAL_FILE_BYTES,
            bytes_max=WAL_BYTES_MAX,
        ),
        remote_wal=agent.remote_wal(),
    )
    shards = ShardKeeper(
        me=agent.agent_id,
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
        me=agent.agent_id,
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
    )
    shards.start(groups)
    parts.tasks.append(asyncio.create_task(_keep(log, on_end), name="keeper"))
    parts.broker = Broker(
        view=view,
        committer=order,
        log=log,
        groups=groups,
        clock=agent.clock,
        random=parts.random,
        cluster_id=order.cluster_id,
        node_id=agent.agent_id,
        advertised_host=agent.name,
        advertised_port=9092,
        settings=KafkaSettings(auto_create_topics=False, confirm_timeout_s=2.0),
        heads=order,
        cluster=ClusterNodes(me=agent.agent_id, view=view, coordinators=shards),
    )


async def _keep(log: ClusterLog, on_end: Callable[[BaseException], None]) -> None:
    """The job of the app."""
    while True:
        await asyncio.sleep(KEEPER_S)
        try:
            await log.keeper.run_once()
        except FatalStorageError as error:
            on_end(error)
        except PenstockError:
            continue


def log_limits(mode: str, grace_ms: int) -> LogLimits:
    """So small that a few hundred records fill caches, and objects come and go within a run."""
    return LogLimits(
        frame_bytes_max=8 << 10,
        append_wait_ms_max=3_000,
        durability="wal" if mode == "wal" else "object",
        flush_bytes=2_000,
        flush_interval_ms=50,
        flush_puts_max=4,
        flushes_open_max=8,
        tail_cache_bytes=4 << 10,
        block_cache_bytes=16 << 10,
        block_bytes=1 << 10,
        segment_bytes=4 << 10,
        segment_age_ms=500,
        delete_grace_ms=grace_ms,
        producer_id_block=4,
        gather_ms=0,
    )


def group_settings() -> GroupSettings:
    """Quick enough for runs of some seconds."""
    return GroupSettings(initial_rebalance_delay_ms=100, session_timeout_ms_min=500)
