"""Backups of a rig's directory, restored from a store."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore

from penstock.model.epochs import EPOCH_ORIGIN_MS
from penstock.objects import open_store
from penstock.objects.bucket import BucketStore
from penstock.ports.objects import ObjectStore
from penstock.recovery.backup import back_up
from penstock.recovery.manifest import (
    Manifest,
)
from penstock.recovery.restore import restore_backup
from penstock.state.command import OffsetWrite
from penstock.state.commands import AlterClusterConfigs, CommitOffsets, SaveGroup
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from penstock.wal import WalReader
from support.log_rig import NOW, Rig
from support.simulated.clock import ManualClock

PRODUCER = (4711, 3, 0)


async def fill(rig: Rig) -> None:
    """Topics, records in a segment and in the WAL, a trim, a group, a producer, configs."""
    keys = await rig.topic("t", partitions=3, retention_ms="-1")
    (trimmed,) = await rig.topic("trimmed")
    for number in range(10):
        for key in keys:
            await rig.append(key, b"%d" % number * 50, b"x", codec="zstd")
        await rig.append(trimmed, b"a", b"b")
        if number == 4:
            await rig.drain()
    await rig.append(keys[1], b"once", producer=PRODUCER)
    await rig.log.delete_records([(trimmed, 7)])
    topic = rig.view.topic("t")
    assert topic is not None
    await rig.log.commit(
        [
            AlterClusterConfigs(set={"retention.ms": "-1"}),
            SaveGroup(group_id="g", generation=7, protocol_type="consumer", empty=True, state=b"s"),
            CommitOffsets(
                group_id="g",
                offsets=[
                    OffsetWrite(
                        topic_id=bytes(topic.topic_id), partition=1, offset=5, metadata="here"
                    )
                ],
            ),
        ]
    )


def copy_to(
    rig_path: Path, to: ObjectStore, *, store: ObjectStore | None = None, wal: Any = None
) -> Manifest:
    """Back a directory up that nothing uses."""

    async def run() -> Manifest:
        with ThreadPoolExecutor(2) as pool, closing(WalReader(PosixDevice(rig_path))) as reader:
            return await back_up(
                live=rig_path / "metadata.sqlite",
                store=store or open_store(rig_path / "objects"),
                wal=wal or reader,
                to=to,
                scratch=rig_path / "scratch" / "backup",
                clock=ManualClock(now_ms=NOW + 5000),
                random=SystemRandom(),
                pool=pool,
            )

    return asyncio.run(run())


def restore_to(
    path: Path,
    source: ObjectStore,
    *,
    store: ObjectStore | None = None,
    now_ms: int = EPOCH_ORIGIN_MS,
) -> Manifest:
    """By default at the first second there is, so that leader epochs are 1, 2, ..."""
    path.mkdir(exist_ok=True)
    return asyncio.run(
        restore_backup(
            source=source,
            store=store or open_store(path / "objects"),
            database=path / "metadata.sqlite",
            scratch=path / "scratch",
            clock=ManualClock(now_ms=now_ms),
            random=SystemRandom(),
        )
    )


def value_at(store: ObjectStore, key: str) -> bytes:
    async def get() -> bytes:
        return bytes(await store.get_range(key, 0, await store.size(key)))

    return asyncio.run(get())


def keys_of(store: ObjectStore) -> list[str]:
    async def find() -> list[str]:
        return [info.key async for info in store.list("")]

    return asyncio.run(find())


def memory_store(_: Path) -> ObjectStore:
    return BucketStore(MemoryStore())


def folder_store(path: Path) -> ObjectStore:
    return open_store((path / "backup").as_uri())


async def whole(store: ObjectStore, key: str) -> bytes:
    return bytes(await store.get_range(key, 0, await store.size(key)))
