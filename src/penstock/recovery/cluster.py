"""Commands restore a cluster to a moment, or verify it, by these functions.

Both read the cluster's bucket (verifying also reads its journal) and change neither.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from penstock.log.layout import DataLayout
from penstock.log.upkeep import snapshot_key
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
)
from penstock.objects import open_reliable_store
from penstock.objects.origins import open_origins
from penstock.order.local_journal import new_cluster_id
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.recovery.copied_objects import CopiedObjects, Listed
from penstock.recovery.directory import check_empty
from penstock.recovery.due_runs import DueOf
from penstock.recovery.point_in_time import Moment, RestoredState, TakeObjects, restore_state
from penstock.recovery.restore import is_unfinished, leave_note, remove_cut
from penstock.recovery.stored_backup import is_backup, verify_backup
from penstock.recovery.verify import FindingKind, VerifyReport, verify
from penstock.replica.archive import Archive
from penstock.replica.archive_format import SNAPSHOTS_PREFIX, SnapshotName
from penstock.replica.beginning import RESTORED_POSITION, read_beginning
from penstock.replica.bootstrap import Bootstrapped, bootstrap, replay
from penstock.replica.replica import Replica
from penstock.replica.snapshot import read_snapshot_info
from penstock.segment.keys import SEGMENTS_PREFIX
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import InitCluster
from penstock.state.entries import decode_entry
from penstock.state.orders import restore
from penstock.state.read.queries import Queries
from penstock.state.schema import FORMAT_VERSION

Progress = Callable[[int, int], None]
"""A function that is called with the bytes done so far and the bytes in all."""

Transfer = Callable[[str, str, Sequence[tuple[str, int]], DueOf], None]
"""A function that reads, and may copy, a parent's objects. It gets the URL of the parent's store,
the URL of the new cluster's store ("": nothing is copied), the objects with their sizes, and the
runs
that must lie in each: see `penstock.recovery.point_in_time.TakeObjects`."""

_PAGE_ROWS: Final = 1000
_OWN_PREFIXES: Final = (SEGMENTS_PREFIX, SNAPSHOTS_PREFIX, "archive/journal/")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster:
    """The place of a restored cluster: the settings `objects`, `journal` and `cluster_name` of its
    agents."""

    objects: str
    journal: str
    name: str


async def holds_backup(source: str, *, clock: Clock, random: Random) -> bool:
    """Whether a URL holds a backup (`penstock backup`), whole or cut short, and not a cluster."""
    return await is_backup(_open(source, clock=clock, random=random))


async def restore_cluster(
    source: str,
    target: DataLayout | NewCluster,
    *,
    moment: Moment,
    allow_loss: bool,
    clock: Clock,
    random: Random,
    transfer: Transfer | None = None,
    copies: bool = False,
) -> dict[str, object]:
    """Make a cluster, or an embedded server's data directory, from a cluster's bucket.

    Args:
        source: the setting `objects` of the parent.
        target: a new prefix and journal; or an empty directory, whose lock the caller holds.
        transfer: reads all objects, and copies them with `copies`.

    Returns:
        A summary for people.

    Raises:
        InvalidRequestError: the target is in use already.
        PenstockError: the errors of `penstock.recovery.point_in_time`.
    """
    parent_url = clean_url(source)
    cluster_id = new_cluster_id(random)
    own_url = str(target.objects)
    copied = CopiedObjects(
        _open(own_url, clock=clock, random=random), parent=parent_url, attempt=cluster_id
    )
    is_resumed = copies and await copied.find()
    if isinstance(target, DataLayout):
        is_cut = is_unfinished(target.metadata)
        also = [target.objects.name] if is_resumed or is_cut else []
        check_empty(target, also=[*also, target.metadata.name] if is_cut else also)
        if is_cut:
            own = _open(own_url, clock=clock, random=random)
            await remove_cut(own, keeps_segments=is_resumed)
    else:
        await _check_new(source, target, is_resumed=is_resumed, clock=clock, random=random)
    take: TakeObjects | None = None
    if transfer is not None:
        into = (own_url if isinstance(target, DataLayout) else clean_url(own_url)) if copies else ""
        take = partial(transfer, parent_url, into)
        if copies:
            take = copied.noting(take)
            if isinstance(target, DataLayout):
                take = _after_note(take, target.metadata)
    with tempfile.TemporaryDirectory(prefix="penstock-restore-") as folder:
        state = await restore_state(
            _open(source, clock=clock, random=random),
            parent_url,
            cluster_id=cluster_id,
            moment=moment,
            scratch=Path(folder),
            executor=None,
            clock=clock,
            random=random,
            allow_loss=allow_loss,
            take=take,
            copies=copies,
        )
        next_epoch = None
        if isinstance(target, DataLayout):
            # The snapshot, from which a lost or damaged database is made again, is put before the
            # database. Until then a note lies in the database's place, so that no server takes the
            # database for lost.
            leave_note(target.metadata)
            await _open(own_url, clock=clock, random=random).put(
                snapshot_key(state.info.position), [state.snapshot.read_bytes()]
            )
            restore(state.snapshot, target.metadata)
        else:
            # The target is checked again: another restore may have filled it during the copying.
            await _check_new(source, target, is_resumed=copies, clock=clock, random=random)
            await _publish(state, target, Path(folder), clock=clock, random=random)
            with closing(Queries(state.snapshot)) as queries:
                next_epoch = queries.next_epoch(0)
        if copies:
            await copied.end(next_epoch=next_epoch)
    return {
        "cluster_id": state.cluster_id,
        "parent_cluster_id": state.parent_cluster_id,
        "parent": parent_url,
        "position": state.parent_position,
        "archived_position": state.archived_position,
        "time_ms": state.time_ms,
        "objects": state.objects,
        "bytes": state.bytes,
        "read": transfer is not None,
        "copied": copies,
        "lost": state.lost,
    }


def _after_note(take: TakeObjects, database: Path) -> TakeObjects:
    """Wrap `take` so that it first leaves a note in the database's place."""

    def taken(listed: Listed, due: DueOf) -> None:
        leave_note(database)
        take(listed, due)

    return taken


async def _publish(
    state: RestoredState, target: NewCluster, scratch: Path, *, clock: Clock, random: Random
) -> None:
    """Put the snapshot, then make the journal.

    In this order an agent that starts before there is a journal makes a journal with another id,
    and then refuses the archive, instead of beginning without the restored state.
    """
    store = _open(target.objects, clock=clock, random=random)
    archive = Archive(
        store,
        cluster_id=state.cluster_id,
        scratch=scratch / "archive",
        executor=None,
    )
    snapshot = await archive.put_snapshot(state.snapshot, state.info)
    # Two restores to one prefix may have different journals, and each may find the prefix new. Each
    # looks once more after its own put, so that at least one of them sees the other's snapshot.
    async for info in store.list(SNAPSHOTS_PREFIX):
        if info.key != snapshot.key:
            await store.delete([snapshot.key])
            raise ConflictError(
                "restore", info.key, "another restore is making a cluster here", "try again"
            )
    from penstock.replica.postgres import begin_journal

    try:
        await begin_journal(target.journal, name=target.name, beginning=state.beginning)
    except ConflictError:
        # The snapshot's key has a digest over this cluster's id, so no other restore has this key.
        await store.delete([snapshot.key])
        raise


async def _check_new(
    source: str, target: NewCluster, *, is_resumed: bool, clock: Clock, random: Random
) -> None:
    if clean_url(target.objects) == clean_url(source):
        raise InvalidRequestError(
            "restore", target.objects, "it is the parent's prefix", "give the new cluster its own"
        )
    store = _open(target.objects, clock=clock, random=random)
    for prefix in _OWN_PREFIXES:
        if is_resumed and prefix == SEGMENTS_PREFIX:
            continue
        async for info in store.list(prefix):
            raise InvalidRequestError(
                "restore",
                info.key,
                "it is there already",
                "give the new cluster a prefix without a cluster; after a restore that was cut"
                " short before it made a journal, delete the objects that it left",
            )
    from penstock.replica.postgres import PostgresJournal

    try:
        journal = await PostgresJournal.open(target.journal, name=target.name)
    except NotFoundError:
        return
    await journal.close()
    raise InvalidRequestError(
        "restore",
        f"journal {target.name}",
        f"it is the journal of cluster {journal.cluster_id} already",
        "choose another --cluster-name",
    )


def clean_url(location: str) -> str:
    """Return a location in the form that is stored: a URL without user and password."""
    if "://" not in location:
        return Path(location).absolute().as_uri()
    url = urlsplit(location)
    host = url.netloc.rpartition("@")[2]
    return urlunsplit((url.scheme, host, url.path.rstrip("/"), "", ""))


def _open(location: str, *, clock: Clock, random: Random) -> ObjectStore:
    return open_reliable_store(location, clock=clock, random=random)


async def verify_cluster(
    objects: str,
    *,
    journal: str,
    name: str,
    clock: Clock,
    random: Random,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read everything in a cluster's bucket, or in a backup. See `penstock.recovery.verify`.

    The state is made from the archive and the journal, as of the journal's head. WALs are not read,
    since only agents can read them.

    Args:
        journal, name: the settings `journal` and `cluster_name`; an empty journal: the state as of
            the archive's end, which may be `archive_interval_ms` old.

    Raises:
        NotFoundError: there is no such cluster.
        RetryableError: journal or store don't answer.
    """
    open_one = partial(_open, clock=clock, random=random)
    store = open_one(objects)
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
        if not journal and await is_backup(store):
            return await verify_backup(store, scratch=Path(folder), progress=progress)
        path = Path(folder) / "replica.sqlite"
        archive = Archive(store, cluster_id="", scratch=Path(folder), executor=None)
        report = VerifyReport()
        if journal:
            await _follow(archive, path, journal, name)
        elif not await follow_archive(archive, path, report):
            raise NotFoundError(
                "verify", objects, "there is no archive", "check the URL, or give --journal"
            )
        with closing(Queries(path)) as queries:
            await verify(
                queries=queries,
                report=report,
                archived_ms=None if journal else queries.time_ms(),
                store=open_origins(store, queries.origins(), open_one),
                wal=None,
                device=None,
                progress=progress,
            )
        await check_replay(archive, Path(folder) / "replayed.sqlite", report)
        return report


async def verify_replay(
    objects: str, report: VerifyReport, *, cluster_id: str, clock: Clock, random: Random
) -> None:
    """Check only a cluster's archived journal, with this process's credentials: `check_replay`.

    Args:
        objects: the URL of the cluster's store, as its agents know it.
        report: see `check_replay`.

    Raises:
        InvalidRequestError: the store holds another cluster's archive.
        RetryableError: the store doesn't answer.
    """
    store = _open(objects, clock=clock, random=random)
    with tempfile.TemporaryDirectory(prefix="penstock-verify-") as folder:
        archive = Archive(store, cluster_id=cluster_id, scratch=Path(folder), executor=None)
        await check_replay(archive, Path(folder) / "replayed.sqlite", report)


async def check_replay(archive: Archive, path: Path, report: VerifyReport) -> None:
    """Replay the archived journal from the second newest snapshot, or from the beginning, up to the
    newest snapshot, which must have the same state.

    Args:
        path: the path of the replayed database.
        report: gets a finding, or the number of replayed entries, or the reason why none were
            replayed.
    """
    names = await archive.snapshots()
    if not names or names[-1].position <= RESTORED_POSITION:
        # A restored cluster begins with a snapshot at position 1; older releases began at 0.
        report.not_replayed = "the archive has no snapshot of this cluster's own yet"
        return
    newest = names[-1]
    try:
        made = await bootstrap(
            archive, path, LogMachine, executor=None, at_most=newest.position - 1
        )
        if made is None:
            if not await _begins_empty(archive):
                report.not_replayed = "the archive has one snapshot, and no journal from before it"
                return
            made = Bootstrapped(SnapshotName(0, ""), 0, 0)
        first = made.position + 1
        await replay(archive, path, LogMachine, made, executor=None, until=newest.position)
        header = await archive.header(newest)
    except CorruptDataError as error:
        report.add(FindingKind.DATABASE, error.subject, error.detail)
        return
    except NotFoundError:
        report.not_replayed = "an agent has deleted an old snapshot since it was listed"
        return
    with closing(Replica.open(path, LogMachine(), fsync=False, keeps_journal=False)) as replica:
        position, digest = replica.digest()
    if (position, digest) == (newest.position, header.digest):
        report.replayed_entries = position - first + 1
    elif await _is_older(archive, newest, path.with_name("newest.sqlite")):
        report.not_replayed = "an older release made the newest snapshot, which has other tables"
    else:
        report.add(
            FindingKind.DATABASE,
            newest.key,
            f"replaying the journal from position {first} to {position} gives another state",
        )


async def _is_older(archive: Archive, name: SnapshotName, fetched: Path) -> bool:
    """Whether a snapshot has an older format, so that its digest covers other tables."""
    try:
        await archive.fetch_snapshot(name, fetched)
    except (CorruptDataError, NotFoundError):
        return False
    return read_snapshot_info(fetched).format_version < FORMAT_VERSION


async def _begins_empty(archive: Archive) -> bool:
    """Whether the archive has the journal's first entry and that entry began with an empty state. A
    restored cluster begins with its parent's state."""
    first = next((name for name in await archive.stretches() if name.first == 1), None)
    if first is None:
        return False
    row = (await archive.read_stretch(first))[0]
    commands = decode_entry(row.body, position=row.position).commands if row.body else ()
    return any(isinstance(command, InitCluster) for command in commands)


async def follow_archive(archive: Archive, path: Path, report: VerifyReport) -> bool:
    """Make the database at `path` as of the archive's end.

    A snapshot alone may be `snapshot_interval_ms` old, and objects that were stored since would not
    be read.

    Args:
        report: gets a finding if rows are missing after the newest whole snapshot; then the
            database is as of the row before the missing ones.

    Returns: False: there is no snapshot.

    Raises:
        CorruptDataError: no snapshot is whole.
    """
    made = await bootstrap(archive, path, LogMachine, executor=None)
    if made is None:
        return False
    end = max((name.last for name in await archive.stretches()), default=0)
    try:
        await replay(archive, path, LogMachine, made, executor=None, until=end)
    except CorruptDataError as error:
        with closing(Queries(path)) as queries:
            reached = queries.position()
        report.add(
            FindingKind.MISSING,
            error.subject,
            f"{error.detail}, and the archive goes on to {end}: without the journal nothing after"
            f" position {reached} can be restored. Nothing is lost while the journal still holds"
            " those rows: verify with --journal",
        )
    return True


async def _follow(archive: Archive, path: Path, url: str, name: str) -> None:
    """Bring a replica to the journal's head, without writing to the journal."""
    from penstock.replica.postgres import PostgresJournal

    journal = await PostgresJournal.open(url, name=name)
    try:
        head = await journal.head()
        made = await bootstrap(
            archive,
            path,
            LogMachine,
            executor=None,
            apply_to=head.first - 1,
            beginning=await read_beginning(journal, head),
        )
        replica = Replica.open(path, LogMachine(), fsync=False, keeps_journal=False)
        with closing(replica):
            if made is None and head.first > 1:
                raise NotFoundError(
                    "verify",
                    name,
                    f"the journal begins at position {head.first}, and has no archive",
                )
            while replica.position < head.position:
                rows = await journal.read(replica.position, _PAGE_ROWS)
                for row in rows:
                    if row.position != replica.position + 1:
                        break
                    replica.apply(row.body, stamp_ms=row.stamp_ms, position=row.position)
                replica.commit()
                if not rows or rows[-1].position != replica.position:
                    break  # agents will fill the gap; entries after it have no answers yet
    finally:
        await journal.close()
