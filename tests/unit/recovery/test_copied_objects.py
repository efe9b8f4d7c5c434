"""What a restore leaves behind that is killed while it copies, and what the next makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.log.run_walk import DueRun
from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.objects import open_reliable_store
from penstock.ports.objects import ObjectStore
from penstock.recovery import cluster
from penstock.recovery.copied_objects import NOTE, CopiedObjects
from penstock.recovery.point_in_time import Moment, TakeObjects
from penstock.recovery.stored_backup import exists
from penstock.segment import object_key
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

PARENT = "s3://bucket/parent"
OLD, BOTH, NEW, FOREIGN = (f"segments/0{n}/1-1-{n}.seg" for n in range(4))


def open_store(folder: Path) -> ObjectStore:
    return open_reliable_store(str(folder), clock=SystemClock(), random=SystemRandom())


def nothing(_key: str) -> list[DueRun]:
    return []


async def copy(store: ObjectStore, copied: CopiedObjects, keys: list[str]) -> None:
    """As a restore does: a note, then objects."""
    take = copied.noting(lambda *_: None)
    await asyncio.to_thread(take, [(key, 1) for key in keys], nothing)
    for key in keys:
        await store.put(key, [b"x"])


async def restore(
    store: ObjectStore, attempt: int, keys: list[str], *, goes_on: bool
) -> CopiedObjects:
    """One that copies and doesn't end."""
    copied = CopiedObjects(store, parent=PARENT, attempt=str(attempt))
    assert await copied.find() is goes_on
    await copy(store, copied, keys)
    return copied


async def keys_of(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


async def test_the_next_restore_goes_on_and_deletes_what_it_does_not_name(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    # The first two are killed before they end.
    await restore(store, 1, [OLD, BOTH], goes_on=False)
    await restore(store, 2, [BOTH], goes_on=True)
    third = await restore(store, 3, [BOTH, NEW], goes_on=True)
    assert await keys_of(store) == sorted([NOTE, OLD, BOTH, NEW])
    await third.end()
    assert await keys_of(store) == [BOTH, NEW]
    assert not await exists(store, NOTE)


async def test_a_restore_of_another_parent_and_a_cluster_in_its_place_are_told_apart(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    await copy(store, CopiedObjects(store, parent=PARENT, attempt="1"), [OLD])
    assert not await CopiedObjects(store, parent="s3://bucket/other", attempt="2").find()
    await store.put(FOREIGN, [b"x"])
    with pytest.raises(InvalidRequestError, match="no restore has put it there"):
        await CopiedObjects(store, parent=PARENT, attempt="1").find()
    await store.put(NOTE, [b"not JSON"])
    assert not await CopiedObjects(store, parent=PARENT, attempt="1").find()


async def test_two_restores_at_once_never_delete_what_the_others_cluster_names(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    first = await restore(store, 1, [OLD, BOTH], goes_on=False)
    await restore(store, 2, [BOTH, NEW], goes_on=True)
    # The first makes the cluster; the second, which is refused, never gets to its end.
    await first.end()
    assert await keys_of(store) == sorted([NOTE, OLD, BOTH, NEW])


async def test_of_two_restores_that_find_nothing_one_goes_on(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = CopiedObjects(store, parent=PARENT, attempt="1")
    second = CopiedObjects(store, parent=PARENT, attempt="2")
    assert not await first.find()
    assert not await second.find()
    await copy(store, first, [OLD])
    with pytest.raises(ConflictError, match="another restore has begun here"):
        await copy(store, second, [NEW])
    await first.end()
    assert await keys_of(store) == [OLD]


async def test_what_agents_of_the_new_cluster_may_have_written_is_not_deleted(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    below, above = (object_key(agent=1, epoch=epoch, n=1) for epoch in (4, 5))
    await copy(store, CopiedObjects(store, parent=PARENT, attempt="1"), [below, above])
    second = await restore(store, 2, [NEW], goes_on=True)
    await second.end(next_epoch=5)
    assert await keys_of(store) == sorted([above, NEW])


async def test_a_restore_that_finds_a_cluster_in_its_place_at_the_end_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journals: list[str] = []

    async def check_new(*_: object, **__: object) -> None:
        if journals:
            raise InvalidRequestError("restore", journals[0], "it is there already")

    async def copy_while_another_ends(*_: object, take: TakeObjects, **__: object) -> None:
        await asyncio.to_thread(take, [(NEW, 1)], nothing)
        journals.append("the first's")

    monkeypatch.setattr(cluster, "_check_new", check_new)
    monkeypatch.setattr(cluster, "restore_state", copy_while_another_ends)
    store = open_store(tmp_path)
    await copy(store, CopiedObjects(store, parent=PARENT, attempt="1"), [OLD])
    with pytest.raises(InvalidRequestError, match="the first's"):
        await cluster.restore_cluster(
            PARENT,
            cluster.NewCluster(objects=str(tmp_path), journal="", name="new"),
            moment=Moment(),
            allow_loss=False,
            clock=SystemClock(),
            random=SystemRandom(),
            transfer=lambda *_: None,
            copies=True,
        )
    assert await keys_of(store) == sorted([NOTE, OLD])
