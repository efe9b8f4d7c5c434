"""The heavy part of a restore, in parallel: reading a parent's objects, and copying them.

There is no cluster to ask yet, so executors open the stores themselves, by URLs without
credentials and with what their own environment has. An object is whole if its header and its index
say so, and its runs are those that the restored state names there; one that isn't is a finding, and
keeps the restore from happening.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from penstock.log.run_walk import DueRun
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.objects import open_reliable_store
from penstock.objects.once import put_once
from penstock.pipeline.engine import Engine
from penstock.ports.objects import ObjectStore
from penstock.recovery.due_runs import DueOf, check_object
from penstock.segment import ask_index, read_index
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

ITEM_BYTES: Final = 256 << 20
ITEM_OBJECTS: Final = 64
_SHOWN_MAX: Final = 3

Watch = Callable[[int, int], None]
"""Called with progress: bytes done, bytes in all."""


class TransferItem(msgspec.Struct, frozen=True, kw_only=True):
    """Objects to read: keys, sizes in bytes and the runs that lie there. `target`: where to copy
    them; "": nowhere."""

    source: str
    target: str
    objects: list[tuple[str, int, list[DueRun]]]


class Transferred(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading objects; `faults`: objects that aren't whole, and were not copied."""

    objects: int
    bytes: int
    faults: list[str]


def transfer_objects(
    engine: Engine,
    source: str,
    target: str,
    objects: Sequence[tuple[str, int]],
    *,
    due: DueOf,
    watch: Watch | None = None,
) -> None:
    """Read all objects of a store, and copy them into another.

    Args:
        source, target: paths or URLs without credentials; an empty target: they're only read.
        due: what must lie in each, for the items that are handed out next.

    Raises:
        CorruptDataError: some aren't whole.
        RetryableError: a store doesn't answer.
    """
    total = sum(size for _, size in objects)
    done = 0
    faults: list[str] = []
    items = (
        TransferItem(
            source=source, target=target, objects=[(key, size, due(key)) for key, size in part]
        )
        for part in _portions(objects)
    )
    for _, transferred in engine.run(transfer_item, items):
        done += transferred.bytes
        faults += transferred.faults
        if watch is not None:
            watch(done, total)
    if faults:
        raise CorruptDataError(
            "restore",
            source,
            f"{len(faults)} objects aren't whole: {'; '.join(faults[:_SHOWN_MAX])}",
            "take an earlier moment, or a backup",
        )


def _portions(objects: Sequence[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    portion: list[tuple[str, int]] = []
    size = 0
    for key, size_bytes in objects:
        if portion and (size + size_bytes > ITEM_BYTES or len(portion) >= ITEM_OBJECTS):
            yield portion
            portion, size = [], 0
        portion.append((key, size_bytes))
        size += size_bytes
    if portion:
        yield portion


def transfer_item(item: TransferItem) -> Transferred:
    """Read the objects of an item one after the other, and copy those that are whole."""
    return asyncio.run(_transfer(item))


async def _transfer(item: TransferItem) -> Transferred:
    source = _open(item.source)
    target = _open(item.target) if item.target else None
    faults: list[str] = []
    read_bytes = 0
    for key, size_bytes, due in item.objects:
        try:
            body = bytes(await source.get_range(key, 0, size_bytes))
            _check_frame(key, body)
            check_object(key, [body], due, "restore")
        except (CorruptDataError, NotFoundError) as error:
            faults.append(str(error))
            continue
        read_bytes += size_bytes
        if target is not None:
            # What an attempt before has put is the same.
            await put_once(target, key, [body])
    return Transferred(objects=len(item.objects), bytes=read_bytes, faults=faults)


def _open(location: str) -> ObjectStore:
    return open_reliable_store(location, clock=SystemClock(), random=SystemRandom())


def _check_frame(key: str, body: bytes) -> None:
    """Check header, footer and index. Batches that no run names stop no restore.

    Raises:
        CorruptDataError: naming `key`.
    """
    read_index(ask_index(key, len(body)), lambda start, end: body[start:end])
