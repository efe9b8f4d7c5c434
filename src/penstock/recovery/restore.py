"""Restore: make a data directory of a backup. docs/formats/backup.md.

A restore of a cluster's bucket into a directory (`penstock.recovery.cluster`) leaves the same note.

Order of effects: a note in place of the metadata database -> objects -> the database, renamed over
the note. So a directory has a database only when it is whole; with the note in its place no server
starts on it, and a restore begins again.
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
from penstock.order.local_journal import restore as restore_state
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.recovery.backup import clear_scratch
from penstock.recovery.manifest import Manifest
from penstock.recovery.stored_backup import read_listed, read_manifest, read_state
from penstock.replica.snapshot import read_snapshot_info, write_snapshot
from penstock.state.restored import begin_restored

_SEGMENTS_PREFIX: Final = "segments/"
_SNAPSHOTS_PREFIX: Final = "snapshots/"
COPY_NOTE: Final = "restore-in-progress.json"
"""The object that notes a restore which copies objects: `penstock.recovery.copied_objects`."""
_PAGE: Final = 1000
_NOTE: Final = (
    b"Penstock: a restore into this directory has not ended, or was cut.\n"
    b"It holds only a part of a log. Run `penstock restore` again.\n"
)
"""No SQLite file begins like this, so that whatever opens it as one is refused."""

Progress = Callable[[int, int], None]
"""Called with (bytes copied, bytes in all)."""


def is_unfinished(database: Path) -> bool:
    """Whether a restore that was to make this database was cut."""
    try:
        with database.open("rb") as file:
            return file.read(len(_NOTE)) == _NOTE
    except FileNotFoundError:
        return False


def refuse_unfinished(database: Path) -> None:
    """Refuse a directory that a restore has not finished.

    Raises:
        InvalidRequestError: a restore into it was cut, or goes on.
    """
    if is_unfinished(database):
        raise InvalidRequestError(
            "open data directory",
            str(database.parent),
            "a restore into it has not ended, or was cut",
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
    """Make a data directory of a backup.

    Args:
        store: the new directory's objects; there are none, save of a restore that was cut.
        database: where its metadata database will be; must not exist, save as a note.
        scratch: a folder for copies of the state; they are removed.
        clock, random: say where the restored log's numbers go on, apart from its parent's and from
            those of another restore of the same backup.

    Raises:
        NotFoundError: there is no backup at the source, or a cut one.
        InvalidRequestError: the destination is in use, or the backup is of a newer release.
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
        anew = scratch / "anew.sqlite"
        write_snapshot(staged, anew)
        leave_note(database)
        if again:
            await remove_cut(store)
        await _copy_objects(source, store, manifest, progress or _silent)
        position = read_snapshot_info(anew).position
        # Before there is anything to serve: what a lost database is made of.
        await store.put(snapshot_key(position), [anew.read_bytes()])
        # Last, and by a rename: from here on the directory is whole.
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
    """What was inherited from another cluster is copied here: nothing is read there any more. And
    the log's numbers go on elsewhere, before there is a directory that could be served without."""
    with closing(sqlite3.connect(database)) as connection, connection:
        begin_restored(connection, now_ms=now_ms, random=random)
        connection.execute("UPDATE objects SET origin = '' WHERE origin != ''")


async def remove_cut(store: ObjectStore, *, keeps_segments: bool = False) -> None:
    """Remove what a restore that was cut has put into a directory's store. Its snapshot above all:
    a lost database of this one must not be made again of another's.

    Args:
        keeps_segments: the restore goes on in the other one's place.
    """
    copied = () if keeps_segments else (_SEGMENTS_PREFIX, COPY_NOTE)
    for prefix in (_SNAPSHOTS_PREFIX, *copied):
        keys = [info.key async for info in store.list(prefix)]
        for at in range(0, len(keys), _PAGE):
            await store.delete(keys[at : at + _PAGE])


def leave_note(database: Path) -> None:
    """Say in a database's place that a restore has begun and not ended. Idempotent; durable when
    this returns."""
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
