"""An agent on a journal of its own, as an embedded server assembles it, on the ports of a rig."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from penstock.agent.assembly import Agent, assemble
from penstock.agent.own import OwnFoundation, OwnJournal
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings
from penstock.agent.thread_queries import ThreadQueries
from penstock.groups.settings import GroupSettings
from penstock.kafka.settings import KafkaSettings
from penstock.log import LogSettings
from penstock.log.wals.claims import WalFolder
from penstock.log.wals.lane_wal import LaneWal
from penstock.order.protocol import AgentIdentity
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.system.believed_clock import BelievedClock


class OwnAgent:
    """One life of an agent. `closes` has what closes its files, the first opened first."""

    def __init__(
        self, agent: Agent, foundation: OwnFoundation, closes: list[Callable[[], None]]
    ) -> None:
        self.agent = agent
        self.foundation = foundation
        self._closes = closes

    @property
    def own_wal(self) -> LaneWal:
        """The log's WAL, with its lane."""
        own_wal = self.foundation.log.own_wal
        assert isinstance(own_wal, LaneWal)
        return own_wal

    async def start(self) -> None:
        """Begin to append and to read. Groups aren't taken up: they have tests of their own, and
        a test of the log may store anything as the state of a group."""
        await self.foundation.follow()
        await self.foundation.begin()

    async def drain(self) -> None:
        """End as a server does that is told to."""
        await self.agent.groups.close()
        await self.agent.drain(10)

    async def crash(self) -> None:
        """Stop what runs, and leave the WAL as the death of a process does."""
        log, own_wal = self.foundation.log, self.own_wal
        await self.agent.groups.close()
        await log.care.close()
        await own_wal.close()
        await log.reads.close()

    def close_files(self) -> None:
        """Close files and connections, once no thread uses one any more."""
        while self._closes:
            self._closes.pop()()


async def open_own_agent(
    database: Path,
    *,
    wal_folder: WalFolder,
    clock: BelievedClock,
    random: Random,
    limits: LogSettings,
    store: ObjectStore,
    pool: Executor,
    on_fatal: Callable[[BaseException], None],
) -> OwnAgent:
    """Open a journal and put an agent on it together; `start` it.

    Raises: as `OwnJournal.join`; then everything is closed.
    """
    closes: list[Callable[[], None]] = []

    def open_queries(path: Path, on_damaged: Callable[..., None] | None) -> ThreadQueries:
        queries = ThreadQueries(path, on_damaged=on_damaged)
        closes.append(queries.close)
        return queries

    ports = AgentPorts(
        clock=clock,
        random=random,
        on_fatal=on_fatal,
        journal=OwnJournal(database=database),
        open_store=lambda _: store,
        open_queries=open_queries,
        wal_folder=wal_folder,
        scratch=database.parent / "scratch",
        pool=pool,
        on_close=closes.append,
    )
    settings = AgentSettings(
        identity=AgentIdentity(agent_id=0),
        advertised_host="127.0.0.1",
        advertised_port=1,
        log=limits,
        groups=GroupSettings(),
        kafka=KafkaSettings(),
        retention_check_s=60.0,
    )
    try:
        agent = await assemble(settings, ports)
    except BaseException:
        while closes:
            closes.pop()()
        raise
    assert isinstance(agent.foundation, OwnFoundation)
    return OwnAgent(agent, agent.foundation, closes)
