"""Opening what an embedded log stands on, in the order that recovery needs.

The journal's database may lack the last entries: the WAL's frames hold them (docs/formats/wal.md).
So the database is opened and brought up to date from the WAL first, and only then says which
frames must be there.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from penstock.log.wal_name import new_wal_name, read_wal_name, refuse_others_wal
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
        OtherClusterError: the WAL holds records of another cluster than the journal.
    """
    order = Order.open(
        path,
        clock=clock,
        random=random,
        fsync=fsync,
        software=software,
        labels=labels,
        endpoint=endpoint,
        peer=peer,
        entries=lambda position: wal_tail(device, position, sync=fsync),
        check_cluster=partial(_check_wal, device),
    )
    name = read_wal_name(device)
    if name is None or name.cluster_id != order.cluster_id:
        # Before the first frame. One of an older release, whose frames the journal beside it has
        # named all along, gets its name now.
        new_wal_name(device, order.cluster_id, random)
    return order


def _check_wal(device: Device, cluster_id: str) -> None:
    """Refuse another cluster's WAL, and frames that no journal names.

    Args:
        cluster_id: of the journal beside it; empty: there is none yet, and no entry in the WAL
            says which.
    """
    name = read_wal_name(device)
    of = name.cluster_id if name is not None else ""
    if not cluster_id or of not in ("", cluster_id):
        refuse_others_wal(device, cluster_id, of=of)


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
