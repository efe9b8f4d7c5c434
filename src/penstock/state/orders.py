"""The three orders, of the log: each is opened here with the log's machine and protocol."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeAlias

from penstock.order import cluster_order, local_journal, local_order
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.host import hub
from penstock.order.host import order as host
from penstock.order.protocol import AgentIdentity
from penstock.ports.clock import Clock
from penstock.ports.journal import Journal
from penstock.ports.random import Random
from penstock.replica.journal_files import JournalFiles
from penstock.replica.replica import Replica
from penstock.replica.snapshot import JournalEntry, SnapshotInfo, restore_snapshot
from penstock.state.answers import AnyAnswer
from penstock.state.apply.agents import next_epoch
from penstock.state.apply.machine import EntryOutcome, LogMachine
from penstock.state.changes import Change
from penstock.state.commands import AnyCommand, SetFeatureLevel
from penstock.state.levels import KnownLevels
from penstock.state.log_protocol import LOG_PROTOCOL, LOG_RELAYING
from penstock.state.order_types import Committer
from penstock.state.read.queries import Queries
from penstock.state.schema import APPLICATION_ID, FEATURE_LEVEL_MAX, FORMAT_VERSION

LocalJournal: TypeAlias = local_journal.LocalJournal[AnyCommand, AnyAnswer, Change]
LocalOrder: TypeAlias = local_order.LocalOrder[AnyCommand, AnyAnswer, Change]
ClusterOrder: TypeAlias = cluster_order.ClusterOrder[AnyCommand, AnyAnswer, Change]
HostOrder: TypeAlias = host.HostOrder[AnyCommand, AnyAnswer, Change]
WorkerHub: TypeAlias = hub.WorkerHub[AnyCommand, AnyAnswer, Change]


def open_local_journal(
    path: Path,
    *,
    clock: Clock,
    random: Random,
    agent_id: int | None = None,
    fsync: bool = True,
    labels: dict[str, str] | None = None,
    software: str = "",
    endpoint: str = "",
    peer: str = "",
    level: int = FEATURE_LEVEL_MAX,
    entries: Callable[[int], Iterable[JournalEntry]] | None = None,
    check_cluster: Callable[[str], None] | None = None,
    journal: JournalFiles | None = None,
) -> LocalJournal:
    """Open, or create, the journal at `path`, and register a new epoch of its agent.

    Args:
        fsync: false gives up the last commits in a power cut.

        The others: see `penstock.order.local_journal.LocalJournal.open`.

    Raises:
        InvalidRequestError: another program's file, or a newer release's.
        CorruptDataError: the file is damaged.
        StorageFullError: no space.
    """
    machine = LogMachine()
    return LocalJournal.open(
        Replica.open(path, machine, fsync=fsync, journal=journal),
        _MachineState(machine),
        LOG_PROTOCOL,
        clock=clock,
        random=random,
        agent_id=agent_id,
        labels=labels,
        software=software,
        endpoint=endpoint,
        peer=peer,
        level=level,
        entries=entries,
        check_cluster=check_cluster,
        journal=journal,
    )


async def begin_cluster_order(
    journal: Journal,
    replica: Replica[EntryOutcome],
    machine: LogMachine,
    *,
    identity: AgentIdentity,
    cluster_id: str,
    clock: Clock,
    wall: Clock | None = None,
    random: Random,
    executor: Executor | None = None,
    settings: ClusterOrderSettings | None = None,
) -> ClusterOrder:
    """Open the order of a cluster's agent: see `penstock.order.cluster_order.ClusterOrder.open`."""
    state = _MachineState(machine)
    return await ClusterOrder.open(
        journal,
        replica,
        state,
        state.levels,
        LOG_PROTOCOL,
        identity=identity,
        cluster_id=cluster_id,
        clock=clock,
        wall=wall,
        random=random,
        executor=executor,
        settings=settings,
    )


def host_order(
    *,
    path: Path,
    queries: Callable[[], Queries],
    identity: AgentIdentity,
    clock: Clock,
    random: Random,
) -> HostOrder:
    """Make the order of a host's worker.

    Args:
        queries: gives the loop's connection to the shared file, once that is there.
    """
    state = _FileState(queries)
    return HostOrder(
        path=path,
        state=state,
        levels=state.levels,
        protocol=LOG_PROTOCOL,
        relaying=LOG_RELAYING,
        identity=identity,
        clock=clock,
        random=random,
    )


def worker_hub(
    *,
    path: Path,
    cluster_id: str,
    committer: Committer,
    position: Callable[[], int],
    flush: Callable[[], Awaitable[int]],
    is_clock_doubted: Callable[[], bool] = lambda: False,
) -> WorkerHub:
    """Make the writer's end of a host's order: see `penstock.order.host.hub.WorkerHub`."""
    return WorkerHub(
        path=path,
        cluster_id=cluster_id,
        committer=committer,
        relaying=LOG_RELAYING,
        position=position,
        flush=flush,
        is_clock_doubted=is_clock_doubted,
    )


def restore(snapshot: Path, path: Path, *, tail: Iterable[JournalEntry] = ()) -> SnapshotInfo:
    """Make a database from a snapshot and the journal's tail, for `open_local_journal`."""
    return restore_snapshot(
        snapshot,
        path,
        application_id=APPLICATION_ID,
        format_version=FORMAT_VERSION,
        tail=tail,
    )


class _MachineState:
    """The state of a replica. Implements `OwnedMachine`; read while nothing is applied."""

    format_version = FORMAT_VERSION

    def __init__(self, machine: LogMachine) -> None:
        self._machine = machine
        self.levels = KnownLevels()

    def cluster_id(self) -> str:
        self._machine.tables.ensure_loaded()
        return self._machine.tables.meta_text("cluster_id")

    def next_epoch(self, agent_id: int, *, floor: int) -> int:
        tables = self._machine.tables
        tables.ensure_loaded()
        self.levels.load(tables.meta_int("feature_level"), tables.cluster.agents.values())
        return next_epoch(tables, agent_id, floor=floor)

    def only_agent(self) -> int | None:
        agents = self._machine.tables.execute("SELECT agent FROM agents LIMIT 2").fetchall()
        return agents[0][0] if len(agents) == 1 else None

    def raising(self, level: int) -> Sequence[AnyCommand]:
        is_on = self._machine.tables.meta_int("feature_level") >= level
        return [] if is_on else [SetFeatureLevel(level=level)]


class _FileState:
    """The state in a host's shared file. Implements `SharedState`."""

    def __init__(self, queries: Callable[[], Queries]) -> None:
        self._queries = queries
        self.levels = KnownLevels()

    def position(self) -> int:
        return self._queries().position()

    def next_epoch(self, agent_id: int, *, floor: int) -> int:
        return self._queries().next_epoch(agent_id, floor=floor)

    def load_levels(self) -> None:
        queries = self._queries()
        self.levels.load(queries.feature_level(), queries.agents())
