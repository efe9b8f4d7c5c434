"""Runs in other agents' WALs: read from their directories on this host, else asked of the owners.

An owner that is away makes its runs unreadable until it is back, or another agent has taken its
WAL over. That is an error of those partitions, to be tried again; never an empty answer.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from typing_extensions import Buffer

from penstock.log.fetch.whole_runs import BadRunError, checked_run
from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError, RetryableError
from penstock.ports.device import Device
from penstock.state.rows import StoredRun
from penstock.system.heard import Cause, heard
from penstock.wal import RecycledError, WalReader

logger = logging.getLogger(__name__)


class RemoteWal(Protocol):
    """Reads another agent's WAL. Calls may overlap."""

    async def read(
        self, agent: int, wal_key: int, generation: int, position: int, length: int
    ) -> Buffer:
        """Bytes of a run.

        Args:
            agent: the WAL's owner.
            generation: of the file, without the WAL's key.
            position, length: bytes in that file.

        Raises:
            NotFoundError: this way doesn't lead to that WAL; another may.
            RetryableError: the owner is away, or the file was recycled.
            CorruptDataError: the file is missing or cut, if the run has not moved.
        """
        ...


class DirectoryWals:
    """WALs of this host's workers, read from their directories. Implements `RemoteWal`.

    Args:
        find: the device that holds a WAL's folder, by its key; None: it is not on this host.
    """

    def __init__(self, *, find: Callable[[int], Device | None], pool: Executor) -> None:
        self._find = find
        self._pool = pool
        self._readers: dict[int, WalReader] = {}

    async def read(
        self, agent: int, wal_key: int, generation: int, position: int, length: int
    ) -> Buffer:
        """See `RemoteWal`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, self._read, agent, wal_key, generation, position, length
        )

    def close(self) -> None:
        """Close all files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _read(
        self, agent: int, wal_key: int, generation: int, position: int, length: int
    ) -> Buffer:
        reader = self._readers.get(wal_key)
        if reader is None:
            device = self._find(wal_key)
            if device is None:
                raise NotFoundError("read WAL", f"WAL {wal_key} of agent {agent}", "not here")
            reader = self._readers.setdefault(wal_key, WalReader(device))
        try:
            return reader.read(generation, position, length)
        except RecycledError as error:
            # The workers of a host read one database, which has a move before its file is used
            # again: so a run that is named there still is lost, and the caller asks.
            raise CorruptDataError(
                error.operation, error.subject, "no WAL file has this generation"
            ) from error


class RemoteRuns:
    """Whole runs of other agents' WALs, with final offsets.

    Args:
        owner_of: returns the agent that owns a WAL, by its key; None: no agent does.
        pool: checks the received bytes.
    """

    def __init__(
        self, wal: RemoteWal, *, owner_of: Callable[[int], int | None], pool: Executor
    ) -> None:
        self._wal = wal
        self._owner_of = owner_of
        self._pool = pool

    async def read(self, run: StoredRun, seed: int | None) -> memoryview:
        """
        Args:
            seed: of the partition's sums; None: the run's isn't compared.

        Raises:
            RetryableError: the owner is away, or the run has moved meanwhile.
            BadRunError: the bytes are not the batches that the journal named.
            CorruptDataError: the owner says that its file is damaged.
        """
        owner = self._owner_of(run.wal_key)
        subject = f"WAL {run.wal_key} generation {run.file_generation} at {run.position}"
        if owner is None:
            raise RetryableError("read WAL", subject, "no agent owns this WAL now")
        try:
            return await self._checked(owner, run, seed, subject)
        except BadRunError as error:
            heard(Cause.PEER_WAL, error, logger, "the owner of a WAL is asked again")
            # Perhaps a bit flipped on the way; the owner reads it from its disk again.
            return await self._checked(owner, run, seed, subject)

    async def _checked(
        self, owner: int, run: StoredRun, seed: int | None, subject: str
    ) -> memoryview:
        try:
            found = await self._wal.read(
                owner, run.wal_key, run.file_generation, run.position, run.length
            )
        except (RetryableError, CorruptDataError):
            raise
        except PenstockError as error:
            raise RetryableError("read WAL", subject, str(error)) from error
        data = memoryview(bytearray(found))
        if len(data) != run.length:
            raise RetryableError(
                "read WAL", subject, f"{len(data)} bytes came, the run has {run.length}"
            )
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, partial(checked_run, data, run, seed, subject=subject)
        )
