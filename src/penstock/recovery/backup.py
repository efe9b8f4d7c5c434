"""A backup copies a whole log to any object store. docs/formats/backup.md is its format.

The order of effects: `incomplete` marker -> segments with what only the WAL held -> all other
objects that the state names -> the state's snapshot -> manifest -> marker removed. So a backup with
a manifest is whole, and a backup without one was cut short.

A server may serve meanwhile: the state is copied as of one moment, and the backup has everything
acknowledged before that moment. WAL runs become segments by ordinary `StoreSegment`s in the copy of
the state, so that a restored directory needs no WAL.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from crc32c import crc32c
from typing_extensions import Buffer

from penstock.log.fetch.whole_runs import read_wal_run
from penstock.log.upload.plan import PartitionMove, moved_runs, plan_segment
from penstock.log.upload.segments import segment_run
from penstock.model.errors import ConflictError, CorruptDataError, RetryableError
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.objects.once import put_once
from penstock.objects.origins import ORIGINS_PREFIX
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.records.batch import stored_header
from penstock.records.sums import partition_seed
from penstock.recovery.due_runs import DueOf, check_object, due_runs
from penstock.recovery.manifest import (
    BACKUP_VERSION,
    INCOMPLETE,
    MANIFEST,
    BackupObject,
    Manifest,
    encode_manifest,
)
from penstock.recovery.stored_backup import exists, measure, named_objects, read_parts
from penstock.replica.archive import Archive
from penstock.replica.snapshot import JournalEntry, SnapshotInfo, write_snapshot
from penstock.segment import SEGMENTS_PREFIX, BuiltSegment, build_segment, object_key
from penstock.state.answers import SegmentStored
from penstock.state.commands import StoreSegment
from penstock.state.orders import LocalJournal, open_local_journal, restore
from penstock.state.read.queries import ObjectRow, Queries, StoredRun
from penstock.wal import WalReader

T = TypeVar("T")

_PAGE: Final = 1000
_ATTEMPTS: Final = 5
_SEGMENT_BYTES: Final = 64 << 20
_OWN_PREFIXES: Final = (SEGMENTS_PREFIX, ORIGINS_PREFIX, "archive/")
_SCRATCH_SUFFIXES: Final = (".sqlite", ".sqlite-wal", ".sqlite-shm", ".partial", ".zst")

Progress = Callable[[int, int], None]
"""A function that is called with the bytes copied so far and the bytes in all."""

Tail = Callable[[int], Iterable[JournalEntry]]
"""A function that yields the journal's entries past a position."""


async def back_up(
    *,
    live: Path,
    store: ObjectStore,
    wal: WalReader,
    to: ObjectStore,
    scratch: Path,
    clock: Clock,
    random: Random,
    pool: Executor,
    progress: Progress | None = None,
    tail: Tail | None = None,
    find_wal: Callable[[int], Device | None] | None = None,
) -> Manifest:
    """Copy everything acknowledged so far to another store.

    The caller makes sure that no object is deleted meanwhile (`Keeper.held`).

    Args:
        live: the data directory's database. A server may be writing it, and has flushed everything
            acknowledged to it (`Log.flush`).
        tail: for a log that no server serves: yields the entries that only its WAL holds.
        scratch: a folder for copies of the state, which are removed.
        find_wal: gives the directories of the host's other workers, by their WALs' keys.

    Raises:
        ConflictError: the destination holds a backup or other objects already.
        RetryableError: the WAL was recycled and trimmed faster than it could be read.
        CorruptDataError: the source is damaged.
    """
    await _claim(to)
    backup = _Backup(
        live,
        store,
        {0: wal},
        to,
        scratch,
        clock,
        random,
        pool,
        progress or _silent,
        tail or _no_tail,
        find_wal or _no_wal,
    )
    try:
        manifest = await backup.run()
    finally:
        backup.close()
        clear_scratch(scratch)
    await to.delete([INCOMPLETE])
    return manifest


def clear_scratch(scratch: Path) -> None:
    """Remove the databases in a scratch folder, which is made if it is not there."""
    scratch.mkdir(parents=True, exist_ok=True)
    for path in scratch.iterdir():
        if path.name.endswith(_SCRATCH_SUFFIXES):
            path.unlink(missing_ok=True)


async def _claim(to: ObjectStore) -> None:
    """Mark the destination as a backup in the making; remove the remains of a backup that was cut
    short."""
    if await exists(to, MANIFEST):
        raise ConflictError("back up", MANIFEST, "there is a backup already", "choose another URL")
    was_cut = await exists(to, INCOMPLETE)
    left = [info.key for prefix in _OWN_PREFIXES async for info in to.list(prefix)]
    if left and not was_cut:
        # The destination may be a server's own store, in which a backup must not remove anything.
        raise ConflictError(
            "back up",
            left[0],
            "the destination holds objects that aren't a backup's",
            "choose another URL",
        )
    await to.put(INCOMPLETE, [b"A backup is being made, or was cut: there is no manifest.\n"])
    for at in range(0, len(left), _PAGE):
        await to.delete(left[at : at + _PAGE])


def _no_tail(_position: int) -> Iterable[JournalEntry]:
    return ()


def _no_wal(_wal_key: int) -> Device | None:
    return None


def _silent(copied_bytes: int, total_bytes: int) -> None:
    pass


class _MovedError(Exception):
    """A run has left the WAL, and the live state no longer names its offsets: copy it again."""


@dataclass(slots=True)
class _Backup:
    live: Path
    store: ObjectStore
    wals: dict[int, WalReader]
    to: ObjectStore
    scratch: Path
    clock: Clock
    random: Random
    pool: Executor
    progress: Progress
    tail: Tail
    find_wal: Callable[[int], Device | None]
    written: dict[str, BackupObject] = field(default_factory=dict)
    names: dict[PartitionKey, str] = field(default_factory=dict)
    """Partitions' names for people."""
    """Segments that were made from WAL runs."""

    def close(self) -> None:
        """Close the files and connections that this object has opened."""
        for wal_key, reader in self.wals.items():
            if wal_key:
                reader.close()

    async def run(self) -> Manifest:
        order = await self._copy_state()
        cluster_id = order.cluster_id
        await self._in_pool(order.close)
        topics, rows = await self._in_pool(self._contents)
        copy = ExitStack()
        due = await self._in_pool(partial(copy.enter_context, due_runs(self.state)))
        try:
            objects = await self._copy_objects(rows, due)
        finally:
            await self._in_pool(copy.close)
        position, snapshot = await self._put_state(cluster_id)
        manifest = Manifest(
            version=BACKUP_VERSION,
            cluster_id=cluster_id,
            position=position,
            created_ms=self.clock.now_ms(),
            topics=topics,
            objects=len(rows),
            bytes=sum(row.size_bytes for row in rows),
            snapshot=snapshot.key,
            contents=[*objects, snapshot],
        )
        await self.to.put(MANIFEST, [encode_manifest(manifest)])
        return manifest

    @property
    def state(self) -> Path:
        """The copy of the state."""
        return self.scratch / "copy.sqlite"

    # -- the state -------------------------------------------------------------------------------

    async def _copy_state(self) -> LocalJournal:
        """Copy the state, and move its WAL runs to segments at the destination."""
        for _ in range(_ATTEMPTS):
            clear_scratch(self.scratch)
            order = await self._in_pool(self._open_copy)
            try:
                await self._move_wal(order)
            except _MovedError:
                # The run moved, and then retention trimmed it. A newer copy does not name the run.
                await self._in_pool(order.close)
                await self.to.delete(list(self.written))
                self.written.clear()
            except BaseException:
                order.close()
                raise
            else:
                return order
        raise RetryableError(
            "back up",
            str(self.live),
            f"the WAL was recycled and trimmed while it was read, {_ATTEMPTS} times",
        )

    def _open_copy(self) -> LocalJournal:
        first = self.scratch / "first.sqlite"
        info = write_snapshot(self.live, first)
        restore(first, self.state, tail=self.tail(info.position))
        # The copy needn't be durable: the backup relies on the snapshot, which is synced.
        return open_local_journal(self.state, clock=self.clock, random=self.random, fsync=False)

    async def _move_wal(self, order: LocalJournal) -> None:
        while True:
            moves, keys = await self._in_pool(self._plan_segment)
            if not moves:
                return
            views = await self._read_wal(moves, keys)
            segment = await self._in_pool(partial(_build, moves, keys, views))
            key = object_key(agent=order.agent_id, epoch=order.epoch, n=len(self.written) + 1)
            await put_once(self.to, key, segment.parts)
            self.written[key] = BackupObject(
                key=key, bytes=segment.size_bytes, crc32c=await self._checksum(segment.parts)
            )
            command = StoreSegment(
                object_key=key,
                object_bytes=segment.size_bytes,
                runs=moved_runs(moves, segment.positions),
            )
            applied = await self._in_pool(partial(order.append, [command]))
            assert isinstance(applied.outcome.answers[0], SegmentStored), applied

    def _plan_segment(
        self,
    ) -> tuple[list[PartitionMove], dict[PartitionKey, tuple[bytes, int]]]:
        """Plan the next segment from WAL runs; no moves: the copy's state names no WAL run."""
        with closing(Queries(self.state)) as copy:
            keys = {}
            for topic_key, topic_id, name, partitions, *_ in copy.topic_rows():
                for number in range(partitions):
                    key = partition_key(TopicKey(topic_key), number)
                    keys[key] = (topic_id, number)
                    self.names[key] = f"{name}-{number}"
            for wal_key in [0, *(wal.wal_key for wal in copy.wals())]:
                runs = copy.wal_runs(wal_key)
                moves = plan_segment(runs, bytes_max=_SEGMENT_BYTES, sort_key=keys)
                if moves:
                    return moves, keys
        return [], keys

    async def _read_wal(
        self,
        moves: Sequence[PartitionMove],
        keys: dict[PartitionKey, tuple[bytes, int]],
    ) -> list[list[memoryview]]:
        """Read the bytes of each run, from a segment if the server has moved the run meanwhile."""

        wals = {key: self._wal_of(key) for key in {run.wal_key for m in moves for run in m.runs}}

        def read(run: StoredRun) -> memoryview | None:
            try:
                seed = partition_seed(*keys[run.partition_key])
                return read_wal_run(wals[run.wal_key], run, seed)
            except RetryableError:
                return None
            except CorruptDataError as error:
                raise CorruptDataError(
                    "back up",
                    f"{self.names[run.partition_key]} offsets {run.base_offset} to"
                    f" {run.end_offset - 1} in {error.subject}",
                    error.detail,
                    "penstock verify names everything that is damaged",
                ) from error

        def read_all() -> list[list[memoryview | None]]:
            return [[read(run) for run in move.runs] for move in moves]

        views = []
        for move, found in zip(moves, await self._in_pool(read_all), strict=True):
            views.append(
                [
                    view if view is not None else await self._read_moved(run)
                    for run, view in zip(move.runs, found, strict=True)
                ]
            )
        return views

    def _wal_of(self, wal_key: int) -> WalReader:
        reader = self.wals.get(wal_key)
        if reader is None:
            device = self.find_wal(wal_key)
            if device is None:
                raise CorruptDataError(
                    "back up",
                    f"WAL {wal_key}",
                    "runs lie in this WAL, but no worker's directory holds it",
                )
            reader = self.wals[wal_key] = WalReader(device)
        return reader

    async def _read_moved(self, run: StoredRun) -> memoryview:
        def find() -> list[StoredRun]:
            with closing(Queries(self.live)) as live:
                return live.runs_from(run.partition_key, run.base_offset, limit=1)

        found = await self._in_pool(find)
        if not found or found[0].base_offset > run.base_offset:
            raise _MovedError
        (now,) = found
        if now.generation:
            # A file is recycled only after its runs have moved, so this is not a race.
            raise CorruptDataError(
                "back up",
                f"{self.names[run.partition_key]} offsets {run.base_offset} to"
                f" {run.end_offset - 1} in WAL {now.wal_key} generation {now.file_generation}",
                "the journal names this generation, but no file has it",
                "put the file back, or give the records up: penstock repair",
            )
        data = await self.store.get_range(now.object_key, now.position, now.position + now.length)
        return _slice_of(memoryview(data), run, self.names[run.partition_key])

    # -- the objects -----------------------------------------------------------------------------

    def _contents(self) -> tuple[int, list[ObjectRow]]:
        """Return the number of topics, and the objects that the copy of the state names."""
        with closing(Queries(self.state)) as copy:
            return len(copy.topic_rows()), named_objects(copy)

    async def _copy_objects(self, rows: Sequence[ObjectRow], due: DueOf) -> list[BackupObject]:
        total = sum(row.size_bytes for row in rows)
        copied = sum(known.bytes for known in self.written.values())
        contents = []
        for row in rows:
            known = self.written.get(row.key)
            if known is None:
                parts = await read_parts(self.store, row.key, row.size_bytes)
                await self._in_pool(partial(_check, row.key, parts, due))
                await put_once(self.to, row.key, parts)
                known = BackupObject(
                    key=row.key, bytes=row.size_bytes, crc32c=await self._checksum(parts)
                )
                copied += row.size_bytes
            contents.append(known)
            self.progress(copied, total)
        return contents

    async def _put_state(self, cluster_id: str) -> tuple[int, BackupObject]:
        """Put a snapshot of the copy, as an archive has it; return its position and the object."""
        snapshot = self.scratch / "state.sqlite"
        info = await self._in_pool(partial(self._write_state, snapshot))
        archive = Archive(self.to, cluster_id=cluster_id, scratch=self.scratch, executor=self.pool)
        name = await archive.put_snapshot(snapshot, info)
        return info.position, await measure(self.to, name.key)

    def _write_state(self, snapshot: Path) -> SnapshotInfo:
        with closing(sqlite3.connect(self.state)) as connection, connection:
            # Objects of another cluster's store are copied, so the backup needs no other store.
            connection.execute("UPDATE objects SET origin = '' WHERE origin != ''")
        return write_snapshot(self.state, snapshot)

    async def _checksum(self, parts: Sequence[Buffer]) -> int:
        return await self._in_pool(partial(_checksum, parts))

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)


def _check(key: str, parts: Sequence[Buffer], due: DueOf) -> None:
    check_object(key, parts, due(key), "back up")


def _checksum(parts: Sequence[Buffer]) -> int:
    """Return the CRC-32C of consecutive parts."""
    value = 0
    for part in parts:
        value = crc32c(part, value)
    return value


def _build(
    moves: Sequence[PartitionMove],
    keys: dict[PartitionKey, tuple[bytes, int]],
    views: Sequence[Sequence[memoryview]],
) -> BuiltSegment:
    return build_segment(
        [
            segment_run(keys[move.partition_key], move, found)
            for move, found in zip(moves, views, strict=True)
        ]
    )


def _slice_of(data: memoryview, run: StoredRun, partition: str) -> memoryview:
    """Return a run's batches within the bytes of the run that it was joined into.

    Args:
        partition: the partition's name for people.
    """
    position = 0
    while position < len(data):
        header = stored_header(data, position)
        if header.base_offset >= run.base_offset:
            break
        position += header.length
    found = data[position : position + run.length]
    if len(found) < run.length or stored_header(found, 0).base_offset != run.base_offset:
        raise CorruptDataError(
            "back up",
            f"{partition} offset {run.base_offset}",
            "the run is not at the place to which the journal moved it",
        )
    return found
