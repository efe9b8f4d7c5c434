"""Authorization services of several instances in virtual time: real databases, one simulated
journal."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

from penstock.agent.patience import until_answered
from penstock.authz.service.environment import Environment
from penstock.authz.service.service import OPEN_MAX, Service
from penstock.authz.service.shard import SharedJournal
from penstock.authz.state.entries import Done, Insert, Outcome
from penstock.model.errors import RetryableError
from penstock.ports.objects import ObjectStore
from penstock.replica.dump import state_digest
from penstock.replica.snapshot_turns import SnapshotSettings
from support.authz import POLICY, insert, set_policy, write
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop


class AuthzWorld:
    """One journal, and services on directories of their own."""

    def __init__(self, loop: VirtualLoop, folder: Path, faults: JournalFaults, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.clock = VirtualClock(loop)
        self.random = SeededRandom(seed)
        self.journal = SimulatedJournal(random=self.random, clock=self.clock, faults=faults)
        self.services: list[Service] = []
        self._started_count = 0

    async def started(
        self,
        name: str,
        *,
        open_max: int = OPEN_MAX,
        snapshots: ObjectStore | None = None,
        snapshot_settings: SnapshotSettings | None = None,
    ) -> Service:
        """A service; its start is tried again where the journal fails."""

        async def open_journal() -> SharedJournal:
            return self.journal.connect()

        self._started_count += 1
        service = Service(
            self.folder / name,
            clock=self.clock,
            random=SeededRandom(self.seed * 100 + self._started_count),
            open_max=open_max,
            open_journal=open_journal,
            snapshots=snapshots,
            snapshot_settings=snapshot_settings,
        )
        self.services.append(service)
        await until_answered(service.open)
        return service

    def copied(self, service: Service, name: str) -> None:
        """Copy a directory as it is now: as a kill of the process leaves it."""
        shutil.copytree(service.data, self.folder / name)

    async def close(self, service: Service) -> None:
        self.services.remove(service)
        await service.close()


@contextlib.asynccontextmanager
async def opened_authz(
    loop: VirtualLoop, folder: Path, *, faults: JournalFaults | None = None, seed: int = 1
) -> AsyncIterator[AuthzWorld]:
    """A world, whose services are closed at the end."""
    world = AuthzWorld(loop, folder, faults or JournalFaults(), seed)
    try:
        yield world
    finally:
        for service in list(world.services):
            if service.failed.done():
                service.failed.exception()
            await world.close(service)


def role(name: str, of: str = "o") -> Insert:
    return insert("has_role", f"User:{name}", "admin", f"Organization:{of}")


async def set_roles_policy(environment: Environment) -> None:
    """Set a policy that has roles, unless another instance has."""
    while not environment.policy.version:
        with contextlib.suppress(RetryableError):
            await environment.write(set_policy(POLICY, 0))


async def written(environment: Environment, name: str, *more: str) -> Outcome | None:
    """The outcome of an insert of roles; None: it is in doubt."""
    try:
        return await environment.write(write(*map(role, (name, *more))))
    except RetryableError:
        return None


async def written_for_sure(environment: Environment, name: str, *more: str) -> str:
    """Insert roles, again and again; the token."""
    while True:
        outcome = await written(environment, name, *more)
        if outcome is not None:
            assert isinstance(outcome, Done), outcome
            return environment.token(outcome.position)


def roles_of(path: Path) -> set[str]:
    """The users that have a role in an environment's database."""
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
            " AND name LIKE 'fact_has_role_user_string_organization%'"
        ).fetchall()
        return {
            user for (table,) in tables for (user,) in connection.execute(f"SELECT a0 FROM {table}")
        }


def contents(path: Path) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    """The digest of an environment's state, and its entries."""
    with closing(sqlite3.connect(path)) as connection:
        entries = connection.execute("SELECT * FROM journal ORDER BY position").fetchall()
        return state_digest(connection), entries


def path_of(service: Service, environment: str = "default") -> Path:
    return service.data / "environments" / f"{environment}.sqlite"
