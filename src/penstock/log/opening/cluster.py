"""A cluster's agent opens its order on what it finds: a replica, none, or one that is too old.

A replica is only a cache. One that is damaged, of another cluster, or below what the journal still
holds is dropped, and another is made of the archive (docs/formats/archive.md, "Bootstrap"); one
that may be of a history which the journal has lost is kept aside, damaged or not. A WAL in the same
directory is not a cache: while it holds another cluster's records, nothing is dropped or opened.

Only a journal that begins at position 1 is begun with nothing. A restored one says which snapshot
it begins with, and that is looked for by its key: a store's listing may lag.
"""

import asyncio
import logging
import sqlite3
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final

from penstock.log.wals.names import check_wal_name, refuse_others_wal
from penstock.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    JournalOlderError,
    NotFoundError,
    OtherClusterError,
    RetryableError,
)
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.protocol import AgentIdentity
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.journal import Journal
from penstock.ports.random import Random
from penstock.replica.archive import Archive
from penstock.replica.aside import read_mark, set_aside
from penstock.replica.beginning import read_beginning
from penstock.replica.bootstrap import bootstrap
from penstock.replica.database import translate
from penstock.replica.difference import aside_of, set_aside_if_different
from penstock.replica.history import PresentHistory
from penstock.replica.marks import RowMark
from penstock.replica.replica import Replica
from penstock.state.apply.machine import LogMachine
from penstock.state.orders import ClusterOrder, begin_cluster_order
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

_UNUSABLE: Final = (CorruptDataError, InvalidRequestError, NotFoundError)
_AGAIN_S: Final = (0.5, 1.5, 3.0)
"""How long to wait before an archive that seems not to be whole is listed again."""


async def open_cluster_order(
    journal: Journal,
    archive: Archive,
    path: Path,
    *,
    identity: AgentIdentity,
    cluster_id: str,
    clock: Clock,
    wall: Clock | None = None,
    random: Random,
    executor: Executor | None,
    settings: ClusterOrderSettings | None = None,
    wal: Device | None = None,
) -> ClusterOrder:
    """Open the agent's replica, or make one, and bring it to the journal's head.

    Args:
        path: of the replica's database.
        wall: see `ClusterOrder.open`.
        wal: the directory in which this agent may have a WAL.
        executor: of one thread, for applying.

    Raises:
        RetryableError: journal or store don't answer; or the store does not hold the snapshot that
            a restored journal begins with.
        JournalOlderError: the journal lost what was applied; the replica has been set aside.
        PenstockError: it could not be set aside. It stays where it is, for the next start.
        NotFoundError: the journal was trimmed, and the archive holds no snapshot.
        CorruptDataError: the archive is damaged where it is needed, or an entry is unknown.
        InvalidRequestError: the archive, or where the journal says that it begins, is of another
            cluster or a newer release.
        OtherClusterError: records of another cluster lie in the WAL.
    """
    loop = asyncio.get_running_loop()

    async def open_on(path: Path) -> ClusterOrder:
        machine = LogMachine()
        replica = await loop.run_in_executor(
            executor, partial(Replica.open, path, machine, fsync=False, keeps_journal=False)
        )
        try:
            return await begin_cluster_order(
                journal,
                replica,
                machine,
                identity=identity,
                cluster_id=cluster_id,
                clock=clock,
                wall=wall,
                random=random,
                executor=executor,
                settings=settings,
            )
        except (sqlite3.Error, UnicodeDecodeError) as error:
            replica.close()
            raise translate(error, "open replica", str(path)) from error
        except BaseException:
            replica.close()
            raise

    if wal is not None:
        await loop.run_in_executor(executor, partial(check_wal_name, wal, cluster_id))
    if await loop.run_in_executor(executor, set_aside_if_different, path):
        logger.warning(
            "the replica differed from the other agents': it is kept as %s, and another is made",
            aside_of(path),
        )
    try:
        if path.exists():  # noqa: ASYNC240 - one stat, before anything is served
            try:
                return await open_on(path)
            except OtherClusterError as error:
                if wal is not None:
                    # The directory's WAL is of a release that did not name the cluster in it.
                    await loop.run_in_executor(
                        executor,
                        partial(refuse_others_wal, wal, cluster_id, of=error.cluster_id),
                    )
                logger.warning("making the replica again: %s", error)
            except _UNUSABLE as error:
                if isinstance(error, CorruptDataError):
                    await _keep_if_lost(journal, path, executor)
                logger.warning("making the replica again, since it can't be used: %s", error)
        await _make(journal, archive, path, executor, cluster_id)
        return await open_on(path)
    except JournalOlderError:
        # What the replica holds past the journal's head was acknowledged: the records are kept.
        kept = await loop.run_in_executor(executor, set_aside, path)
        logger.exception("a replica of a history that the journal has lost is kept as %s", kept)
        raise


async def _keep_if_lost(journal: Journal, path: Path, executor: Executor | None) -> None:
    """Set a damaged replica aside unless the journal holds its last row: what it has applied may
    be of a history that the journal has lost, and it was never compared.

    Raises:
        PenstockError: the journal doesn't answer, or the replica can't be set aside now.
    """
    loop = asyncio.get_running_loop()
    mark = await loop.run_in_executor(executor, read_mark, path)
    if mark is not None:
        row = await journal.row(mark.position)
        if row is not None and RowMark.of(row) == mark:
            return
        if row is None and mark.position < (await journal.head()).first:
            return  # trimmed, behind a verified snapshot
    kept = await loop.run_in_executor(executor, set_aside, path)
    logger.error("a damaged replica, whose last row the journal does not hold, is kept as %s", kept)


async def _make(
    journal: Journal, archive: Archive, path: Path, executor: Executor | None, cluster_id: str
) -> None:
    for again_s in _AGAIN_S:
        try:
            await _make_once(journal, archive, path, executor, cluster_id)
        except (CorruptDataError, NotFoundError) as error:
            # A store's listing may lag: it names what an archiver has deleted since, and not yet
            # the snapshot and rows for whose sake it could.
            heard(Cause.ARCHIVE_LISTING, error, logger, "the archive is listed again")
            await wait(again_s)
        else:
            return
    await _make_once(journal, archive, path, executor, cluster_id)


async def _make_once(
    journal: Journal, archive: Archive, path: Path, executor: Executor | None, cluster_id: str
) -> None:
    head = await journal.head()
    beginning = await read_beginning(journal, head)
    if beginning is not None and beginning.cluster_id != cluster_id:
        raise InvalidRequestError(
            "open journal",
            f"position {beginning.position}",
            f"the row there is of cluster {beginning.cluster_id}, the journal of {cluster_id}",
            "the tables of two journals were mixed: restore again, under a new cluster_name",
        )
    history = PresentHistory(journal, archive, head)
    made = await bootstrap(
        archive,
        path,
        LogMachine,
        executor=executor,
        apply_to=head.first - 1,
        history=history,
        beginning=beginning,
    )
    if made is None and beginning is not None:
        raise RetryableError(
            "bootstrap",
            beginning.snapshot.key,
            "this restored cluster's journal begins after that snapshot, which the store does not"
            " hold, nor any later one",
            "is `objects` the store that the cluster was restored to?",
        )
    if made is None and head.first > 1:
        of_lost = f"; {len(history.lost)} are of a history that the journal has lost"
        raise NotFoundError(
            "bootstrap",
            "archive/snapshots/",
            f"the journal begins at position {head.first}, and there is no snapshot to begin from"
            + (of_lost if history.lost else ""),
            "is `objects` the store that this cluster has always had?",
        )
    logger.info("replica made of %s", "nothing" if made is None else made.snapshot.key)
