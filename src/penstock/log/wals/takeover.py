"""A takeover serves the records in a fenced agent's WAL, and empties it.

A takeover goes on by itself until it is done or refused, even after its caller has stopped waiting.
A claim whose answer was lost may still be applied, and then the agent of the directory is refused
for as long as this agent lives. Without the takeover, the WAL's records would stay unread.

A takeover consists of attempts. An attempt that can no longer read the WAL ends, and the next one
looks where the last caller has found the WAL: a lost volume may be back at another place, or
    damaged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from penstock.log.upload.uploader import Uploader, WalFiles
from penstock.log.wals.claims import WalAwayError, is_known_wal, take_over_wal
from penstock.log.wals.names import ID_FILE, read_wal_name
from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.ports.device import Device
from penstock.state.order_types import Committer
from penstock.state.read.queries import Queries
from penstock.system import background
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait
from penstock.wal import DamagedStretch, WalReader

logger = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""How long a takeover rests whose claim was not answered."""
_AWAY_S: Final = 30.0
"""How long one rests whose volume is away, unless it is asked for again: each look is a claim."""
_DRAIN_S: Final = 10.0


def _closing(wal_id: bytes) -> RetryableError:
    return RetryableError(
        "take over WAL", wal_id.hex(), "the server is shutting down", "ask another agent"
    )


class _Takeover:
    """One that is under way. `wal_id`: of the WAL that was asked for, whatever is made of its
    directory meanwhile. `device`: where it was found last."""

    def __init__(self, device: Device, wal_id: bytes) -> None:
        self.device = device
        self.wal_id = wal_id
        self.asked = asyncio.Event()
        self.uploader: Uploader | None = None
        self.length = 0
        self.last_error = "it is being claimed"
        self.task: asyncio.Task[int] | None = None

    def left(self) -> str:
        """Describe the work that is left."""
        if self.uploader is None:
            return self.last_error
        pending_bytes = self.uploader.pending_bytes
        return f"{pending_bytes} of {self.length} bytes are left: {self.uploader.last_error}"


class Takeovers:
    """Runs takeovers. Event loop only.

    Args:
        readers: readers by WAL key, kept up to date for fetches.
        new_uploader: makes an uploader that empties a WAL, given its key, reader and files.
        queries: find everything that was applied before the call; used on threads of `pool`.
        on_opened: called with the key of each WAL that gets a reader, and with its damage.
    """

    def __init__(
        self,
        *,
        readers: dict[int, WalReader],
        new_uploader: Callable[[int, WalReader, WalFiles], Uploader],
        committer: Committer,
        queries: Callable[[], Queries],
        pool: Executor,
        on_opened: Callable[[int, Sequence[DamagedStretch]], None] = lambda _key, _damaged: None,
    ) -> None:
        self._readers = readers
        self._on_opened = on_opened
        self._new_uploader = new_uploader
        self._committer = committer
        self._queries = queries
        self._pool = pool
        self._under_way: dict[bytes, _Takeover] = {}
        self._is_closed = False

    @property
    def uploaders(self) -> list[Uploader]:
        """The uploaders of the WALs that are being emptied."""
        found = [takeover.uploader for takeover in self._under_way.values()]
        return [uploader for uploader in found if uploader is not None]

    async def take_over(self, device: Device, *, deadline_s: float) -> int:
        """Serve and empty a WAL directory; the bytes of records that were moved.

        Raises:
            NotFoundError: there is no WAL of this cluster.
            ConflictError: its owner isn't fenced.
            CorruptDataError: all was moved but what is missing or damaged.
            RetryableError: it isn't done yet, and goes on; asked again, one waits for it again.
        """
        loop = asyncio.get_running_loop()
        wal_id = await loop.run_in_executor(self._pool, partial(self._find, device))
        if self._is_closed:
            # A takeover that began now would never be ended.
            raise _closing(wal_id)
        takeover = self._under_way.get(wal_id)
        if takeover is not None:
            takeover.device = device
            takeover.asked.set()
        else:
            # Asked for twice it goes on once: two uploaders of one WAL would move the same runs.
            takeover = self._under_way[wal_id] = _Takeover(device, wal_id)
            takeover.task = background.start(background.TAKEOVER, partial(self._go_on, takeover))
            takeover.task.add_done_callback(partial(self._over, takeover))
        assert takeover.task is not None
        done, _ = await asyncio.wait([takeover.task], timeout=deadline_s)
        if not done or takeover.task.cancelled():
            raise RetryableError(
                "take over WAL", wal_id.hex(), takeover.left(), "this agent goes on with it"
            )
        return takeover.task.result()

    def _find(self, device: Device) -> bytes:
        """The id of a directory's WAL, of which this cluster's journal knows. One of another
        cluster would be claimed, found to be empty, and its directory given up for emptied."""
        name = read_wal_name(device)
        queries = self._queries()
        if name is None:
            raise NotFoundError("take over WAL", str(device), f"there is no file {ID_FILE}")
        if name.cluster_id not in ("", queries.cluster_id()):
            raise NotFoundError(
                "take over WAL",
                str(device),
                f"it is of cluster {name.cluster_id}, this agent is of {queries.cluster_id()}",
                "ask an agent of that cluster",
            )
        if not is_known_wal(queries, name.wal_id):
            raise NotFoundError(
                "take over WAL",
                str(device),
                f"no agent of cluster {queries.cluster_id()} ever claimed a WAL with its id",
                "if another cluster's records lie there, ask an agent of that cluster",
            )
        return name.wal_id

    async def close(self) -> None:
        """Stop all of them; what is left stays in the WALs, for who claims them next."""
        self._is_closed = True
        tasks = [takeover.task for takeover in self._under_way.values() if takeover.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _go_on(self, takeover: _Takeover) -> int:
        while True:
            takeover.asked.clear()
            try:
                return await self._attempt(takeover)
            except WalAwayError as error:
                heard(Cause.TAKEOVER, error, logger, "the takeover of a WAL rests")
                takeover.last_error = str(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(takeover.asked.wait(), _AWAY_S)
            except RetryableError as error:
                heard(Cause.TAKEOVER, error, logger, "the takeover of a WAL is tried again")
                takeover.last_error = str(error)
                await wait(AGAIN_S)

    async def _attempt(self, takeover: _Takeover) -> int:
        taken = await take_over_wal(
            takeover.device,
            takeover.wal_id,
            committer=self._committer,
            queries=self._queries,
            pool=self._pool,
        )
        before = self._readers.get(taken.wal_key)
        self._readers[taken.wal_key] = taken.reader
        if before is not None:
            before.close()
        self._on_opened(taken.wal_key, taken.damaged)
        takeover.length = max(takeover.length, sum(run.length for run in taken.runs))
        uploader = takeover.uploader = self._new_uploader(taken.wal_key, taken.reader, taken)
        uploader.start(taken.runs)
        try:
            await self._drain(takeover, uploader)
        finally:
            takeover.uploader = None
            await uploader.close()
        self._on_opened(taken.wal_key, ())
        return takeover.length

    async def _drain(self, takeover: _Takeover, uploader: Uploader) -> None:
        """
        Raises:
            CorruptDataError: all is moved but what is damaged.
            RetryableError: nothing was moved for a while, since the WAL couldn't be read.
        """
        while True:
            left_bytes, failure_count = uploader.pending_bytes, uploader.read_failure_count
            if await uploader.drain(_DRAIN_S):
                return
            if 0 < uploader.damaged_bytes >= uploader.pending_bytes:
                # It stays there and is served from there, as far as it is right.
                raise CorruptDataError(
                    "take over WAL", takeover.wal_id.hex(), takeover.left(), "penstock repair"
                )
            logger.warning("the takeover of a WAL goes on: %s", takeover.left())
            is_stuck = uploader.pending_bytes >= left_bytes
            if is_stuck and uploader.read_failure_count > failure_count:
                raise RetryableError("take over WAL", takeover.wal_id.hex(), takeover.left())

    def _over(self, takeover: _Takeover, task: "asyncio.Task[int]") -> None:
        del self._under_way[takeover.wal_id]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # The caller may have stopped waiting.
            foreign = not isinstance(error, PenstockError)
            logger.warning(
                "a WAL is not taken over: %s", error, exc_info=error if foreign else None
            )
