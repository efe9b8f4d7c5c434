"""Opening what an embedded log stands on, in the order that recovery needs.

The journal's database may lack the last entries: the WAL's frames hold them (docs/formats/wal.md).
So the database is opened and brought up to date from the WAL first, and only then says which
frames must be there.
"""

from collections.abc import Iterator
from pathlib import Path

from penstock.metadata.order import Order
from penstock.metadata.queries import Queries
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.random import Random
from penstock.replica import JournalEntry
from penstock.wal import WalWriter, entries_after


def open_order(
    path: Path,
    device: Device,
    *,
    clock: Clock,
    random: Random,
    fsync: bool = True,
    software: str = "",
    labels: dict[str, str] | None = None,
    endpoint: str = "",
    peer: str = "",
) -> Order:
    """Open, or create, the journal at `path`, with the entries that only the WAL holds.

    Args:
        device: the data directory.

    Raises:
        CorruptDataError: an entry is damaged or missing; and as `Order.open`.
    """
    return Order.open(
        path,
        clock=clock,
        random=random,
        fsync=fsync,
        software=software,
        labels=labels,
        endpoint=endpoint,
        peer=peer,
        entries=lambda position: wal_tail(device, position, sync=fsync),
    )


def open_wal(
    device: Device,
    queries: Queries,
    *,
    file_bytes: int,
    bytes_max: int,
    fsync: bool = True,
) -> WalWriter:
    """Open the WAL of an order that is open. See `WalWriter.open`."""
    return WalWriter.open(
        device,
        file_bytes=file_bytes,
        bytes_max=bytes_max,
        named=named_ranges(queries),
        last_generation=queries.last_wal_generation(),
        fsync=fsync,
    )


def wal_tail(device: Device, position: int, *, sync: bool = False) -> Iterator[JournalEntry]:
    """Entries of the WAL past a position. See `entries_after`."""
    for entry in entries_after(device, position, sync=sync):
        yield JournalEntry(entry.position, entry.time_ms, entry.body)


def named_ranges(queries: Queries) -> dict[int, int]:
    """By WAL generation, the end in bytes of the last run that the journal names in it."""
    named: dict[int, int] = {}
    for run in queries.wal_runs():
        named[run.generation] = max(named.get(run.generation, 0), run.position + run.length)
    return named
