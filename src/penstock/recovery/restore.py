"""A restore makes a data directory from a backup. docs/formats/backup.md is the format.

A restore of a cluster's bucket into a directory (`penstock.recovery.cluster`) leaves the same note.

The order of effects: a note in place of the database -> objects -> the database, renamed over the
note. So a directory has a database only when it is whole. While it has the note instead, no server
starts on it, and another restore begins from the start.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.log.upkeep import snapshot_key
from penstock.model.errors import InvalidRequestError
from penstock.objects.once import put_once
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.recovery.backup import clear_scratch
from penstock.recovery.manifest import Manifest
from penstock.recovery.stored_backup import read_listed, read_manifest, read_state
from penstock.replica.snapshot import read_snapshot_info, write_snapshot
from penstock.state.orders import restore as restore_state
from penstock.state.restored import begin_restored

_SEGMENTS_PREFIX: Final = "segments/"
_SNAPSHOTS_PREFIX: Final = "snapshots/"
COPY_NOTE: Final = "restore-in-progress.json"
"""The object with the names that a restore copies: `penstock.recovery.copied_objects`."""
_PAGE: Final = 1000
_NOTE: Final = (
    b"Penstock: a restore into this directory has not ended, or was cut.\n"
    b"It holds only a part of a log. Run `penstock restore` again.\n"
)
"""SQLite refuses to open this file, since no SQLite file begins like it."""

Progress = Callable[[int, int], None]
"""A function that is called with the bytes copied so far and the bytes in all."""


def is_unfinished(database: Path) -> bool:
    """Whether a restore that should have made this database was cut short."""
    try:
        with database.open("rb") as file:
            return file.read(len(_NOTE)) == _NOTE
    except FileNotFoundError:
        return False


def refuse_unfinished(database: Path) -> None:
    """Refuse a directory that a restore has not finished.

    Raises:
        InvalidRequestError: a restore into the directory was cut short, or goes on.
    """
    if is_unfinished(database):
        raise InvalidRequestError(
            "open data directory",
            str(database.parent),
            "a restore into this directory has not ended, or was cut short",
            "run penstock restore again",
        )


async def restore_backup(
    *,
    source: ObjectStore,
    store: ObjectStore,
    database: Path,
    scratch: Path,
    clock: Clock,
    random: Random,
    progress: Progress | None = None,
) -> Manifest:
    """Make a data directory from a backup.

    Args:
        store: the new directory's store. It is empty, or has objects of a restore that was cut
            short.
        database: the path of the new database. It must not exist, except as a note.
        scratch: a folder for copies of the state, which are removed.
        clock, random: give the numbers with which the restored log goes on. They differ from the
            parent's numbers and from those of another restore of the same backup.

    Raises:
        NotFoundError: the source has no backup, or one that was cut short.
        InvalidRequestError: the destination is in use, or a newer release made the backup.
        CorruptDataError: the backup is damaged.
    """
    again = is_unfinished(database)
    if database.exists() and not again:  # noqa: ASYNC240 - one stat, before any work
        raise _in_use(str(database))
    if not again:
        async for info in store.list(_SEGMENTS_PREFIX):
            raise _in_use(info.key)
    manifest = await read_manifest(source)
    clear_scratch(scratch)
    try:
        staged = scratch / "staged.sqlite"
        await read_state(source, manifest, staged, scratch=scratch)
        _begin_anew(staged, clock.now_ms(), random)
        anew = scratch / "restored.sqlite"
        write_snapshot(staged, anew)
        leave_note(database)
        if again:
            await remove_cut(store)
        await _copy_objects(source, store, manifest, progress or _silent)
        position = read_snapshot_info(anew).position
        # The snapshot, from which a lost database is made again, comes before the database.
        await store.put(snapshot_key(position), [anew.read_bytes()])
        # The database comes last, by a rename: from here on the directory is whole.
        restore_state(anew, database)
    finally:
        clear_scratch(scratch)
    return manifest


async def _copy_objects(
    source: ObjectStore, store: ObjectStore, manifest: Manifest, progress: Progress
) -> None:
    copied = 0
    for entry in manifest.contents:
        if entry.key == manifest.snapshot:
            continue
        parts = [part async for part in read_listed(source, entry)]
        await put_once(store, entry.key, parts)
        copied += entry.bytes
        progress(copied, manifest.bytes)


def _begin_anew(database: Path, now_ms: int, random: Random) -> None:
    """Prepare the state for its new place.

    Objects that were inherited from another cluster are copied, so the state no longer names that
    cluster's store. The log's numbers go on at other values, before a server could serve the state
    with the parent's numbers.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        begin_restored(connection, now_ms=now_ms, random=random)
        connection.execute("UPDATE objects SET origin = '' WHERE origin != ''")


async def remove_cut(store: ObjectStore, *, keeps_segments: bool = False) -> None:
    """Remove the objects that a restore put into a directory's store before it was cut short. Its
    snapshot must go above all: a lost database of this directory must not be made again from it.

    Args:
        keeps_segments: whether this restore uses the other restore's segments.
    """
    copied = () if keeps_segments else (_SEGMENTS_PREFIX, COPY_NOTE)
    for prefix in (_SNAPSHOTS_PREFIX, *copied):
        keys = [info.key async for info in store.list(prefix)]
        for at in range(0, len(keys), _PAGE):
            await store.delete(keys[at : at + _PAGE])


def leave_note(database: Path) -> None:
    """Put a note in a database's place that a restore has begun and not ended. Idempotent; durable
    when this returns."""
    with database.open("wb") as file:
        file.write(_NOTE)
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(database.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_use(subject: str) -> InvalidRequestError:
    return InvalidRequestError(
        "restore", subject, "it is there already", "restore into an empty directory"
    )


def _silent(copied_bytes: int, total_bytes: int) -> None:
    pass
