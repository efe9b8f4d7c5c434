"""An agent's parts: those that a server of a cluster runs, on simulated ports."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.agent.assembly import assemble as assemble_agent
from penstock.agent.cluster import ClusterFoundation, ClusterJournal
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings, ClusterSettings
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.settings import GroupSettings
from penstock.groups.shards import ShardSettings
from penstock.kafka.net.server import KafkaServer
from penstock.log.archive import ArchiveSettings
from penstock.log.settings import LogSettings
from penstock.log.wals.claims import WalFolder
from penstock.membership.membership import MembershipSettings
from penstock.model.errors import FatalStorageError, PenstockError
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.protocol import AgentIdentity
from penstock.peers.standing import Asked, Standing
from penstock.replica.dump import canonical_dump
from penstock.replica.follower import FollowerSettings
from penstock.state.orders import ClusterOrder
from penstock.state.read.queries import Queries
from penstock.system.believed_clock import BelievedClock
from sim.api import BLOCK_BYTES, open_api, sources_of
from sim.clocks import BELIEVED_AFTER_S
from sim.lane import order_by_a_lane
from sim.racing import RacingDevice
from sim.sockets import look_after, note_positions
from support.simulated.inline_executor import InlineExecutor
from support.simulated.journal import SimulatedConnection
from support.simulated.store import SimulatedStore

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from penstock.kafka.broker import Broker
    from sim.agent import Agent
    from sim.chance import Chance
    from sim.world import World

DATABASE = "replica.sqlite"
JOB_S = 0.7


@dataclass(slots=True)
class Parts:
    """One life's parts. What it opens is closed by `let_go`, since a death runs no `finally`."""

    agent: Agent
    journal: SimulatedConnection
    cluster_id: str
    store: SimulatedStore
    parent: SimulatedStore
    """Of the cluster that this one was restored from, if it was."""
    pool: InlineExecutor
    replica_pool: InlineExecutor
    random: Chance
    order: Any = None
    log: Any = None
    own_blocks: Any = None
    broker: Broker | None = None
    api: Starlette | None = None
    quiet_agents: Callable[[], frozenset[int]] | None = None
    standing_of: Callable[[Asked], Standing] | None = None
    groups: GroupCoordinator | None = None
    kafka: KafkaServer | None = None
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

    def open_queries(path: Path, _: object) -> Callable[[], Queries]:
        queries = Queries(path)
        parts.closes.append(queries.close)
        return lambda: queries

    def on_order(order: ClusterOrder) -> None:
        parts.order = order
        parts.closes.append(order._replica.close)  # type: ignore[arg-type]

    ports = AgentPorts(
        clock=BelievedClock(agent.clock, after_ms=int(BELIEVED_AFTER_S * 1000)),
        random=parts.random,
        on_fatal=on_end,
        journal=ClusterJournal(
            journal=parts.journal,
            cluster_id=parts.cluster_id,
            replica=agent.folder / DATABASE,
            applier=parts.replica_pool,
            calls=agent.peer_calls(),
            on_opened=on_order,
            on_older=partial(world.noticed_older, agent),
        ),
        open_store=lambda url: parts.parent if url else parts.store,
        open_queries=open_queries,
        wal_folder=WalFolder(
            device=RacingDevice(agent.device, parts.random.fork())
            if world.profile.races
            else agent.device,
            random=parts.random,
            file_bytes=world.profile.wal_file_bytes,
            bytes_max=world.profile.wal_files_max * world.profile.wal_file_bytes,
        ),
        scratch=agent.folder / "scratch",
        pool=parts.pool,
        on_close=parts.closes.append,
        checks_pool=parts.pool,
    )
    core = await assemble_agent(_settings(agent), ports)
    foundation, company = core.foundation, core.company
    assert isinstance(foundation, ClusterFoundation)
    assert company is not None
    parts.log, parts.own_blocks = foundation.log, foundation.own_blocks
    parts.standing_of = company.standing_of
    if world.profile.has_lane:
        order_by_a_lane(parts)
    await core.start()
    for job in core.jobs():
        if job.name != "archive" or world.archives:
            parts.tasks.append(asyncio.create_task(_repeat(job.run, on_end)))
    parts.api = open_api(
        sources_of(
            cluster_id=foundation.cluster_id,
            ages=foundation.ages,
            view=foundation.view,
            queries=foundation.queries,
            log=foundation.log,
            heads=foundation.order,
            store=foundation.store,
            pool=parts.pool,
        )
    )
    parts.quiet_agents = lambda: company.quiet_agents
    parts.groups = core.groups
    parts.kafka = KafkaServer(core.broker)
    if world.profile.has_transactions:
        parts.tasks.append(asyncio.create_task(note_positions(parts.kafka)))
    if world.profile.has_streams:
        parts.tasks.append(asyncio.create_task(look_after(parts.kafka)))
    parts.broker = core.broker


def _settings(agent: Agent) -> AgentSettings:
    """So quick that a run of some seconds meets everything."""
    world = agent.world
    return AgentSettings(
        identity=AgentIdentity(
            agent_id=agent.agent_id,
            labels={"zone": agent.zone},
            software="simulated",
            endpoint=agent.endpoint,
            peer=agent.peer,
            level_max=agent.level_max,
        ),
        advertised_host=agent.name,
        advertised_port=9092,
        log=log_limits(world),
        groups=GroupSettings(
            initial_rebalance_delay_ms=100,
            session_timeout_ms_min=500,
            consumer_session_timeout_ms=2_000,
        ),
        kafka=world.profile.kafka,
        retention_check_s=JOB_S,
        membership=MembershipSettings(rejoin_ms=1_000, others_first_ms=500),
        shards=ShardSettings(move_delay_ms=800),
        cluster=ClusterSettings(
            archive=ArchiveSettings(
                interval_ms=500,
                keep_ms=world.restore_window_ms,
                snapshot_interval_ms=3_000,
                snapshot_entries=60,
            ),
            restore_window_ms=world.restore_window_ms,
            digest_interval_ms=world.profile.digest_interval_ms,
            order=ClusterOrderSettings(
                commit_timeout_s=world.profile.commit_timeout_s,
                confirm_timeout_s=2.0,
                clock_believed_after_ms=int(BELIEVED_AFTER_S * 1000),
                # So small that what is applied by a thread is simulated, too.
                follower=FollowerSettings(inline_bytes_max=200),
            ),
        ),
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


def log_limits(world: World) -> LogSettings:
    """So small that a few hundred records fill caches, and objects come and go within a run."""
    return LogSettings(
        frame_bytes_max=8 << 10,
        append_wait_ms_max=3_000,
        durability="wal" if world.mode == "wal" else "object",
        flush_bytes=world.flush_bytes,
        flush_interval_ms=world.flush_interval_ms,
        flush_puts_max=4,
        flushes_open_max=8,
        tail_cache_bytes=world.profile.tail_cache_bytes,
        block_cache_bytes=world.profile.block_cache_bytes,
        block_bytes=BLOCK_BYTES,
        segment_bytes=4 << 10,
        segment_age_ms=world.segment_age_ms,
        delete_grace_ms=world.grace_ms,
        producer_id_block=4,
    )
