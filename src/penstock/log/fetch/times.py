"""Look-ups by time: which record is the first at or after a timestamp, which has the greatest.

The state knows the greatest timestamp of each run; within a run the batches' headers tell, and
one batch is decoded to answer with a record's own offset and timestamp (KIP-79; KIP-734 for the
greatest). A batch may be anything where its topic's records aren't validated: where it can't be
decoded, or has more records than a look-up may cost, its header answers, with the batch's first
offset, from which no record that is looked for is missed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Final, Protocol

from penstock.log.fetch.reader import LogReader
from penstock.model.ids import PartitionKey
from penstock.records.batch import BatchError, StoredHeader, stored_header
from penstock.records.stamps import record_stamps
from penstock.state.read.queries import Queries, StoredRun

_READ_BYTES: Final = 1 << 20
LOOKED_AT_MAX: Final = 100_000
"""Records of a batch: some 50 ms of a thread of the pool."""


class InPool(Protocol):
    """Runs blocking work in the storage pool."""

    def __call__(self, work: Callable[[], object], /) -> Awaitable[object]:
        """Run it; awaiting gives its result."""
        ...


async def find_time(
    reader: LogReader,
    in_pool: InPool,
    queries: Callable[[], Queries],
    key: PartitionKey,
    timestamp_ms: int,
    log_start: int,
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with at least `timestamp_ms`, or None."""
    run = await in_pool(lambda: queries().first_run_at_time(key, timestamp_ms))
    while isinstance(run, StoredRun):
        async for header, batch in _batches(reader, key, run):
            if header.max_timestamp < timestamp_ms or header.end_offset <= log_start:
                continue
            stamp = await in_pool(partial(_first_at, header, batch, timestamp_ms, log_start))
            if isinstance(stamp, tuple):
                return stamp
        # A run that is partly below the log start may hold its newest record there.
        following = reader.locate(key, run.end_offset)
        if following is None or following.base_offset < run.end_offset:
            return None
        run = following
    return None


async def find_max_timestamp(
    reader: LogReader,
    in_pool: InPool,
    queries: Callable[[], Queries],
    key: PartitionKey,
    log_start: int,
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with the greatest timestamp, or None."""
    run = await in_pool(lambda: queries().run_with_max_timestamp(key))
    while isinstance(run, StoredRun):
        best: tuple[StoredHeader, bytes] | None = None
        async for header, batch in _batches(reader, key, run):
            # Of a batch that compaction emptied the header alone is left, timestamp and all.
            if header.end_offset <= log_start or not header.record_count:
                continue
            if best is None or header.max_timestamp > best[0].max_timestamp:
                best = header, batch
        if best is not None:
            stamp = await in_pool(partial(_greatest, *best, log_start))
            if isinstance(stamp, tuple):
                return stamp
        # What made this run the newest has been removed, or lies below the log start.
        before = run
        run = await in_pool(lambda: queries().run_with_max_timestamp(key, before=before))  # noqa: B023
    return None


async def _batches(
    reader: LogReader, key: PartitionKey, run: StoredRun
) -> AsyncIterator[tuple[StoredHeader, bytes]]:
    offset = run.base_offset
    while offset < run.end_offset:
        read = await reader.read_loaded(key, offset, _READ_BYTES)
        if read is None:
            return
        data = b"".join(read.views)
        position = 0
        while position < len(data):
            header = stored_header(data, position)
            yield header, data[position : position + header.length]
            position += header.length
        offset = read.end_offset


def _first_at(
    header: StoredHeader, batch: bytes, timestamp_ms: int, log_start: int
) -> tuple[int, int] | None:
    try:
        for offset, timestamp in _stamps(header, batch):
            if timestamp >= timestamp_ms and offset >= log_start:
                return offset, timestamp
    except BatchError:
        return _of_header(header, log_start)
    return None


def _greatest(header: StoredHeader, batch: bytes, log_start: int) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    try:
        for offset, timestamp in _stamps(header, batch):
            if offset >= log_start and (best is None or timestamp > best[1]):
                best = offset, timestamp
    except BatchError:
        return _of_header(header, log_start)
    return best


def _stamps(header: StoredHeader, batch: bytes) -> Iterator[tuple[int, int]]:
    for delta, timestamp in record_stamps(memoryview(batch), records_max=LOOKED_AT_MAX):
        yield header.base_offset + delta, timestamp


def _of_header(header: StoredHeader, log_start: int) -> tuple[int, int]:
    return max(header.base_offset, log_start), header.max_timestamp
