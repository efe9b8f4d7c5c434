"""The ports on which an agent is put together: what a server, a simulation and a test differ in."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from penstock.agent.foundation import Foundation
from penstock.agent.settings import AgentSettings
from penstock.kafka.instruments import Instruments as KafkaInstruments
from penstock.log.instruments import LogInstruments
from penstock.log.wals.claims import WalFolder
from penstock.model.errors import CorruptDataError
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.state.read.queries import Queries
from penstock.system.believed_clock import BelievedClock

OnDamaged: TypeAlias = Callable[[CorruptDataError], None]


class AgentJournal(Protocol):
    """An agent joins its order, state and log here: `agent.own`, `agent.host` and `agent.cluster`
    have one implementation each."""

    async def join(self, settings: AgentSettings, ports: "AgentPorts") -> Foundation:
        """Open the order, the state that follows it, and the log over them; nothing is served yet.

        Raises: as the implementation says.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPorts:
    """An agent is put together on these ports."""

    clock: BelievedClock
    random: Random
    on_fatal: Callable[[BaseException], None]
    """Ends the process; called when it is unknown what is durable."""
    journal: AgentJournal
    open_store: Callable[[str], ObjectStore]
    """Opens the store at a URL; "": the agent's own."""
    open_queries: Callable[[Path, OnDamaged | None], Callable[[], Queries]]
    """Gives each calling thread its own read-only connection to a database file, which calls the
    second argument when it finds the file damaged."""
    wal_folder: WalFolder
    scratch: Path
    """The folder of files on their way to somewhere else."""
    pool: Executor
    """For block reads, object puts and WAL preparation."""
    on_close: Callable[[Callable[[], None]], object]
    """Takes what closes a file. The caller calls them all, the last first, once the agent has
    drained and the executors' threads have ended."""
    checks_pool: Executor | None = None
    """See `RecordChecks`."""
    kafka_instruments: KafkaInstruments | None = None
    log_instruments: LogInstruments | None = None
