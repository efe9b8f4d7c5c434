"""What is done with a cluster as a whole, by commands: restore it to a moment, verify it.

Both read the cluster's bucket (and, to verify, its journal) and change neither.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from penstock.app.layout import DataLayout
from penstock.app.offline import check_empty
from penstock.log.manifest import MANIFEST
from penstock.log.point_in_time import Moment, RestoredState, restore_state
from penstock.metadata.order import new_cluster_id, restore
from penstock.model.errors import ConflictError, InvalidRequestError, NotFoundError
from penstock.objects import open_reliable_store
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.replica.archive import Archive
from penstock.replica.archive_format import SNAPSHOTS_PREFIX

_OWN_PREFIXES = ("segments/", SNAPSHOTS_PREFIX, "archive/journal/")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCluster:
    """Where a restored cluster will live: the settings `objects`, `journal` and `cluster_name` of
    its agents."""

    objects: str
    journal: str
    name: str


async def is_backup(source: str, *, clock: Clock, random: Random) -> bool:
    """Whether there is a backup (`penstock backup`) at a URL, and no cluster."""
    try:
        await _open(source, clock=clock, random=random).size(MANIFEST)
    except NotFoundError:
        return False
    return True


async def restore_cluster(
    source: str,
    target: DataLayout | NewCluster,
    *,
    moment: Moment,
    allow_loss: bool,
    clock: Clock,
    random: Random,
) -> dict[str, Any]:
    """Make a cluster, or an embedded server's data directory, of a cluster's bucket.

    Args:
        source: the setting `objects` of the parent.
        target: a new prefix and journal; or an empty directory, whose lock the caller holds.

    Returns:
        What a person wants to know of it.

    Raises:
        InvalidRequestError: something is at the target already.
        PenstockError: as `penstock.log.point_in_time`.
    """
    parent_url = clean_url(source)
    cluster_id = new_cluster_id(random)
    if isinstance(target, DataLayout):
        check_empty(target)
    else:
        await _check_new(source, target, clock=clock, random=random)
    with tempfile.TemporaryDirectory(prefix="penstock-restore-") as folder:
        state = await restore_state(
            _open(source, clock=clock, random=random),
            parent_url,
            cluster_id=cluster_id,
            moment=moment,
            scratch=Path(folder),
            executor=None,
            allow_loss=allow_loss,
        )
        if isinstance(target, DataLayout):
            restore(state.snapshot, target.metadata)
        else:
            await _publish(state, target, Path(folder), clock=clock, random=random)
    return {
        "cluster_id": state.cluster_id,
        "parent_cluster_id": state.parent_cluster_id,
        "parent": parent_url,
        "position": state.parent_position,
        "archived_position": state.archived_position,
        "time_ms": state.time_ms,
        "objects": state.objects,
        "bytes": state.bytes,
        "lost": state.lost,
    }


async def _publish(
    state: RestoredState, target: NewCluster, scratch: Path, *, clock: Clock, random: Random
) -> None:
    """The snapshot first: an agent that starts before there is a journal makes one of another id,
    and then refuses the archive, instead of beginning without it."""
    archive = Archive(
        _open(target.objects, clock=clock, random=random),
        cluster_id=state.cluster_id,
        scratch=scratch / "archive",
        executor=None,
    )
    await archive.put_snapshot(state.snapshot, state.info)
    from penstock.replica.postgres import PostgresJournal

    journal = await PostgresJournal.open(
        target.journal, name=target.name, new_cluster_id=lambda: state.cluster_id
    )
    await journal.close()
    if journal.cluster_id != state.cluster_id:
        raise ConflictError("restore", target.name, "somebody made such a journal just now")


async def _check_new(source: str, target: NewCluster, *, clock: Clock, random: Random) -> None:
    if clean_url(target.objects) == clean_url(source):
        raise InvalidRequestError(
            "restore", target.objects, "it is the parent's", "give the new cluster its own prefix"
        )
    store = _open(target.objects, clock=clock, random=random)
    for prefix in _OWN_PREFIXES:
        async for info in store.list(prefix):
            raise InvalidRequestError(
                "restore",
                info.key,
                "it is there already",
                "give the new cluster a prefix without a cluster",
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
        f"it is there already, of cluster {journal.cluster_id}",
        "choose another --cluster-name",
    )


def clean_url(location: str) -> str:
    """A location as it is written down: a URL without user and password."""
    if "://" not in location:
        return Path(location).absolute().as_uri()
    url = urlsplit(location)
    host = url.netloc.rpartition("@")[2]
    return urlunsplit((url.scheme, host, url.path.rstrip("/"), "", ""))


def _open(location: str, *, clock: Clock, random: Random) -> ObjectStore:
    return open_reliable_store(location, clock=clock, random=random)
