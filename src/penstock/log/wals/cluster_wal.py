"""The WALs of an agent in a cluster: its own, opened once something asks for it, and those that it
took over from fenced agents. Event loop only."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from penstock.log.append.broken import KnownProducer
from penstock.log.append.durable import OpenFiles, WalBytes
from penstock.log.append.flight import Flight
from penstock.log.append.flusher import Flusher
from penstock.log.append.frames import too_large_error
from penstock.log.append.lane import AppendRequest
from penstock.log.append.plan import PartitionAppend
from penstock.log.damage.findings import Damages
from penstock.log.fetch.tail import TailCache
from penstock.log.numbers import ObjectNumbers
from penstock.log.ordering import Ordering
from penstock.log.settings import LogSettings
from penstock.log.upload.uploader import Uploader, WalFiles
from penstock.log.wals.names import read_wal_id
from penstock.log.wals.own_wal import (
    BeingTakenOverError,
    OwnWal,
    WalFolder,
    claim_own_wal,
)
from penstock.log.wals.takeover import Takeovers
from penstock.model.errors import NotFoundError, PenstockError, RetryableError, StorageFullError
from penstock.model.ids import TopicKey
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.objects import ObjectStore
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.system import background
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait
from penstock.wal import DamagedStretch, WalReader, frame_bytes_max

logger = logging.getLogger(__name__)

CLAIM_AGAIN_S: Final = 1.0
"""How often an agent whose WAL is being taken over looks whether it may have it again."""


class ClusterWal:
    """See the module.

    Args:
        folder: where the own one is; None: appends are refused retriably.
        readers: by WAL key; kept up to date for whoever reads runs.
        deliver: called with each flush whose batches were given offsets, before it is answered;
            gives the bytes that were stored.
        over: called once with each flush.
        on_opened: called with the key of each WAL whose reader is there, and what is damaged in it.
    """

    def __init__(
        self,
        *,
        folder: WalFolder | None,
        readers: dict[int, WalReader],
        ordering: Ordering,
        view: StateView,
        queries: Callable[[], Queries],
        known_producer: KnownProducer,
        tail: TailCache,
        store: ObjectStore,
        numbers: ObjectNumbers,
        damages: Damages,
        clock: Clock,
        limits: LogSettings,
        pool: Executor,
        deliver: Callable[[Flight], int],
        over: Callable[[Flight], object],
        on_opened: Callable[[int, Sequence[DamagedStretch]], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._folder = folder
        self._readers = readers
        self._ordering = ordering
        self._view = view
        self._queries = queries
        self._known_producer = known_producer
        self._tail = tail
        self._store = store
        self._numbers = numbers
        self._damages = damages
        self._clock = clock
        self._limits = limits
        self._pool = pool
        self._deliver_batches = deliver
        self._over = over
        self._on_opened = on_opened
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._own: OwnWal | None = None
        self._opening: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._held: list[AppendRequest] = []
        self._spare: asyncio.Future[None] | None = None
        self._hurries = False
        self._takeovers = Takeovers(
            readers=readers,
            new_uploader=self._new_uploader,
            committer=ordering,
            queries=queries,
            pool=pool,
            on_opened=on_opened,
        )
        self.flusher: Flusher | None = None
        self.uploader: Uploader | None = None
        """Moves the own WAL to segment objects; None while there is none."""

    async def start(self, *, is_default: bool) -> None:
        """Open a WAL that has been here before, since what lies in it is to be served.

        Args:
            is_default: it is needed at once in any case.
        Raises: as `claim_own_wal`.
        """
        if self._folder is None:
            return
        known = await self._loop.run_in_executor(self._pool, read_wal_id, self._folder.device)
        if known is not None or is_default:
            try:
                await self._open(self._folder)
            except BeingTakenOverError as error:
                # Who takes it over serves what lies in it, and may die before all of it is moved:
                # then nobody has it until it is claimed again.
                heard(Cause.OPEN_WAL, error, logger, "going on without a WAL")
                self._claiming = background.start(
                    background.CLAIM_WAL, partial(self._claim_again, self._folder)
                )

    async def drain(self, left_s: Callable[[], float]) -> bool:
        """Answer what is under way, move what is in the WALs to objects; whether all was."""
        for task in (self._claiming, self._opening):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        drained = self.flusher is None or await self.flusher.drain(left_s())
        for uploader in self._uploaders():
            drained = await uploader.drain(left_s()) and drained
        return drained

    def hurry(self, *, hurries: bool) -> None:
        """Keep the own WAL empty, since this agent is being drained; or no more."""
        if hurries != self._hurries:
            self._hurries = hurries
            if self.uploader is not None:
                self.uploader.hurry(hurries=hurries)

    async def close(self) -> None:
        """Stop everything and close the files."""
        await self._takeovers.close()
        if self.uploader is not None:
            await self.uploader.close()
        if self.flusher is not None:
            await self.flusher.close()
        if self._spare is not None:
            await asyncio.gather(self._spare, return_exceptions=True)
        if self._own is not None:
            self._own.writer.close()
        for reader in self._readers.values():
            reader.close()

    @property
    def free_bytes(self) -> int:
        """Bytes that the own WAL can still take; 0 while there is none."""
        return 0 if self._own is None else self._own.writer.free_bytes

    # -- append ----------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed in whose outcome isn't known yet."""
        held = sum(request.length for request in self._held) if self._held else 0
        return held + (self.flusher.waiting_bytes if self.flusher is not None else 0)

    def submit(self, request: AppendRequest) -> None:
        """Append; the first request opens the WAL."""
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
        """Whether batches of a topic are on their way here."""
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
        own = await claim_own_wal(
            folder, committer=self._ordering, queries=self._queries, pool=self._pool
        )
        open_files = OpenFiles(own.writer)
        uploader = self._new_uploader(own.wal_key, own.reader, open_files)
        self._own, self.uploader = own, uploader
        self._readers[own.wal_key] = own.reader
        uploader.hurry(hurries=self._hurries)
        uploader.start(own.runs)
        self._on_opened(own.wal_key, own.writer.recovery.damaged)
        flush_bytes = min(self._limits.frame_bytes_max, own.writer.frame_bytes_max)
        self.flusher = Flusher(
            ordering=self._ordering,
            bytes_store=WalBytes(
                wal=own.writer,
                wal_key=own.wal_key,
                open_files=open_files,
                pool=self._pool,
                on_full=uploader.look_again,
                # Its frame lies in the WAL, though nothing names it.
                on_unnamed=lambda generation: uploader.added(0, generation=generation),
            ),
            known_producer=self._known_producer,
            clock=self._clock,
            flush_bytes=flush_bytes,
            bytes_max=flush_bytes,
            store_wait_s=self._limits.append_wait_ms_max / 1000,
            unordered_max=self._limits.flushes_open_max,
            deliver=self._deliver,
            over=self._over,
            on_fatal=self._on_fatal,
        )
        self._prepare_spare()

    def _deliver(self, flight: Flight) -> None:
        stored = self._deliver_batches(flight)
        assert self.uploader is not None
        assert flight.stored is not None
        self.uploader.added(stored, generation=flight.stored.file_generation)
        self._prepare_spare()

    def _prepare_spare(self) -> None:
        own = self._own
        if own is None or not (self._spare is None or self._spare.done()):
            return
        if own.writer.needs_spare():
            self._spare = self._loop.run_in_executor(self._pool, self._make_spare, own)

    def _make_spare(self, own: OwnWal) -> None:
        try:
            own.writer.prepare_spare()
        except StorageFullError as error:
            # The writer makes its own file, or finds the WAL full and says so.
            heard(Cause.WAL_SPACE, error, logger, "no spare WAL file")
        except PenstockError as error:
            self._on_fatal(error)

    # -- others' ---------------------------------------------------------------------------------

    async def take_over(self, device: Device, *, deadline_s: float) -> int:
        """See `ClusterLog.take_over`."""
        return await self._takeovers.take_over(device, deadline_s=deadline_s)

    async def read(self, wal_key: int, generation: int, position: int, length: int) -> bytes:
        """See `ClusterLog.read_own_wal`."""
        reader = self._readers.get(wal_key)
        if reader is None:
            raise NotFoundError("read WAL", f"WAL {wal_key}", "it isn't this agent's")
        return await self._loop.run_in_executor(
            self._pool, partial(reader.read, generation, position, length)
        )

    # -- inside ----------------------------------------------------------------------------------

    def _uploaders(self) -> list[Uploader]:
        own = [] if self.uploader is None else [self.uploader]
        return own + self._takeovers.uploaders

    def _new_uploader(self, wal_key: int, reader: WalReader, files: WalFiles) -> Uploader:
        return Uploader(
            queries=self._queries,
            view=self._view,
            tail=self._tail,
            wal_writer=files,
            wal_reader=reader,
            store=self._store,
            committer=self._ordering,
            clock=self._clock,
            pool=self._pool,
            limits=self._limits,
            numbers=self._numbers,
            damages=self._damages,
            wal_key=wal_key,
        )
