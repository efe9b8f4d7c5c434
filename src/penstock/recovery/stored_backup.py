"""Read a stored backup: its manifest, its state and its objects. docs/formats/backup.md.

Restoring and verifying a backup both read it by these functions alone.
"""

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Final

from crc32c import crc32c
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.ports.objects import ObjectStore
from penstock.recovery.manifest import (
    INCOMPLETE,
    MANIFEST,
    BackupObject,
    Manifest,
    decode_manifest,
)
from penstock.recovery.verify import Progress, verify
from penstock.recovery.verify_report import FindingKind, VerifyReport
from penstock.replica.archive import Archive
from penstock.replica.archive_format import parse_snapshot_key
from penstock.state.orders import restore as restore_state
from penstock.state.read.queries import ObjectRow, Queries

COPY_BYTES: Final = 8 << 20
"""The bytes of one read, which a store may have to hold in memory."""
_PAGE: Final = 1000


async def exists(store: ObjectStore, key: str) -> bool:
    """Whether a store has a key."""
    try:
        await store.size(key)
    except NotFoundError:
        return False
    return True


async def is_backup(source: ObjectStore) -> bool:
    """Whether a store holds a backup, whole or cut."""
    return await exists(source, MANIFEST) or await exists(source, INCOMPLETE)


async def read_manifest(source: ObjectStore) -> Manifest:
    """Read a backup's manifest.

    Raises:
        NotFoundError: there is no manifest.
        CorruptDataError: the manifest is damaged.
        InvalidRequestError: this release doesn't know the manifest's version.
    """
    try:
        size_bytes = await source.size(MANIFEST)
    except NotFoundError as error:
        if await exists(source, INCOMPLETE):
            raise NotFoundError(
                "read backup",
                MANIFEST,
                "the backup has no manifest: it is still being made, or was cut short",
                "wait for its end, or make another backup; this one can't be restored",
            ) from error
        raise NotFoundError(
            "read backup", MANIFEST, "there is no backup", "check the URL"
        ) from error
    return decode_manifest(b"".join(await read_parts(source, MANIFEST, size_bytes)))


async def read_parts(source: ObjectStore, key: str, size_bytes: int) -> list[Buffer]:
    """Read a whole object in parts.

    Raises:
        CorruptDataError: the object has another size.
    """
    return [part async for part in _parts(source, key, size_bytes)]


async def read_listed(source: ObjectStore, entry: BackupObject) -> AsyncIterator[Buffer]:
    """Yield the parts of an object that the manifest lists.

    Raises:
        CorruptDataError: the object is missing, or (after the last part) differs from the manifest.
    """
    crc = 0
    try:
        async for part in _parts(source, entry.key, entry.bytes):
            crc = crc32c(part, crc)
            yield part
    except NotFoundError as error:
        raise CorruptDataError(
            "read backup", entry.key, "the manifest lists this object, but it is missing"
        ) from error
    if crc != entry.crc32c:
        raise CorruptDataError(
            "read backup", entry.key, "CRC-32C differs from the manifest's", "use another backup"
        )


async def measure(store: ObjectStore, key: str) -> BackupObject:
    """Read a stored object, and return its entry for a manifest."""
    crc, size_bytes = 0, await store.size(key)
    async for part in _parts(store, key, size_bytes):
        crc = crc32c(part, crc)
    return BackupObject(key=key, bytes=size_bytes, crc32c=crc)


async def check_listed(source: ObjectStore, entry: BackupObject) -> None:
    """Compare an object with its entry in the manifest, without keeping its bytes.

    Raises:
        CorruptDataError: see `read_listed`.
    """
    async for _ in read_listed(source, entry):
        pass


async def _parts(source: ObjectStore, key: str, size_bytes: int) -> AsyncIterator[Buffer]:
    found_bytes = await source.size(key)
    if found_bytes != size_bytes:
        raise CorruptDataError("copy", key, f"it has {found_bytes} bytes instead of {size_bytes}")
    for start in range(0, size_bytes, COPY_BYTES):
        yield await source.get_range(key, start, min(start + COPY_BYTES, size_bytes))


async def read_state(
    source: ObjectStore, manifest: Manifest, database: Path, *, scratch: Path
) -> None:
    """Make the database of a backup's state, which names the objects of the manifest.

    Args:
        scratch: a folder for temporary files.

    Raises:
        CorruptDataError: the state is damaged, or is another one than the manifest describes.
        InvalidRequestError: a newer release has written the state.
    """
    (entry,) = (entry for entry in manifest.contents if entry.key == manifest.snapshot)
    snapshot = scratch / "backup.sqlite"
    name = parse_snapshot_key(entry.key)
    if name is None:  # version 1
        parts = [part async for part in read_listed(source, entry)]
        snapshot.write_bytes(b"".join(parts))
    else:
        await check_listed(source, entry)
        archive = Archive(source, cluster_id=manifest.cluster_id, scratch=scratch, executor=None)
        await archive.fetch_snapshot(name, snapshot)
    restore_state(snapshot, database)
    with closing(Queries(database)) as queries:
        _check_contents(queries, manifest)


def named_objects(queries: Queries) -> list[ObjectRow]:
    """List all objects that a state names, by key."""
    rows: list[ObjectRow] = []
    after = ""
    while page := queries.objects(after, limit=_PAGE):
        rows += [row for row in page if row.condemned_ms is None]
        after = page[-1].key
    return rows


def _check_contents(queries: Queries, manifest: Manifest) -> None:
    if queries.cluster_id() != manifest.cluster_id or queries.position() != manifest.position:
        raise CorruptDataError(
            "read backup",
            manifest.snapshot,
            f"it is of cluster {queries.cluster_id()} at position {queries.position()}, the"
            f" manifest says {manifest.cluster_id} at {manifest.position}",
        )
    listed = {
        entry.key: entry.bytes for entry in manifest.contents if entry.key != manifest.snapshot
    }
    named = {row.key: row.size_bytes for row in named_objects(queries)}
    if listed != named:
        key, _ = min(listed.items() ^ named.items())
        raise CorruptDataError("read backup", MANIFEST, f"it and the state differ in {key}")


async def verify_backup(
    source: ObjectStore, *, scratch: Path, progress: Progress | None = None
) -> VerifyReport:
    """Read a whole backup, and nothing else. See `penstock.recovery.verify`.

    Args:
        scratch: a folder for the backup's state.

    Raises:
        NotFoundError: there is no backup, or one that was cut short.
        InvalidRequestError: a newer release made the backup.
    """
    report = VerifyReport(not_replayed="a backup holds one state, and no journal")
    database = scratch / "state.sqlite"
    try:
        manifest = await read_manifest(source)
        await read_state(source, manifest, database, scratch=scratch)
    except CorruptDataError as error:
        report.add(FindingKind.DAMAGED, error.subject, error.detail)
        return report
    with closing(Queries(database)) as queries:
        await verify(
            queries=queries,
            store=source,
            wal=None,
            device=None,
            progress=progress,
            report=report,
        )
    for entry in manifest.contents:
        # An object in which the walk of a run has found damage is reported only once.
        if any(entry.key in finding.subject for finding in report.findings):
            continue
        try:
            await check_listed(source, entry)
        except CorruptDataError as error:
            report.add(FindingKind.DAMAGED, error.subject, error.detail)
    return report
