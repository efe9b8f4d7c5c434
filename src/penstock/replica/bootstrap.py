"""Makes a replica of the archive: the newest snapshot that is whole, and rows up to the journal's.

docs/formats/archive.md has the steps. For any state machine; event loop only.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.ports.journal import JournalRow
from penstock.replica.archive import Archive, LostStretch
from penstock.replica.archive_format import SnapshotName
from penstock.replica.beginning import Beginning
from penstock.replica.history import PresentHistory
from penstock.replica.machine import StateMachine
from penstock.replica.replica import Replica
from penstock.replica.snapshot import SnapshotInfo, restore_snapshot
from penstock.system.heard import Cause, heard

OutcomeT = TypeVar("OutcomeT")
T = TypeVar("T")

logger = logging.getLogger(__name__)

DATABASE_SUFFIXES: Final = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """The snapshot that a replica was made of, and where the replica is now."""

    snapshot: SnapshotName
    position: int
    time_ms: int


def drop_replica(path: Path) -> None:
    """Remove a replica's files; those that are not there are ignored."""
    for suffix in DATABASE_SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


async def bootstrap(
    archive: Archive,
    path: Path,
    make_machine: Callable[[], StateMachine[OutcomeT]],
    *,
    executor: Executor | None,
    at_most: int | None = None,
    no_later_ms: int | None = None,
    apply_to: int | None = None,
    history: PresentHistory | None = None,
    beginning: Beginning | None = None,
) -> Bootstrapped | None:
    """Make the database at `path`, in place of what is there.

    Args:
        make_machine: a machine for applying rows; its `application_id` and `format_version` say
            which snapshots can be read.
        at_most: take no snapshot past this position.
        no_later_ms: take no snapshot of a later journal time.
        apply_to: apply archived rows up to this position; None: none.
        history: the journal that will be followed: snapshots and stretches of a history that it has
            lost are passed over. None: there is no journal (a restore).
        beginning: what that journal says it begins with: this snapshot is looked for by its key,
            also where the listing does not show it.

    Returns:
        None: there is no snapshot (that old, of this history), and nothing at `path`.

    Raises:
        CorruptDataError: there are snapshots, and none is whole; or rows are missing.
    """
    drop_replica(path)
    names = await archive.snapshots(also=None if beginning is None else beginning.snapshot)
    candidates = [name for name in names if at_most is None or name.position <= at_most]
    damaged: list[CorruptDataError] = []
    for name in reversed(candidates):
        try:
            if no_later_ms is not None:
                header = await archive.header(name)
                if header.last_ms > no_later_ms:
                    continue
            if history is not None:
                detail = await history.lost_snapshot(await archive.header(name))
                if detail:
                    logger.error("passing over the snapshot %s: %s", name.key, detail)
                    continue
            machine = make_machine()
            info = await restore_archived(
                archive,
                name,
                path,
                application_id=machine.application_id,
                format_version=machine.format_version,
                executor=executor,
            )
            _check_beginning(beginning, name, info, path)
        except (CorruptDataError, NotFoundError) as error:
            # NotFound: another agent has deleted an old one since it was listed.
            heard(Cause.ARCHIVE_OBJECT, error, logger, "passing over a snapshot")
            if isinstance(error, CorruptDataError):
                damaged.append(error)
            continue
        made = Bootstrapped(name, info.position, info.time_ms)
        if apply_to is not None and apply_to > info.position:
            made = await replay(
                archive,
                path,
                make_machine,
                made,
                executor=executor,
                until=apply_to,
                lost=None if history is None else history.lost_stretch,
            )
        return made
    if damaged:
        raise damaged[0]
    return None


async def replay(
    archive: Archive,
    path: Path,
    make_machine: Callable[[], StateMachine[OutcomeT]],
    made: Bootstrapped,
    *,
    executor: Executor | None,
    until: int,
    wanted: Callable[[JournalRow, int], bool] = lambda _row, _time_ms: True,
    lost: LostStretch | None = None,
) -> Bootstrapped:
    """Apply archived rows past the replica's position to the database at `path`.

    Args:
        lost: see `Archive.rows`.
        wanted: given each row and the journal time that it would have; the first that isn't
            wanted ends it.

    Raises:
        CorruptDataError: rows are missing, or one is unknown.
    """
    replica = await _in(
        executor, partial(Replica.open, path, make_machine(), fsync=False, keeps_journal=False)
    )
    try:

        def apply(rows: list[JournalRow]) -> bool:
            for row in rows:
                if not wanted(row, replica.journal_time(row.body, stamp_ms=row.stamp_ms)):
                    return False
                replica.apply(row.body, stamp_ms=row.stamp_ms, position=row.position)
            replica.commit()
            return True

        async for rows in archive.rows(after=replica.position, until=until, lost=lost):
            if not await _in(executor, partial(apply, rows)):
                break
        await _in(executor, replica.commit)
        await _in(executor, replica.checkpoint)
        return Bootstrapped(made.snapshot, replica.position, replica.time_ms)
    finally:
        replica.close()


def _check_beginning(
    beginning: Beginning | None, name: SnapshotName, info: SnapshotInfo, path: Path
) -> None:
    """The key has a part of the digest, the journal all of it."""
    if beginning is not None and name == beginning.snapshot and info.digest != beginning.digest:
        drop_replica(path)
        raise CorruptDataError(
            "bootstrap",
            name.key,
            f"it is of the state {info.digest.hex()}, the journal begins with that of"
            f" {beginning.digest.hex()}",
        )


async def restore_archived(
    archive: Archive,
    name: SnapshotName,
    path: Path,
    *,
    application_id: int,
    format_version: int,
    executor: Executor | None,
) -> SnapshotInfo:
    """Make the database at `path` of one archived snapshot; there is none there yet.

    Raises:
        CorruptDataError: the snapshot is damaged; there is no database then.
        NotFoundError: it is gone.
        InvalidRequestError: it is of a newer release.
    """
    fetched = path.with_name(path.name + ".snapshot")
    try:
        header = await archive.fetch_snapshot(name, fetched)
        # Its CRC-32C was right, and it was verified before it was put: the digest, which takes
        # seconds per million rows, is not computed again.
        info = await _in(
            executor,
            partial(
                restore_snapshot,
                fetched,
                path,
                application_id=application_id,
                format_version=format_version,
                is_verified=True,
            ),
        )
    finally:
        fetched.unlink(missing_ok=True)
    found = (info.position, info.digest, info.mark)
    if found != (header.first, header.digest, header.mark):
        drop_replica(path)
        raise CorruptDataError("bootstrap", name.key, "it holds another state than it says")
    return info


async def _in(executor: Executor | None, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)
