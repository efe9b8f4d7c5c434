"""What a restore leaves behind that is killed while it copies, and what the next makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.app.copied_objects import NOTE, CopiedObjects
from penstock.log.backup import exists
from penstock.model.errors import InvalidRequestError
from penstock.objects import open_reliable_store
from penstock.ports.objects import ObjectStore
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

PARENT = "s3://bucket/parent"
OLD, BOTH, NEW, FOREIGN = (f"segments/0{n}/1-1-{n}.seg" for n in range(4))


def open_store(folder: Path) -> ObjectStore:
    return open_reliable_store(str(folder), clock=SystemClock(), random=SystemRandom())


async def copy(store: ObjectStore, copied: CopiedObjects, keys: list[str]) -> None:
    """As a restore does: a note, then objects."""
    take = copied.noting(lambda _: None)
    await asyncio.to_thread(take, [(key, 1) for key in keys])
    for key in keys:
        await store.put(key, [b"x"])


async def keys_of(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


def test_the_next_restore_goes_on_and_deletes_what_it_does_not_name(tmp_path: Path) -> None:
    async def run() -> None:
        store = open_store(tmp_path)
        first = CopiedObjects(store, parent=PARENT)
        assert not await first.find()
        await copy(store, first, [OLD, BOTH])
        # It is killed here; and so is the second, before it sweeps.
        second = CopiedObjects(store, parent=PARENT)
        assert await second.find()
        await copy(store, second, [BOTH])
        third = CopiedObjects(store, parent=PARENT)
        assert await third.find()
        await copy(store, third, [BOTH, NEW])
        assert await keys_of(store) == sorted([NOTE, OLD, BOTH, NEW])
        await third.sweep()
        await third.end()
        assert await keys_of(store) == [BOTH, NEW]
        assert not await exists(store, NOTE)

    asyncio.run(run())


def test_a_restore_of_another_parent_and_a_cluster_in_its_place_are_told_apart(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        store = open_store(tmp_path)
        await copy(store, CopiedObjects(store, parent=PARENT), [OLD])
        assert not await CopiedObjects(store, parent="s3://bucket/other").find()
        await store.put(FOREIGN, [b"x"])
        with pytest.raises(InvalidRequestError, match="no restore has put it there"):
            await CopiedObjects(store, parent=PARENT).find()
        await store.put(NOTE, [b"not JSON"])
        assert not await CopiedObjects(store, parent=PARENT).find()

    asyncio.run(run())
