"""An agent takes over the WALs of fenced agents that it finds on volumes within its reach.

Every agent looks. For each WAL rendezvous hashing gives the agents turns: the next agent's turn
comes when the WAL hasn't been taken over for a while, since the agent before may not reach the
volume. Two agents that try at once do no harm: the second claim is refused. See "WALs in a cluster"
in docs/cluster.md.
"""

import asyncio
import glob
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from penstock.log.wals.names import read_wal_id
from penstock.model.errors import ConflictError, CorruptDataError, PenstockError
from penstock.placement.rendezvous import ranked
from penstock.ports.clock import Clock
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import Agent, Wal
from penstock.system.backoff import Backoff
from penstock.system.files import PosixDevice
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

TURN_S: Final = 5.0
"""An agent leaves a WAL for this long to each agent whose turn is before its own."""
REST: Final = Backoff(first_s=60.0, most_s=900.0)
"""After damage has stopped a takeover, the WAL rests for this long, and twice as long each further
time: every attempt makes a claim, which is a journal entry, and reads the whole WAL."""


def orphans(wals: Iterable[Wal], agents: Mapping[int, Agent], *, me: int) -> list[Wal]:
    """Return the WALs that stay full unless an agent takes them over. Pure.

    The WAL of a live agent is not an orphan, even if an older epoch of the agent claimed it: the
    agent has started again and claims its WAL itself. A WAL that agent `me` took over before it
    started again, or could not empty, is an orphan, and `me` goes on with it. The WAL in which `me`
    writes is in the list, too: the caller leaves it out by its directory.
    """
    return [
        wal
        for wal in wals
        if wal.agent == me or (owner := agents.get(wal.agent)) is None or not owner.live
    ]


@dataclass(slots=True)
class _Rest:
    """The rest of a WAL whose takeover was stopped by damage `count` times in a row."""

    count: int = 0
    until_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class WalVolumes:
    """See the module. `run_once` is a job.

    Args:
        pattern: path of data directories, with wildcards.
        own: this agent's data directory.
        take_over: moves the records in a directory's WAL to the store; returns their bytes.
    """

    pattern: str
    own: Path
    me: int
    view: StateView
    queries: Callable[[], Queries]
    clock: Clock
    pool: Executor
    take_over: Callable[[str], Awaitable[int]]
    _seen_s: dict[bytes, float] = field(default_factory=dict)
    _rests: dict[bytes, "_Rest"] = field(default_factory=dict)

    async def run_once(self) -> None:
        """Take over the WALs for which this agent's turn has come."""
        live = [agent.agent_id for agent in self.view.agents() if agent.live]
        agents = {agent.agent_id: agent for agent in self.view.agents()}
        found = await asyncio.get_running_loop().run_in_executor(
            self.pool, partial(self._find, agents)
        )
        now_s = self.clock.monotonic_s()
        self._seen_s = {wal_id: self._seen_s.get(wal_id, now_s) for wal_id in found}
        self._rests = {wal_id: rest for wal_id, rest in self._rests.items() if wal_id in found}
        for wal_id, directory in found.items():
            if wal_id in self._rests and now_s < self._rests[wal_id].until_s:
                continue
            before = ranked(wal_id, live or [self.me]).index(self.me) if self.me in live else 0
            if now_s - self._seen_s[wal_id] < before * TURN_S:
                continue
            await self._take(wal_id, directory)

    async def _take(self, wal_id: bytes, directory: Path) -> None:
        try:
            moved = await self.take_over(str(directory))
        except ConflictError as error:
            # Another agent was first, or the WAL's own agent has come back.
            logger.info("%s", error)
        except CorruptDataError as error:
            rest = self._rests.setdefault(wal_id, _Rest())
            rest.count += 1
            rest_s = REST.after(rest.count)
            rest.until_s = self.clock.monotonic_s() + rest_s
            logger.error(  # noqa: TRY400 - the error says where
                "the takeover of the WAL in %s was stopped by damage, %d times in a row, and is"
                " tried again in %d s (docs/operations.md, Damage): %s",
                directory,
                rest.count,
                rest_s,
                error,
            )
        except PenstockError as error:
            heard(Cause.TAKEOVER, error, logger, f"the WAL in {directory} is not taken over yet")
        else:
            logger.info("took over %d bytes of records of the WAL in %s", moved, directory)

    def _find(self, agents: Mapping[int, Agent]) -> dict[bytes, Path]:
        """Return the directories of orphans that hold records, by WAL id. Blocking."""
        queries = self.queries()
        named = [wal for wal in queries.wals() if queries.wal_generations(wal.wal_key)]
        wanted = {wal.wal_id for wal in orphans(named, agents, me=self.me)}
        if not wanted:
            return {}
        found = {}
        for path in map(Path, glob.glob(self.pattern)):  # noqa: PTH207 - a whole path's pattern
            if path.resolve() == self.own.resolve():
                continue
            try:
                wal_id = read_wal_id(PosixDevice(path))
            except (PenstockError, OSError) as error:
                heard(Cause.TAKEOVER, error, logger, f"{path} is passed over")
                continue
            if wal_id in wanted:
                found[wal_id] = path
        return found
