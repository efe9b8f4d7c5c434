"""Taking over the WALs of agents that were fenced: serving what lies there, and emptying them."""

from collections.abc import Callable
from concurrent.futures import Executor

from penstock.log.own_wal import take_over_wal
from penstock.log.upload.uploader import Uploader, WalFiles
from penstock.metadata.committer import Committer
from penstock.metadata.queries import Queries
from penstock.model.errors import RetryableError
from penstock.ports.device import Device
from penstock.wal import WalReader


class Takeovers:
    """Event loop only.

    Args:
        readers: by WAL key; kept up to date for whoever reads runs.
        new_uploader: makes one that empties a WAL, given its key, reader and files.
        queries: find all that was applied before the call; used on threads of `pool`.
    """

    def __init__(
        self,
        *,
        readers: dict[int, WalReader],
        new_uploader: Callable[[int, WalReader, WalFiles], Uploader],
        committer: Committer,
        queries: Callable[[], Queries],
        pool: Executor,
    ) -> None:
        self._readers = readers
        self._new_uploader = new_uploader
        self._committer = committer
        self._queries = queries
        self._pool = pool
        self._under_way: dict[int, Uploader] = {}

    @property
    def uploaders(self) -> list[Uploader]:
        """Of the WALs that are being emptied."""
        return list(self._under_way.values())

    async def take_over(self, device: Device, *, deadline_s: float) -> int:
        """Serve and empty a WAL directory; the bytes of records that were moved.

        Raises:
            NotFoundError: there is no WAL.
            ConflictError: its owner isn't fenced.
            CorruptDataError: something that the journal names is missing or damaged.
            RetryableError: not all was moved in time; its records are served from there.
        """
        taken = await take_over_wal(
            device, committer=self._committer, queries=self._queries, pool=self._pool
        )
        key = taken.wal_key
        if key in self._under_way:
            # Asked for twice: two uploaders of one WAL would move the same runs.
            taken.reader.close()
            raise RetryableError("take over WAL", f"WAL {key}", "it is being taken over already")
        self._readers[key] = taken.reader
        uploader = self._under_way[key] = self._new_uploader(key, taken.reader, taken)
        length = sum(run.length for run in taken.runs)
        uploader.start(taken.runs)
        try:
            if length and not await uploader.drain(deadline_s):
                raise RetryableError(
                    "take over WAL",
                    f"WAL {key}",
                    f"{uploader.pending_bytes} of {length} bytes are left: {uploader.last_error}",
                )
        finally:
            await uploader.close()
            del self._under_way[key]
        return length
