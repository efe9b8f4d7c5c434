"""Backup and restore of a whole log, to and from any object store.

A backup is a folder of three kinds of objects, written in this order, so that one that has a
manifest is whole:

| key | what |
| --- | --- |
| `segments/...` | every object that the state names; what was only in the WAL, as segments |
| `metadata.sqlite` | a snapshot of the state (docs/formats/snapshot.md) |
| `manifest.json` | version, cluster id, position, counts and sizes |

It runs beside a live server: the snapshot is of one moment, everything acknowledged before it is
in the backup. WAL runs become a segment by an ordinary `StoreSegment` in the copy of the state,
so that a restored directory needs no WAL.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

import msgspec
from typing_extensions import Buffer

from penstock.log.fetch.reader import read_wal_run
from penstock.log.upload.plan import PartitionMove, moved_runs, plan_segment
from penstock.log.upload.segments import segment_run
from penstock.metadata.commands import SegmentStored, StoreSegment
from penstock.metadata.order import Order
from penstock.metadata.queries import Queries
from penstock.metadata.schema import APPLICATION_ID, FORMAT_VERSION
from penstock.metadata.view import MetadataView
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.replica.snapshot import restore_snapshot, write_snapshot
from penstock.segment import build_segment, object_key
from penstock.wal import WalReader

MANIFEST: Final = "manifest.json"
METADATA: Final = "metadata.sqlite"
BACKUP_VERSION: Final = 1

_PAGE: Final = 1000
_ATTEMPTS: Final = 5
_SEGMENT_BYTES: Final = 64 << 20
_COPY_BYTES: Final = 8 << 20

Progress = Callable[[int, int], None]
"""Called with (bytes copied, bytes in all)."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup says of itself."""

    version: int
    cluster_id: str
    position: int
    created_ms: int
    topics: int
    objects: int
    bytes: int


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
) -> Manifest:
    """Copy everything acknowledged so far to another store.

    The caller sees to it that no object is deleted meanwhile (`Keeper.held`).

    Args:
        live: the data directory's metadata database; a server may be writing it.
        scratch: an empty folder for the snapshot; its files are removed.

    Raises:
        ConflictError: there is a backup at the destination already.
        RetryableError: the WAL was recycled faster than it could be read.
    """
    try:
        await to.size(MANIFEST)
    except NotFoundError:
        pass
    else:
        raise ConflictError("back up", MANIFEST, "there is a backup already", "choose another URL")
    for attempt in range(_ATTEMPTS):
        try:
            order = await _copy_state(live, wal, to, scratch, clock, random, pool)
            break
        except RetryableError:
            # A WAL file that the snapshot names was recycled: its runs have moved to a segment,
            # which a newer snapshot names.
            if attempt == _ATTEMPTS - 1:
                raise
    snapshot = scratch / "final.sqlite"
    try:
        info = await asyncio.get_running_loop().run_in_executor(pool, order.snapshot, snapshot)
        cluster_id = order.cluster_id
    finally:
        order.close()
    queries = Queries(scratch / METADATA)
    try:
        count, size = await _copy_objects(queries, store, to, progress or _silent)
        manifest = Manifest(
            version=BACKUP_VERSION,
            cluster_id=cluster_id,
            position=info.position,
            created_ms=clock.now_ms(),
            topics=len(MetadataView.load(queries).topics()),
            objects=count,
            bytes=size,
        )
    finally:
        queries.close()
    await to.put(METADATA, [snapshot.read_bytes()])
    await to.put(MANIFEST, [msgspec.json.format(msgspec.json.encode(manifest))])
    _clear(scratch)
    return manifest


async def restore_backup(
    *,
    source: ObjectStore,
    store: ObjectStore,
    database: Path,
    scratch: Path,
    progress: Progress | None = None,
) -> Manifest:
    """Make a data directory of a backup.

    Args:
        store: the new directory's objects; nothing may be in it.
        database: where its metadata database will be; must not exist.

    Raises:
        NotFoundError: there is no backup at the source.
        InvalidRequestError: the destination is in use, or the backup is of a newer release.
        CorruptDataError: the backup is damaged.
    """
    if database.exists():  # noqa: ASYNC240 - one stat, before any work
        raise InvalidRequestError(
            "restore", str(database), "it exists", "restore into an empty directory"
        )
    manifest = await read_manifest(source)
    snapshot = scratch / "restore.sqlite"
    snapshot.write_bytes(await _read_whole(source, METADATA))
    staged = scratch / METADATA
    staged.unlink(missing_ok=True)
    restore_snapshot(snapshot, staged, application_id=APPLICATION_ID, format_version=FORMAT_VERSION)
    queries = Queries(staged)
    try:
        await _copy_objects(queries, source, store, progress or _silent)
    finally:
        queries.close()
    # Last: a directory that has a database is whole.
    restore_snapshot(
        snapshot, database, application_id=APPLICATION_ID, format_version=FORMAT_VERSION
    )
    _clear(scratch)
    return manifest


async def read_manifest(source: ObjectStore) -> Manifest:
    """A backup's manifest. Raises: NotFoundError, CorruptDataError, InvalidRequestError."""
    data = await _read_whole(source, MANIFEST)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptDataError("restore", MANIFEST, str(error)) from error
    if manifest.version > BACKUP_VERSION:
        raise InvalidRequestError(
            "restore",
            MANIFEST,
            f"backup version {manifest.version}, this release knows {BACKUP_VERSION}",
            "restore it with the release that made it, or a later one",
        )
    return manifest


async def _copy_state(
    live: Path,
    wal: WalReader,
    to: ObjectStore,
    scratch: Path,
    clock: Clock,
    random: Random,
    pool: Executor,
) -> Order:
    """A copy of the state in `scratch`, with what was in the WAL moved to segments at `to`."""
    _clear(scratch)
    loop = asyncio.get_running_loop()

    def copy() -> Order:
        snapshot = scratch / "first.sqlite"
        write_snapshot(live, snapshot)
        restore_snapshot(
            snapshot,
            scratch / METADATA,
            application_id=APPLICATION_ID,
            format_version=FORMAT_VERSION,
        )
        return Order.open(scratch / METADATA, clock=clock, random=random)

    order = await loop.run_in_executor(pool, copy)
    queries = Queries(scratch / METADATA)
    try:
        view = MetadataView.load(queries)
        number = 0
        while runs := queries.wal_runs():
            keys: dict[PartitionKey, tuple[bytes, int]] = {}
            for key in {run.partition_key for run in runs}:
                topic = view.topic_by_key(topic_key_of(key))
                assert topic is not None, key
                keys[key] = (bytes(topic.topic_id), partition_of(key))
            moves = plan_segment(runs, bytes_max=_SEGMENT_BYTES, sort_key=keys)
            number += 1
            key_text = object_key(agent=order.agent_id, epoch=order.epoch, n=number)
            await _store_moves(order, wal, to, key_text, moves, keys, pool)
    except BaseException:
        order.close()
        raise
    finally:
        queries.close()
    return order


async def _store_moves(
    order: Order,
    wal: WalReader,
    to: ObjectStore,
    key: str,
    moves: Sequence[PartitionMove],
    keys: dict[PartitionKey, tuple[bytes, int]],
    pool: Executor,
) -> None:
    loop = asyncio.get_running_loop()

    def build() -> tuple[list[Buffer], int, list[int]]:
        segment = build_segment(
            [
                segment_run(
                    keys[move.partition_key], move, [read_wal_run(wal, run) for run in move.runs]
                )
                for move in moves
            ]
        )
        return list(segment.parts), segment.size_bytes, list(segment.positions)

    parts, size_bytes, positions = await loop.run_in_executor(pool, build)
    await to.put(key, parts)
    applied = await loop.run_in_executor(
        pool,
        order.append,
        [StoreSegment(object_key=key, object_bytes=size_bytes, runs=moved_runs(moves, positions))],
    )
    assert isinstance(applied.answers[0], SegmentStored), applied.answers


async def _copy_objects(
    queries: Queries, source: ObjectStore, to: ObjectStore, progress: Progress
) -> tuple[int, int]:
    rows = []
    after = ""
    while page := queries.objects(after, limit=_PAGE):
        rows += [row for row in page if row.condemned_ms is None]
        after = page[-1].key
    total = sum(row.size_bytes for row in rows)
    copied = 0
    for row in rows:
        try:
            present = await to.size(row.key) == row.size_bytes
        except NotFoundError:
            present = False
        if not present:
            await to.put(row.key, await _read_parts(source, row.key, row.size_bytes))
        copied += row.size_bytes
        progress(copied, total)
    return len(rows), total


async def _read_parts(source: ObjectStore, key: str, size_bytes: int) -> list[Buffer]:
    return [
        await source.get_range(key, start, min(start + _COPY_BYTES, size_bytes))
        for start in range(0, size_bytes, _COPY_BYTES)
    ]


async def _read_whole(source: ObjectStore, key: str) -> bytes:
    return b"".join(await _read_parts(source, key, await source.size(key)))


def _clear(scratch: Path) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    for path in scratch.iterdir():
        if path.name.endswith((".sqlite", ".sqlite-wal", ".sqlite-shm", ".partial")):
            path.unlink()


def _silent(copied_bytes: int, total_bytes: int) -> None:
    pass
