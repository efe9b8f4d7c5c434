"""The parts of a log that its WALs are joined with."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeAlias

from penstock.log.append.broken import KnownProducer
from penstock.log.append.flight import Flight
from penstock.log.append.flusher import ByteStore, Flusher
from penstock.log.append.to_tail import take_batches
from penstock.log.fetch.tail import TailCache
from penstock.log.findings import Damages
from penstock.log.instruments import LogInstruments
from penstock.log.numbers import ObjectNumbers
from penstock.log.settings import LogSettings
from penstock.log.state_queries import StateQueries
from penstock.log.upload.uploader import Syncs, Uploader, WalFiles
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.state.order_types import Order
from penstock.state.read.view import StateView
from penstock.wal import DamagedStretch, WalReader

OnOpened: TypeAlias = Callable[[int, Sequence[DamagedStretch]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogParts:
    """Shared by the append paths of one log."""

    order: Order
    view: StateView
    queries: StateQueries
    readers: dict[int, WalReader]
    """Readers of the WALs that are open here, by key. Code that opens a WAL adds its reader, since
    reads look here."""
    tail: TailCache
    store: ObjectStore
    numbers: ObjectNumbers
    damages: Damages
    clock: Clock
    limits: LogSettings
    pool: Executor
    instruments: LogInstruments
    known_producer: KnownProducer
    database: Syncs | None
    """Where WAL frames hold entries: what has applied them and keeps them for longer."""
    on_opened: OnOpened
    """Called with the key of each WAL whose reader is there, and what is damaged in it."""
    on_fatal: Callable[[BaseException], None]

    def uploader(self, wal_key: int, reader: WalReader, files: WalFiles) -> Uploader:
        """Make what moves a WAL to segment objects."""
        return Uploader(
            queries=self.queries.caught_up,
            database=self.database,
            view=self.view,
            tail=self.tail,
            wal_writer=files,
            wal_reader=reader,
            store=self.store,
            committer=self.order,
            clock=self.clock,
            pool=self.pool,
            limits=self.limits,
            numbers=self.numbers,
            damages=self.damages,
            wal_key=wal_key,
        )

    def flusher(
        self,
        bytes_store: ByteStore,
        *,
        flush_bytes: int,
        bytes_max: int,
        deliver: Callable[[Flight], object],
    ) -> Flusher:
        """Make a flusher on a store of bytes; see `Flusher`."""
        limits = self.limits
        return Flusher(
            order=self.order,
            bytes_store=bytes_store,
            known_producer=self.known_producer,
            clock=self.clock,
            flush_bytes=flush_bytes,
            bytes_max=bytes_max,
            store_wait_s=limits.append_wait_ms_max / 1000,
            unordered_max=limits.flushes_open_max,
            deliver=deliver,
            over=self.instruments.flushed,
            on_fatal=self.on_fatal,
        )

    def take_batches(self, flight: Flight) -> int:
        """Make the batches of a flush the tail cache; return the bytes that were stored."""
        assert flight.plan is not None
        requests = [waiting.request for waiting in flight.waiting]
        return take_batches(self.tail, flight.plan, requests, leader_epoch=self.view.leader_epoch)
