"""The archive in a store: putting, checking, listing and reading it. docs/formats/archive.md.

Snapshots go through files in pieces; they may be larger than memory. Stretches are small.
"""

import asyncio
import contextlib
import logging
import mmap
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import cramjam
from crc32c import crc32c
from typing_extensions import Buffer

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
)
from penstock.ports.journal import JournalRow
from penstock.ports.objects import ObjectStore
from penstock.replica.archive_format import (
    HEADER_BYTES,
    JOURNAL_PREFIX,
    LOST_PREFIX,
    MARKED_HEADER_BYTES,
    SNAPSHOTS_PREFIX,
    STRETCH_READ_BYTES_MAX,
    ArchiveHeader,
    ArchiveKind,
    Coverage,
    SnapshotName,
    StretchName,
    decode_header,
    decode_rows,
    encode_header,
    encode_rows,
    lost_prefix,
    parse_lost_key,
    parse_snapshot_key,
    parse_stretch_key,
)
from penstock.replica.beginning import RESTORED_POSITION
from penstock.replica.snapshot import SnapshotInfo
from penstock.system.heard import Cause, heard

T = TypeVar("T")

logger = logging.getLogger(__name__)

LostStretch = Callable[[Sequence[JournalRow]], Awaitable[str]]

_PIECE_BYTES: Final = 8 << 20
_LEVEL: Final = 3


class Archive:
    """One cluster's archive. Event loop only; its work is done in the executor.

    Args:
        store: of the cluster's prefix.
        cluster_id: whose it is; "" takes the archive as it is found (a restore).
        scratch: a folder for files on their way; made when it is needed.
    """

    def __init__(
        self, store: ObjectStore, *, cluster_id: str, scratch: Path, executor: Executor | None
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._scratch = scratch
        self._executor = executor
        self._passed_over: set[SnapshotName] = set()

    # -- listing ---------------------------------------------------------------------------------

    async def snapshots(self, *, also: SnapshotName | None = None) -> list[SnapshotName]:
        """All snapshots of this cluster, by position.

        Args:
            also: one that is there, whatever the listing shows.

        Raises:
            InvalidRequestError: it isn't known whose of two restored states this cluster began
                with.
        """
        found = [parse_snapshot_key(info.key) async for info in self._store.list(SNAPSHOTS_PREFIX)]
        names = {also, *found} - {None}
        return await self._without_leftovers(sorted(name for name in names if name is not None))

    async def _without_leftovers(self, names: list[SnapshotName]) -> list[SnapshotName]:
        """Pass over the states of restores that were killed before they made a journal, while
        another restore made this cluster here. One alone is another matter: two clusters share a
        prefix."""
        first = [name for name in names if name.position == RESTORED_POSITION]
        if not first or len(names) == 1:
            return names
        clusters = {name: await self._cluster_of(name) for name in first}
        cluster_id = self._cluster_id
        if not cluster_id and len(set(clusters.values())) > 1:
            later: list[SnapshotName | StretchName] = [*names[len(first) :]]
            later += await self.stretches()
            cluster_id = await self._cluster_of(later[0]) if later else ""
            if not cluster_id:
                raise InvalidRequestError(
                    "read archive",
                    first[0].key,
                    f"the restored states of {len(first)} clusters are there"
                    f" ({', '.join(sorted(clusters.values()))}): a restore was killed",
                    "delete the snapshots of the clusters that have no journal",
                )
        others = [
            name for name in first if clusters[name] not in ("", cluster_id or clusters[name])
        ]
        if len(others) == len(names):
            return names
        for name in set(others) - self._passed_over:
            logger.warning(
                "passing over %s: a restore of cluster %s has left it, which was killed before it "
                "made a journal; it may be deleted",
                name.key,
                clusters[name],
            )
        self._passed_over |= set(others)
        return [name for name in names if name not in others]

    async def _cluster_of(self, name: SnapshotName | StretchName) -> str:
        """The cluster whose an object says to be; "": it can't be read."""
        is_snapshot = isinstance(name, SnapshotName)
        kind = ArchiveKind.SNAPSHOT if is_snapshot else ArchiveKind.STRETCH
        end = MARKED_HEADER_BYTES if is_snapshot else HEADER_BYTES
        try:
            data = await self._store.get_range(name.key, 0, end)
            return decode_header(data, kind=kind, subject=name.key).cluster_id
        except (CorruptDataError, NotFoundError) as error:
            # What reads it whole says what that means.
            heard(Cause.ARCHIVE_OBJECT, error, logger, "whose it is isn't known")
            return ""

    async def stretches(self) -> list[StretchName]:
        """All stretches, by first position."""
        found = [parse_stretch_key(info.key) async for info in self._store.list(JOURNAL_PREFIX)]
        return sorted(name for name in found if name is not None)

    async def header(self, name: SnapshotName | StretchName) -> ArchiveHeader:
        """Read the header of an object, and check it against the object's name and this cluster.

        Raises:
            NotFoundError: it is gone.
            CorruptDataError: it is damaged.
            InvalidRequestError: it is of another cluster or a newer release.
        """
        is_snapshot = isinstance(name, SnapshotName)
        # A snapshot's has a mark, or its payload is longer than one; a stretch may be tiny.
        end = MARKED_HEADER_BYTES if is_snapshot else HEADER_BYTES
        data = await self._store.get_range(name.key, 0, end)
        kind = ArchiveKind.SNAPSHOT if is_snapshot else ArchiveKind.STRETCH
        header = decode_header(data, kind=kind, subject=name.key)
        if isinstance(name, SnapshotName):
            named = (name.position, name.position)
            right = header.digest.hex().startswith(name.digest_hex)
        else:
            named, right = (name.first, name.last), True
        if not right or (header.first, header.last) != named:
            raise CorruptDataError("read archive", name.key, "its header has another name")
        if self._cluster_id and header.cluster_id != self._cluster_id:
            raise InvalidRequestError(
                "read archive",
                name.key,
                f"it is of cluster {header.cluster_id}, this is {self._cluster_id}",
                "give each cluster a prefix of its own",
            )
        return header

    # -- putting ---------------------------------------------------------------------------------

    async def put_snapshot(self, path: Path, info: SnapshotInfo) -> SnapshotName:
        """Put a verified snapshot file, and read it back. One of the same state that is there
        already stays.

        Raises:
            ConflictError: there is one of another state, which stays.
            CorruptDataError: what the store holds is not what was put.
            PenstockError: as the store's.
        """
        return await self._put_snapshot(
            SnapshotName(info.position, info.digest.hex()[:16]), path, info
        )

    async def _put_snapshot(
        self, name: SnapshotName, path: Path, info: SnapshotInfo
    ) -> SnapshotName:
        if await self._has_snapshot(name, info):
            return name
        self._make_scratch()
        packed = self._scratch / f"{path.name}.zst"
        try:
            header = await self._in_executor(
                partial(_compress, path, packed, info, self._cluster_id)
            )
            with packed.open("rb") as file:
                # Mapped, not read: it may be larger than memory. Unmapped once no view is left:
                # a put that was given up may still be under way.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            await self._store.put(name.key, [encode_header(header), memoryview(mapped)])
            del mapped
        finally:
            packed.unlink(missing_ok=True)
        await self.check(name, expected_crc=header.payload_crc)
        return name

    async def _has_snapshot(self, name: SnapshotName, info: SnapshotInfo) -> bool:
        """Whether a whole snapshot of this state is there; a damaged one is to be replaced.

        Raises:
            ConflictError: there is one of another state.
        """
        try:
            header = await self.check(name)
        except NotFoundError:
            return False
        except CorruptDataError as error:
            heard(Cause.ARCHIVE_OBJECT, error, logger, "replacing a damaged object")
            return False
        if header.digest != info.digest:
            raise ConflictError(
                "archive",
                name.key,
                f"it is of the state {header.digest.hex()}, to be put is {info.digest.hex()}",
                "nothing in an archive is written over",
            )
        return True

    async def put_stretch(self, rows: Sequence[JournalRow]) -> StretchName:
        """Put rows that follow on, and read them back. The same rows that are there already stay.

        Raises:
            ConflictError: there is a whole stretch of other rows, which stays: two histories have
                met.
            CorruptDataError: what the store holds is not what was put.
            PenstockError: as the store's.
        """
        name = StretchName(rows[0].position, rows[-1].position)
        header, payload = await self._in_executor(partial(_pack_rows, rows, self._cluster_id))
        try:
            await self._store.put(name.key, [header, payload], if_absent=True)
        except ConflictError:
            # Another agent's, of the same rows. Is it whole? Else it is replaced.
            try:
                found = await self.read_stretch(name)
            except CorruptDataError as error:
                heard(Cause.ARCHIVE_OBJECT, error, logger, "replacing a damaged object")
            else:
                if found == list(rows):
                    return name
                raise _other_rows(name, found, rows) from None
            await self._store.put(name.key, [header, payload])
        if await self.read_stretch(name) != list(rows):
            raise CorruptDataError("archive", name.key, "the store holds other rows")
        return name

    async def put_lost_snapshot(
        self, path: Path, info: SnapshotInfo, *, history: int
    ) -> SnapshotName:
        """Put a snapshot as `put_snapshot` does, of a replica of a lost history."""
        name = SnapshotName(info.position, info.digest.hex()[:16], history)
        return await self._put_snapshot(name, path, info)

    async def copy(
        self, source: SnapshotName | StretchName, target: SnapshotName | StretchName
    ) -> None:
        """Put what an object holds under another name, and read it back. Never over another.

        Raises:
            CorruptDataError: the source is damaged; or what the store holds is not what was put.
            NotFoundError: the source is gone.
        """
        header = await self.header(source)
        self._make_scratch()
        packed = self._scratch / "copied.zst"
        try:
            with packed.open("wb") as file:
                async for piece in self._payload(source, header):
                    await self._in_executor(partial(file.write, piece))
            with packed.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with contextlib.suppress(ConflictError):
                await self._store.put(
                    target.key, [encode_header(header), memoryview(mapped)], if_absent=True
                )
            del mapped
        finally:
            packed.unlink(missing_ok=True)
        await self.check(target, expected_crc=header.payload_crc)

    async def lost(self, history: int) -> list[SnapshotName | StretchName]:
        """List what is archived of a lost history."""
        prefix = lost_prefix(history)
        found = [parse_lost_key(info.key) async for info in self._store.list(prefix)]
        return [name for name in found if name is not None]

    async def lost_histories(self) -> list[int]:
        """Numbers of the lost histories of which something is archived."""
        found = [parse_lost_key(info.key) async for info in self._store.list(LOST_PREFIX)]
        return sorted({name.lost for name in found if name is not None})

    async def delete_lost(self, history: int) -> int:
        """Delete all that is kept of a lost history; how many objects there were."""
        keys = [info.key async for info in self._store.list(lost_prefix(history))]
        # What a repair noted goes last: it says which of the others' records are appended.
        snapshots_and_rows = [key for key in keys if parse_lost_key(key) is not None]
        await self._store.delete(snapshots_and_rows)
        await self._store.delete([key for key in keys if parse_lost_key(key) is None])
        return len(keys)

    async def delete(self, names: Sequence[SnapshotName | StretchName]) -> None:
        """Delete objects; those that are gone are ignored."""
        await self._store.delete([name.key for name in names])

    # -- reading ---------------------------------------------------------------------------------

    async def check(
        self, name: SnapshotName | StretchName, *, expected_crc: int | None = None
    ) -> ArchiveHeader:
        """Read an object whole and compare its CRC-32C; nothing is kept.

        Raises:
            CorruptDataError: it is not what was written.
        """
        header = await self.header(name)
        async for _ in self._payload(name, header):
            pass
        if expected_crc is not None and header.payload_crc != expected_crc:
            raise CorruptDataError("archive", name.key, "the store holds another object")
        return header

    async def fetch_snapshot(self, name: SnapshotName, target: Path) -> ArchiveHeader:
        """Write a snapshot's SQLite file to `target`, checked by its CRC-32C.

        Raises:
            CorruptDataError: it is not what was written; there is no file then.
        """
        header = await self.header(name)
        self._make_scratch()
        packed = self._scratch / f"{target.name}.zst"
        try:
            with packed.open("wb") as file:
                async for piece in self._payload(name, header):
                    await self._in_executor(partial(file.write, piece))
            await self._in_executor(partial(_decompress, packed, target, header, name.key))
        finally:
            packed.unlink(missing_ok=True)
        return header

    async def rows(
        self, *, after: int, until: int, lost: LostStretch | None = None
    ) -> AsyncIterator[list[JournalRow]]:
        """The rows in (after, until], in order, a stretch at a time.

        Args:
            lost: says why the rows of a stretch may not be used; "": they may.

        Raises:
            CorruptDataError: some are in no stretch that is whole; names the first.
        """
        coverage = Coverage(await self.stretches())
        reached = after
        while reached < until:
            name = coverage.holding(reached + 1)
            try:
                rows = await self.read_stretch(name)
                detail = "" if lost is None else await lost(rows)
                if detail:
                    raise CorruptDataError("read archive", name.key, detail)
            except (CorruptDataError, NotFoundError) as error:
                # Another may hold the same rows.
                heard(Cause.ARCHIVE_OBJECT, error, logger, "passing over an object of the archive")
                continue
            yield [row for row in rows if reached < row.position <= until]
            reached = name.last

    async def read_stretch(self, name: StretchName) -> list[JournalRow]:
        """All rows of a stretch.

        Raises:
            CorruptDataError: it is not what was written.
        """
        header = await self.header(name)
        if header.raw_bytes > STRETCH_READ_BYTES_MAX:
            raise CorruptDataError("read archive", name.key, f"{header.raw_bytes} bytes of rows")
        payload = b"".join([bytes(piece) async for piece in self._payload(name, header)])
        return await self._in_executor(partial(_unpack_rows, payload, header, name.key))

    async def _payload(
        self, name: SnapshotName | StretchName, header: ArchiveHeader
    ) -> AsyncIterator[Buffer]:
        """The payload in pieces; its CRC-32C is compared behind the last."""
        crc = 0
        end = header.header_bytes + header.payload_bytes
        for start in range(header.header_bytes, end, _PIECE_BYTES):
            piece = await self._store.get_range(name.key, start, min(start + _PIECE_BYTES, end))
            crc = await self._in_executor(partial(crc32c, piece, crc))
            yield piece
        if crc != header.payload_crc:
            raise CorruptDataError("read archive", name.key, "CRC-32C of the payload differs")

    def _make_scratch(self) -> None:
        self._scratch.mkdir(parents=True, exist_ok=True)

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _compress(path: Path, packed: Path, info: SnapshotInfo, cluster_id: str) -> ArchiveHeader:
    packed.unlink(missing_ok=True)
    compressor = cramjam.zstd.Compressor(_LEVEL)
    crc = payload_bytes = raw_bytes = 0
    with path.open("rb") as source, packed.open("wb") as target:
        while True:
            piece = source.read(_PIECE_BYTES)
            raw_bytes += len(piece)
            if piece:
                compressor.compress(piece)
            data = bytes(compressor.flush() if piece else compressor.finish())
            crc = crc32c(data, crc)
            payload_bytes += len(data)
            target.write(data)
            if not piece:
                break
    return ArchiveHeader(
        kind=ArchiveKind.SNAPSHOT,
        cluster_id=cluster_id,
        first=info.position,
        last=info.position,
        first_ms=info.time_ms,
        last_ms=info.time_ms,
        raw_bytes=raw_bytes,
        payload_bytes=payload_bytes,
        payload_crc=crc,
        digest=info.digest,
        mark=info.mark,
    )


def _decompress(packed: Path, target: Path, header: ArchiveHeader, key: str) -> None:
    target.unlink(missing_ok=True)
    # cramjam opens files only in ways in which they could be made.
    source = cramjam.File(str(packed), read=True, write=True, truncate=False)
    sink = cramjam.File(str(target), read=True, write=True, truncate=True)
    detail = ""
    try:
        cramjam.zstd.decompress_into(source, sink)
    except cramjam.DecompressionError as error:
        detail = str(error)
    del sink, source  # closes them
    found_bytes = target.stat().st_size
    if not detail and found_bytes != header.raw_bytes:
        detail = f"{found_bytes} bytes, its header says {header.raw_bytes}"
    if detail:
        target.unlink()
        raise CorruptDataError("read archive", key, detail)


def _pack_rows(rows: Sequence[JournalRow], cluster_id: str) -> tuple[bytes, bytes]:
    raw = encode_rows(rows)
    payload = bytes(cramjam.zstd.compress(raw, _LEVEL))
    header = ArchiveHeader(
        kind=ArchiveKind.STRETCH,
        cluster_id=cluster_id,
        first=rows[0].position,
        last=rows[-1].position,
        first_ms=min(row.stamp_ms for row in rows),
        last_ms=max(row.stamp_ms for row in rows),
        raw_bytes=len(raw),
        payload_bytes=len(payload),
        payload_crc=crc32c(payload),
    )
    return encode_header(header), payload


def _unpack_rows(payload: bytes, header: ArchiveHeader, key: str) -> list[JournalRow]:
    # The CRC-32C was right, so the length is ours to believe.
    raw = bytearray(header.raw_bytes)
    try:
        length = cramjam.zstd.decompress_into(payload, raw)
    except cramjam.DecompressionError as error:
        raise CorruptDataError("read archive", key, str(error)) from error
    if length != header.raw_bytes:
        raise CorruptDataError("read archive", key, f"{length} bytes, not {header.raw_bytes}")
    return list(decode_rows(raw, header, subject=key))


def _other_rows(
    name: StretchName, found: Sequence[JournalRow], rows: Sequence[JournalRow]
) -> ConflictError:
    theirs, ours = next(
        (theirs, ours) for theirs, ours in zip(found, rows, strict=True) if theirs != ours
    )
    return ConflictError(
        "archive",
        name.key,
        f"it holds another row at position {theirs.position}: {_described(theirs)}; the journal"
        f" has {_described(ours)}",
        "the journal came back older and went on; the archive keeps what it had",
    )


def _described(row: JournalRow) -> str:
    return f"{len(row.body)} bytes, stamp {row.stamp_ms} ms, CRC-32C {crc32c(row.body):08x}"
