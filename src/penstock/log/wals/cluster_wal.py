"""The WAL of an agent whose order lies elsewhere: frames of batches, ordered once durable.

It is opened once something asks for it: a topic, or what lies in it from before.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.log.append.durable import OpenFiles, WalBytes
from penstock.log.append.flight import Flight
from penstock.log.append.flusher import Flusher
from penstock.log.append.frames import too_large_error
from penstock.log.append.group_commit import AppendRequest
from penstock.log.append.plan import PartitionAppend
from penstock.log.upload.uploader import Uploader
from penstock.log.wals.claims import BeingTakenOverError, ClaimedWal, WalFolder, claim_own_wal
from penstock.log.wals.names import read_wal_id
from penstock.log.wals.parts import LogParts
from penstock.log.wals.spare import SpareFile
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import TopicKey
from penstock.system import background
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait
from penstock.wal import frame_bytes_max

logger = logging.getLogger(__name__)

CLAIM_AGAIN_S: Final = 1.0
"""How often an agent whose WAL is being taken over looks whether it may have it again."""


class ClusterWal:
    """Implements `penstock.log.wals.port.OwnWal`. Event loop only."""

    def __init__(self, parts: LogParts, *, folder: WalFolder | None) -> None:
        """
        Args:
            folder: where the WAL is; None: appends are refused retriably.
        """
        self._parts = parts
        self._folder = folder
        self._limits = parts.limits
        self._pool = parts.pool
        self._loop = asyncio.get_running_loop()
        self._own: ClaimedWal | None = None
        self._opening: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._held: list[AppendRequest] = []
        self._spare: SpareFile | None = None
        self._hurries = False
        self.flusher: Flusher | None = None
        self.uploader: Uploader | None = None
        """Moves the WAL to segment objects; None while there is none."""

    async def start(self, *, is_default: bool) -> None:
        """See `OwnWal`: open a WAL that has been here before, or is needed at once in any case.

        Raises:
            ConflictError: another live agent owns that WAL.
            CorruptDataError: the file that names the WAL is damaged.
            RetryableError: the journal doesn't answer.
        """
        if self._folder is None:
            return
        known = await self._loop.run_in_executor(self._pool, read_wal_id, self._folder.device)
        if known is not None or is_default:
            try:
                await self._open(self._folder)
            except BeingTakenOverError as error:
                # The agent that takes over the WAL serves its records. That agent may die before
                # all of them are moved: then no agent has the WAL until it is claimed again.
                heard(Cause.OPEN_WAL, error, logger, "going on without a WAL")
                self._claiming = background.start(
                    background.CLAIM_WAL, partial(self._claim_again, self._folder)
                )

    async def drain(self, left_s: Callable[[], float]) -> bool:
        """See `OwnWal`."""
        for task in (self._claiming, self._opening):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        drained = self.flusher is None or await self.flusher.drain(left_s())
        if self.uploader is not None:
            drained = await self.uploader.drain(left_s()) and drained
        return drained

    def hurry(self, *, hurries: bool) -> None:
        """See `OwnWal`."""
        if hurries != self._hurries:
            self._hurries = hurries
            if self.uploader is not None:
                self.uploader.hurry(hurries=hurries)

    async def close(self) -> None:
        """See `OwnWal`."""
        if self.uploader is not None:
            await self.uploader.close()
        if self.flusher is not None:
            await self.flusher.close()
        if self._spare is not None:
            await self._spare.close()
        if self._own is not None:
            self._own.writer.close()

    @property
    def free_bytes(self) -> int:
        """See `OwnWal`."""
        return 0 if self._own is None else self._own.writer.free_bytes

    # -- append ----------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """See `AppendPath`."""
        held = sum(request.length for request in self._held) if self._held else 0
        return held + (self.flusher.waiting_bytes if self.flusher is not None else 0)

    @property
    def append_bytes_max(self) -> int:
        """See `OwnWal`."""
        return self._limits.frame_bytes_max

    def hold(self) -> None:
        """See `OwnWal`. A flush waits for no company."""

    def settle(self, *, all_came: bool) -> None:
        """See `OwnWal`."""

    def submit(self, request: AppendRequest, *, wait_s: float) -> None:  # noqa: ARG002 - no company
        """See `AppendPath`. The first request opens the WAL."""
        if self._folder is None:
            request.done(RetryableError("append", "log", "this agent has no WAL", "try another"))
            return
        too_large = too_large_error(
            request.length, frame_bytes_max=frame_bytes_max(self._folder.file_bytes)
        )
        if too_large is not None:
            request.done(too_large)
        elif self.flusher is not None:
            self.flusher.submit(request)
        else:
            self._held.append(request)
            if self._opening is None:
                self._opening = background.start(
                    background.OPEN_WAL, partial(self._open_for_held, self._folder)
                )

    def refuse(self, appends: Sequence[PartitionAppend], source: int) -> None:
        """See `Flusher.refuse`."""
        if self.flusher is not None:
            self.flusher.refuse(appends, source)

    def let_go(self, error: RetryableError | None) -> None:
        """See `Flusher.let_go`. What waits for the WAL to be opened is not submitted either."""
        if error is not None:
            held, self._held = self._held, []
            for request in held:
                request.done(error)
        if self.flusher is not None:
            self.flusher.let_go(error)

    def give_up(self, error: RetryableError) -> None:
        """See `Flusher.give_up`."""
        if self.flusher is not None:
            self.flusher.give_up(error)

    def holds_topic(self, topic_key: TopicKey) -> bool:
        """See `AppendPath`."""
        return bool(self._held) or (
            self.flusher is not None and self.flusher.holds_topic(topic_key)
        )

    # -- the own one -----------------------------------------------------------------------------

    async def _claim_again(self, folder: WalFolder) -> None:
        while self.flusher is None:
            await wait(CLAIM_AGAIN_S)
            if self.flusher is None and self._opening is None:
                self._opening = background.start(
                    background.OPEN_WAL, partial(self._open_for_held, folder)
                )

    async def _open_for_held(self, folder: WalFolder) -> None:
        error = RetryableError("append", "log", "the server is shutting down", "try another agent")
        try:
            await self._open(folder)
        except PenstockError as failed:
            heard(Cause.OPEN_WAL, failed, logger, "the WAL can't be opened")
            error = RetryableError("append", "log", str(failed))
        finally:
            self._opening = None
            held, self._held = self._held, []
            for request in held:
                if self.flusher is not None:
                    self.flusher.submit(request)
                else:
                    request.done(error)

    async def _open(self, folder: WalFolder) -> None:
        parts = self._parts
        own = await claim_own_wal(
            folder, committer=parts.order, queries=parts.queries.caught_up, pool=self._pool
        )
        open_files = OpenFiles(own.writer)
        uploader = parts.uploader(own.wal_key, own.reader, open_files)
        spare = SpareFile(own.writer, self._pool, parts.on_fatal)
        self._own, self.uploader, self._spare = own, uploader, spare
        parts.readers[own.wal_key] = own.reader
        uploader.hurry(hurries=self._hurries)
        uploader.start(own.runs)
        parts.on_opened(own.wal_key, own.writer.recovery.damaged)

        def deliver(flight: Flight) -> None:
            stored = parts.take_batches(flight)
            assert flight.stored is not None
            uploader.added(stored, generation=flight.stored.file_generation)
            spare.prepare()

        flush_bytes = min(self._limits.frame_bytes_max, own.writer.frame_bytes_max)
        self.flusher = parts.flusher(
            WalBytes(
                wal=own.writer,
                wal_key=own.wal_key,
                open_files=open_files,
                pool=self._pool,
                on_full=uploader.look_again,
                # Its frame lies in the WAL, though nothing names it.
                on_unnamed=lambda generation: uploader.added(0, generation=generation),
            ),
            flush_bytes=flush_bytes,
            bytes_max=flush_bytes,
            deliver=deliver,
        )
        spare.prepare()
