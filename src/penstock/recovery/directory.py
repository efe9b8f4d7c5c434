"""Verify, back up and restore a data directory as a whole.

Verifying and backing up only read, and a server may serve meanwhile. During a backup no object may
be deleted: the running server holds deletion back, or the caller holds the directory's lock.
"""

from collections.abc import Callable, Collection
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from penstock.log.layout import DataLayout
from penstock.log.opening.embedded import unapplied_entries
from penstock.log.wals.host_wals import HostWals
from penstock.model.errors import InvalidRequestError, NotFoundError, PenstockError
from penstock.objects import open_reliable_store, open_store
from penstock.objects.origins import open_origins
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.recovery import backup
from penstock.recovery.manifest import Manifest
from penstock.recovery.restore import is_unfinished, refuse_unfinished, restore_backup
from penstock.recovery.verify import FindingKind, VerifyReport, verify
from penstock.recovery.verify_journal import verify_journal
from penstock.replica.journal_format import FOLDER as JOURNAL_FOLDER
from penstock.state.read.queries import Queries
from penstock.system.clock import SystemClock
from penstock.system.files import PosixDevice
from penstock.system.lock import LOCK_FILE
from penstock.system.randomness import SystemRandom
from penstock.wal import WalReader

Progress = Callable[[int, int], None]
"""A function that is called with the bytes done so far and the bytes in all."""


def find_data(path: Path, *, needs_database: bool = True) -> DataLayout:
    """Return the layout of an existing data directory.

    Args:
        needs_database: refuse a directory whose database is lost; False: its journal is enough.

    Raises:
        NotFoundError: the path is not a data directory.
        InvalidRequestError: a restore into the directory was cut short.
    """
    layout = DataLayout(path.absolute())
    has_journal = not needs_database and (layout.root / JOURNAL_FOLDER).is_dir()
    if not layout.metadata.is_file() and not has_journal:
        raise NotFoundError(
            "open data directory", str(layout.root), f"there is no {layout.metadata.name} in it"
        )
    refuse_unfinished(layout.metadata)
    return layout


async def verify_directory(layout: DataLayout, progress: Progress | None = None) -> VerifyReport:
    """Read everything in a data directory. See `penstock.recovery.verify`.

    Raises:
        InvalidRequestError: a newer release has written the directory.
    """
    device = PosixDevice(layout.root)
    report = VerifyReport()
    try:
        if not verify_journal(report, layout.metadata, device):
            return report
        queries = Queries(layout.metadata)
    except InvalidRequestError:
        raise
    except PenstockError as error:
        # A database that is too damaged to be opened is a finding, too.
        report.add(FindingKind.DATABASE, error.subject, error.detail)
        return report
    except OSError as error:
        report.add(FindingKind.MISSING, str(error.filename or layout.root), str(error))
        return report
    with closing(queries), closing(WalReader(device)) as wal:
        try:
            store = open_objects(layout, queries)
        except PenstockError as error:
            report.add(FindingKind.DATABASE, error.subject, error.detail)
            return report
        found = await verify(
            queries=queries,
            store=store,
            wal=wal,
            device=device,
            find_wal=HostWals(layout, lambda: queries),
            progress=progress,
        )
    found.findings[:0] = report.findings
    return found


def open_objects(
    layout: DataLayout, queries: Queries, *, executor: Executor | None = None
) -> ObjectStore:
    """Open the objects of a data directory, with objects that a restore inherited."""
    return open_origins(
        open_store(layout.objects, executor=executor),
        queries.origins(),
        partial(open_reliable_store, clock=SystemClock(), random=SystemRandom(), executor=executor),
    )


async def back_up(
    layout: DataLayout,
    destination: str,
    *,
    store: ObjectStore,
    pool: Executor,
    clock: Clock,
    random: Random,
    progress: Progress | None = None,
    is_served: bool = False,
) -> dict[str, object]:
    """Copy a data directory to another store. See `penstock.recovery.backup`.

    Args:
        is_served: a server of this process has flushed the directory; False: no server runs.
        destination: a path, or a URL that `open_store` understands.

    Returns:
        The manifest, without the list of objects.
    """
    device = PosixDevice(layout.root)
    with closing(WalReader(device)) as wal, closing(Queries(layout.metadata)) as queries:
        manifest = await backup.back_up(
            live=layout.metadata,
            store=store,
            wal=wal,
            to=open_store(destination, executor=pool),
            scratch=layout.scratch / "backup",
            clock=clock,
            random=random,
            pool=pool,
            progress=progress,
            tail=None if is_served else partial(unapplied_entries, device),
            find_wal=HostWals(layout, lambda: queries),
        )
    return _for_people(manifest)


async def restore(
    source: str,
    layout: DataLayout,
    *,
    clock: Clock,
    random: Random,
    progress: Progress | None = None,
) -> dict[str, object]:
    """Make a data directory from a backup. See `penstock.recovery.restore`.

    Args:
        layout: the layout of an empty directory, which may have a lock file.

    Returns:
        The manifest, without the list of objects.
    """
    if not is_unfinished(layout.metadata):
        check_empty(layout)
    manifest = await restore_backup(
        source=open_store(source),
        store=open_store(layout.objects),
        database=layout.metadata,
        scratch=layout.scratch / "restore",
        clock=clock,
        random=random,
        progress=progress,
    )
    return _for_people(manifest)


def check_empty(layout: DataLayout, *, also: Collection[str] = ()) -> None:
    """Refuse a directory that isn't empty.

    Args:
        also: names that the directory may have.

    Raises:
        InvalidRequestError: the directory has another name.
    """
    # A server would take files in the directory, above all another log's WAL, for its own. The lock
    # file is the caller's.
    for path in sorted(layout.root.iterdir()):
        if path.name not in (LOCK_FILE, layout.scratch.name, *also):
            raise InvalidRequestError(
                "restore", str(path), "it is there already", "restore into an empty directory"
            )


def _for_people(manifest: Manifest) -> dict[str, object]:
    """Return the manifest without the list of its objects."""
    value: dict[str, object] = msgspec.to_builtins(manifest)
    del value["contents"]
    return value
