"""The directory as the service uses it: environments by name, and who a key is."""

import base64
import hashlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.authz.service.writer import Writer, Writing
from penstock.authz.state.directory import DirectoryMachine
from penstock.authz.state.entries import (
    AddKey,
    CreateEnvironment,
    DirectoryCommand,
    Outcome,
    RevokeKey,
)
from penstock.model.errors import PenstockError
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.replica.database import connect_reader
from penstock.replica.replica import Replica

READ: Final = "read"
WRITE: Final = "write"
ADMIN: Final = "admin"
SCOPES: Final = (READ, WRITE, ADMIN)
"""A scope allows what the ones before it do: questions, then changes, then other keys."""
KEY_PREFIX: Final = "e_"
_KEY_BYTES: Final = 24
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Access:
    """A key's owner: `number` names the key, and isn't secret."""

    number: str
    environment: str
    scope: str
    name: str = ""
    created_ms: int = 0

    def allows(self, scope: str) -> bool:
        """Whether the key may do what a scope is needed for."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


class Directory:
    """Environments and keys. Event loop only."""

    def __init__(
        self,
        path: Path,
        random: Random,
        make_writer: "Callable[[Callable[[], None]], Writing[DirectoryCommand]]",
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """Use `open`.

        Args:
            path: of the database that has the directory's tables.
            make_writer: is given what is to be called when these have changed.
            close: closes the database.
        """
        self._random = random
        self._reader = connect_reader(path)
        self._close = close
        self._by_hash: dict[bytes, Access] = {}
        self._lent: dict[bytes, Access] = {}
        self.environments: list[str] = []
        self.version = 0
        """Changes with the keys."""
        self._read()
        self._writer = make_writer(self._read)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        fsync: bool,
        clock: Clock,
        random: Random,
        writing: Executor,
        failed: Callable[[PenstockError], None],
    ) -> "Directory":
        """Open a directory with a journal of its own, or create it.

        Raises:
            PenstockError: as `Replica.open`.
        """
        replica: Replica[list[Outcome]] = Replica.open(path, DirectoryMachine(), fsync=fsync)

        def make_writer(changed: Callable[[], None]) -> Writing[DirectoryCommand]:
            return Writer[DirectoryCommand](
                replica,
                "",
                executor=writing,
                clock=clock,
                applied=lambda _, __: changed(),
                is_alone=lambda _: False,
                failed=failed,
            )

        def close() -> None:
            replica.close()

        return cls(path, random, make_writer, close)

    @property
    def keys(self) -> list[Access]:
        """All keys, oldest first."""
        return sorted(self._by_hash.values(), key=lambda key: (key.created_ms, key.number))

    def access(self, key: str) -> Access | None:
        """Give a key's owner; None if it isn't one."""
        hash_ = hash_of(key)
        return self._by_hash.get(hash_) or self._lent.get(hash_)

    def lend(self, key: str, access: Access) -> None:
        """Accept a key in this process alone: nothing of it is stored."""
        self._lent[hash_of(key)] = access

    async def create_environment(self, name: str) -> Outcome:
        """Note an environment. Raises: as `Writer.submit`."""
        return await self._writer.submit(CreateEnvironment(name))

    async def add_key(self, environment: str, scope: str, name: str) -> tuple[str, str, Outcome]:
        """Make a key; return its text, which is kept nowhere, and its number. Raises: as
        `Writer.submit`."""
        text = KEY_PREFIX + _base32(self._random.token_bytes(_KEY_BYTES))
        number = _base32(self._random.token_bytes(_NUMBER_BYTES))
        command = AddKey(number, environment, hash_of(text), scope, name)
        return text, number, await self._writer.submit(command)

    async def revoke_key(self, number: str) -> Outcome:
        """Accept a key no longer. Raises: as `Writer.submit`."""
        return await self._writer.submit(RevokeKey(number))

    async def close(self) -> None:
        """End what waits, and close the database."""
        await self._writer.close()
        self._reader.close()
        self._close()

    def _read(self) -> None:
        self.version += 1
        execute = self._reader.execute
        self.environments = [
            name for (name,) in execute("SELECT name FROM environment ORDER BY name")
        ]
        self._by_hash = {
            hash_: Access(number, environment, scope, name, created_ms)
            for number, environment, hash_, scope, name, created_ms in execute("SELECT * FROM key")
        }


def hash_of(key: str) -> bytes:
    """Give what is stored of a key. It is drawn from 192 bits, so that no salt is needed."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()
