"""Damaging what a `Rig` has stored, and reading it as fetches do."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.log.fetch.reader import Missing
from penstock.log.fetch.regions import FileRegion, PartsRead
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey
from penstock.records.batch import stored_header
from penstock.records.decode import decode_batch
from penstock.state.rows import StoredRun
from penstock.wal.format import FILE_HEADER_BYTES, generation_of
from support.log_rig import Rig


def flip(path: Path, position: int, mask: int = 8) -> None:
    """Turn bits of one byte of a file in place, as a disk may; what the page cache has is others
    from then on, and the file's times say nothing of it."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def object_path(rig: Rig, run: StoredRun) -> Path:
    return rig.path / "objects" / run.object_key


def wal_path(rig: Rig, run: StoredRun) -> Path:
    (path,) = (
        path
        for path in (rig.path / "wal").iterdir()
        if path.is_file() and run.generation == _generation(path)
    )
    return path


def _generation(path: Path) -> int | None:
    with path.open("rb") as file:
        return generation_of(file.read(FILE_HEADER_BYTES))


def runs_of(rig: Rig, key: PartitionKey) -> list[StoredRun]:
    return rig.queries().runs_from(key, 0, limit=1000)


async def read_parts(rig: Rig, key: PartitionKey, offset: int, bytes_max: int = 1 << 20) -> Any:
    """As a fetch over a plain socket reads."""
    for _ in range(100):
        found = rig.log.reader.read_parts(key, offset, bytes_max)
        if not isinstance(found, Missing):
            return found
        await asyncio.wait([found.load])
    raise AssertionError("it is never there")


async def read_views(rig: Rig, key: PartitionKey, offset: int, bytes_max: int = 1 << 20) -> Any:
    """As a fetch over TLS reads."""
    return await rig.log.reader.read_loaded(key, offset, bytes_max)


Read = Callable[[Rig, PartitionKey, int, int], Coroutine[Any, Any, Any]]


def values_of(read: Any) -> list[tuple[int, bytes | None]]:
    parts = read.parts if isinstance(read, PartsRead) else read.views
    data = b"".join(
        part.file.read_at(part.position, part.length) if isinstance(part, FileRegion) else part
        for part in parts
    )
    found = []
    position = 0
    while position < len(data):
        header = stored_header(data, position)
        batch = memoryview(data)[position : position + header.length]
        found += [(header.base_offset + r.offset_delta, r.value) for r in decode_batch(batch)]
        position += header.length
    return found


async def consume(
    rig: Rig, key: PartitionKey, read: Read, bytes_max: int = 1 << 20
) -> tuple[list[tuple[int, bytes | None]], CorruptDataError | None]:
    """All records from the log's start on, and the error that ended it."""
    offset: int = rig.log.log_start(key)
    found: list[Any] = []
    while offset < rig.log.high_watermark(key):
        try:
            got = await read(rig, key, offset, bytes_max)
        except CorruptDataError as error:
            return found, error
        assert got is not None, offset
        found += values_of(got)
        assert got.end_offset > offset
        offset = got.end_offset
    return found, None
