"""A backup holds all that was acknowledged; restored, it equals the source and goes on."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from obstore.store import MemoryStore
from typing_extensions import Buffer

from penstock.log.backup import back_up, clear_scratch
from penstock.log.manifest import (
    INCOMPLETE,
    MANIFEST,
    METADATA,
    BackupObject,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from penstock.log.restore import is_unfinished, restore_backup
from penstock.metadata.answers import BatchStatus
from penstock.metadata.commands import AlterClusterConfigs, CommitOffsets, OffsetWrite, SaveGroup
from penstock.metadata.order import Order
from penstock.metadata.queries import Queries
from penstock.model.epochs import EPOCH_ORIGIN_MS
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.model.ids import PartitionKey, partition_key
from penstock.objects import open_store
from penstock.objects.bucket import BucketStore
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.records.batch import CRC_FROM, stored_header
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from penstock.testing.clock import ManualClock
from penstock.wal import WalReader
from penstock.wal.format import FILE_HEADER_BYTES, generation_of
from support.log_contents import contents, verify_path
from support.log_rig import NOW, Rig, run_rig

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


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("destination", [memory_store, folder_store])
def test_a_restored_backup_equals_the_source_and_goes_on(
    tmp_path: Path, destination: Callable[[Path], ObjectStore], *, drain: bool
) -> None:
    source, restored = tmp_path / "source", tmp_path / "restored"
    run_rig(source, fill, drain=drain)
    to = destination(tmp_path)
    manifest = copy_to(source, to)
    assert manifest.topics == 2
    assert INCOMPLETE not in keys_of(to)
    assert sorted(entry.key for entry in manifest.contents) == sorted(
        key for key in keys_of(to) if key != MANIFEST
    )
    assert not [path for path in (source / "scratch").rglob("*") if path.is_file()]
    assert restore_to(restored, to) == manifest
    assert contents(restored) == contents(source)
    assert not verify_path(restored).findings
    assert not (restored / "wal").exists()
    assert not [path for path in (restored / "scratch").rglob("*") if path.is_file()]

    async def goes_on(rig: Rig) -> None:
        topic = rig.view.topic("t")
        assert topic is not None
        key = partition_key(topic.topic_key, 1)
        again = await rig.append(key, b"once", producer=PRODUCER)
        assert (again.status, again.base_offset) == (BatchStatus.DUPLICATE, 20)
        assert (await rig.append(key, b"new")).base_offset == 21
        assert (await rig.read_all(key))[-2:] == [(20, b"once"), (21, b"new")]
        await rig.drain()
        assert rig.order.cluster_id == manifest.cluster_id

    run_rig(restored, goes_on)
    assert verify_path(restored).ok


def test_a_restored_order_is_the_sources_at_the_same_position(tmp_path: Path) -> None:
    """Nothing is added but what the copy itself needs: its epoch and the moves out of the WAL."""
    source = tmp_path / "source"
    run_rig(source, fill)
    to = memory_store(tmp_path)
    manifest = copy_to(source, to)
    with closing(Queries(source / "metadata.sqlite")) as queries:
        assert manifest.position == queries.position() + 2


async def write_over(rig: Rig, key: PartitionKey) -> None:
    """Move all to segments and write until the WAL's first file has been used again, which may be
    some time after it was emptied."""
    for _ in range(30):
        await rig.drain()
        for _ in range(40):
            await rig.append(key, bytes(40_000))
        if was_used_again(rig):
            break
    await rig.drain()


def was_used_again(rig: Rig) -> bool:
    """Whether the WAL's first file holds another generation by now."""
    with closing(WalReader(PosixDevice(rig.path))) as reader:
        try:
            reader.read(1, 4096, 1)
        except RetryableError:
            return True
    return False


def test_the_wal_may_be_recycled_and_runs_joined_while_it_is_read(tmp_path: Path) -> None:
    """Before each read of the WAL the live log moves all of it to segments and goes on."""

    async def test(rig: Rig) -> None:
        keys = await rig.topic("t", partitions=2)
        for number in range(30):
            for key in keys:
                await rig.append(key, bytes(9_000), b"%d" % number)
        loop = asyncio.get_running_loop()
        acknowledged = {key: rig.log.high_watermark(key) for key in keys}
        reads = 0

        async def recycle() -> None:
            await write_over(rig, keys[0])

        class Recycling(WalReader):
            def read(self, generation: int, position: int, length: int) -> bytes:
                nonlocal reads
                reads += 1
                if reads == 10:
                    asyncio.run_coroutine_threadsafe(recycle(), loop).result(20)
                return super().read(generation, position, length)

        to = memory_store(tmp_path)
        await rig.log.flush()
        await back_up(
            live=tmp_path / "source" / "metadata.sqlite",
            store=rig.store,
            wal=Recycling(PosixDevice(rig.path)),
            to=to,
            scratch=tmp_path / "scratch",
            clock=rig.clock,
            random=SystemRandom(),
            pool=rig.pool,
        )
        assert reads >= 10
        assert was_used_again(rig)
        (tmp_path / "restored").mkdir()
        await restore_backup(
            source=to,
            store=open_store(tmp_path / "restored" / "objects"),
            database=tmp_path / "restored" / "metadata.sqlite",
            scratch=tmp_path / "scratch",
            clock=rig.clock,
            random=SystemRandom(),
        )
        with closing(Queries(tmp_path / "restored" / "metadata.sqlite")) as queries:
            heads = {key: end for key, _, end in queries.heads()}
        assert heads == acknowledged, "as of the start of the backup"

    run_rig(tmp_path / "source", test)
    assert not verify_path(tmp_path / "restored").findings
    before = contents(tmp_path / "restored")["bytes"]
    after = contents(tmp_path / "source")["bytes"]
    assert all(after[key].startswith(value) for key, value in before.items())


def test_what_was_trimmed_while_it_was_read_makes_it_copy_the_state_anew(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        for _ in range(30):
            await rig.append(key, bytes(9_000))
        loop = asyncio.get_running_loop()
        reads = 0

        async def trim() -> None:
            await rig.drain()
            await rig.log.delete_records([(key, -1)])
            await write_over(rig, key)

        class Trimming(WalReader):
            def read(self, generation: int, position: int, length: int) -> bytes:
                nonlocal reads
                reads += 1
                if reads == 10:
                    asyncio.run_coroutine_threadsafe(trim(), loop).result(20)
                return super().read(generation, position, length)

        to = memory_store(tmp_path)
        await rig.log.flush()
        await back_up(
            live=rig.path / "metadata.sqlite",
            store=rig.store,
            wal=Trimming(PosixDevice(rig.path)),
            to=to,
            scratch=tmp_path / "scratch",
            clock=rig.clock,
            random=SystemRandom(),
            pool=rig.pool,
        )
        stored = [info.key async for info in to.list("segments/")]
        listed = {entry.key for entry in decode_manifest(await whole(to, MANIFEST)).contents}
        assert set(stored) <= listed, "no segment of the first try is left"
        (tmp_path / "restored").mkdir()
        await restore_backup(
            source=to,
            store=open_store(tmp_path / "restored" / "objects"),
            database=tmp_path / "restored" / "metadata.sqlite",
            scratch=tmp_path / "scratch",
            clock=rig.clock,
            random=SystemRandom(),
        )

    run_rig(tmp_path / "source", test)
    assert not verify_path(tmp_path / "restored").findings
    assert contents(tmp_path / "restored") == contents(tmp_path / "source")


async def whole(store: ObjectStore, key: str) -> bytes:
    return bytes(await store.get_range(key, 0, await store.size(key)))


class Cutting:
    """A store whose puts fail after a number of them, as if the process had ended there."""

    def __init__(self, store: ObjectStore, puts: int) -> None:
        self._store = store
        self._left = puts

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        await self._store.put(key, parts, if_absent=if_absent)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        return await self._store.get_range(key, start, end)

    async def size(self, key: str) -> int:
        return await self._store.size(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete(keys)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix, after=after)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that tests only read."""
    path = tmp_path_factory.mktemp("filled") / "source"
    run_rig(path, fill)
    return path


def test_a_cut_backup_is_refused_by_restore_and_can_be_made_anew(
    source: Path, tmp_path: Path
) -> None:
    puts = 0
    while True:
        to = memory_store(tmp_path)
        try:
            copy_to(source, Cutting(to, puts))
        except KeyboardInterrupt:
            pass
        else:
            break
        restored = tmp_path / f"restored-{puts}"
        with pytest.raises(NotFoundError, match="was cut" if puts else "there is no backup"):
            restore_to(restored, to)
        assert not (restored / "metadata.sqlite").exists()
        copy_to(source, to)
        restore_to(restored, to)
        assert contents(restored) == contents(source)
        puts += 1
    assert puts == 5, "marker, two segments, state, manifest"


def test_an_object_that_a_cut_backup_left_is_never_taken_for_the_new_ones(
    source: Path, tmp_path: Path
) -> None:
    """Keys of a backup's own segments are used again by the next epoch of the server."""
    to = memory_store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        copy_to(source, Cutting(to, 3))
    left = [key for key in keys_of(to) if key.startswith("segments/")]
    assert len(left) == 2
    for key in left:
        same_size = bytes(len(value_at(to, key)))
        asyncio.run(to.put(key, [same_size]))
    copy_to(source, to)
    restore_to(tmp_path / "restored", to)
    assert not verify_path(tmp_path / "restored").findings


def test_a_destination_that_holds_something_is_left_alone(source: Path, tmp_path: Path) -> None:
    to = memory_store(tmp_path)
    copy_to(source, to)
    before = {key: value_at(to, key) for key in keys_of(to)}
    with pytest.raises(ConflictError, match="there is a backup already"):
        copy_to(source, to)
    assert {key: value_at(to, key) for key in keys_of(to)} == before
    own = open_store(source / "objects")
    with pytest.raises(ConflictError, match="objects that are no backup"):
        copy_to(source, own)
    assert not verify_path(source).findings


def test_a_flipped_bit_anywhere_in_a_backup_is_refused(source: Path, tmp_path: Path) -> None:
    to = memory_store(tmp_path)
    copy_to(source, to)
    restored = tmp_path / "restored"
    for key in keys_of(to):
        intact = value_at(to, key)
        for at in (0, len(intact) // 3, len(intact) // 2, len(intact) - 2):
            damaged = bytearray(intact)
            damaged[at] ^= 0x04
            asyncio.run(to.put(key, [bytes(damaged)]))
            with pytest.raises(CorruptDataError) as raised:
                restore_to(restored, to)
            assert key in str(raised.value)
            assert not (restored / "metadata.sqlite").exists() or is_unfinished(
                restored / "metadata.sqlite"
            )
        asyncio.run(to.put(key, [intact[:-20]]))
        with pytest.raises(CorruptDataError):
            restore_to(restored, to)
        asyncio.run(to.delete([key]))
        with pytest.raises((CorruptDataError, NotFoundError)):
            restore_to(restored, to)
        asyncio.run(to.put(key, [intact]))
    restore_to(restored, to)
    assert contents(restored) == contents(source)


def test_a_cut_restore_leaves_a_directory_that_no_server_opens_and_may_be_done_again(
    source: Path, tmp_path: Path
) -> None:
    to = memory_store(tmp_path)
    copy_to(source, to)
    restored = tmp_path / "restored"
    restored.mkdir()
    cut = Cutting(open_store(restored / "objects"), 1)
    with pytest.raises(KeyboardInterrupt):
        restore_to(restored, to, store=cut)
    database = restored / "metadata.sqlite"
    assert is_unfinished(database)
    assert b"penstock restore" in database.read_bytes()
    with pytest.raises(PenstockError, match="not a database"):
        Order.open(database, clock=ManualClock(now_ms=NOW), random=SystemRandom())
    with pytest.raises(PenstockError, match="not a database"):
        Queries(database)
    assert is_unfinished(database), "whoever tried to open it left it as it was"
    restore_to(restored, to)
    assert not is_unfinished(database)
    assert contents(restored) == contents(source)
    assert not verify_path(restored).findings


def test_a_restore_refuses_a_directory_in_use(source: Path, tmp_path: Path) -> None:
    to = memory_store(tmp_path)
    copy_to(source, to)
    restored = tmp_path / "restored"
    restore_to(restored, to)
    before = contents(restored)
    with pytest.raises(InvalidRequestError, match="empty directory"):
        restore_to(restored, to)
    (restored / "metadata.sqlite").unlink()
    with pytest.raises(InvalidRequestError, match="empty directory"):
        restore_to(restored, to)
    assert keys_of(open_store(restored / "objects"))
    assert before


def test_a_damaged_source_is_named_and_gives_no_backup(source: Path, tmp_path: Path) -> None:
    to = memory_store(tmp_path)
    lacking = memory_store(tmp_path)
    with pytest.raises(NotFoundError, match="segments/"):
        copy_to(source, to, store=lacking)
    assert MANIFEST not in keys_of(to)
    (tmp_path / "no-wal").mkdir()
    with pytest.raises(CorruptDataError, match="WAL generation"):
        copy_to(source, to, wal=WalReader(PosixDevice(tmp_path / "no-wal")))
    assert MANIFEST not in keys_of(to)


def test_a_damaged_run_of_the_wal_is_named_and_gives_no_backup(
    source: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(source, tmp_path / "damaged"))
    with closing(Queries(path / "metadata.sqlite")) as queries:
        run = queries.wal_runs()[-1]
    for file in (path / "wal").glob("*.wal"):
        with file.open("r+b") as opened:
            if generation_of(opened.read(FILE_HEADER_BYTES)) == run.file_generation:
                opened.seek(run.position + 70)
                byte = opened.read(1)[0]
                opened.seek(run.position + 70)
                opened.write(bytes([byte ^ 4]))
    to = memory_store(tmp_path)
    offsets = f"offsets {run.base_offset} to {run.end_offset - 1} of partition key"
    with pytest.raises(CorruptDataError, match=f"{offsets} {run.partition_key}.*CRC-32C differs"):
        copy_to(path, to)
    assert MANIFEST not in keys_of(to)


@pytest.mark.parametrize("damage", ["flip", "swap"])
def test_a_damaged_object_is_named_and_gives_no_backup(
    source: Path, tmp_path: Path, damage: str
) -> None:
    """Copied as it is, it would get a CRC of its own in the manifest."""
    path = Path(shutil.copytree(source, tmp_path / "damaged"))
    with closing(Queries(path / "metadata.sqlite")) as queries:
        runs = [
            run
            for key, _, _ in queries.heads()
            for run in queries.runs_from(key, 0, limit=99)
            if run.object_key and run.batch_count > 1
        ]
    run = runs[0]
    file = path / "objects" / run.object_key
    body = bytearray(file.read_bytes())
    if damage == "flip":
        body[run.position + 70] ^= 1
    else:
        # Another batch of the same place and size, with a right CRC.
        batch = memoryview(body)[run.position : run.position + run.length]
        header = stored_header(batch, 0)
        batch[header.length - 1] ^= 1
        batch[17:21] = crc32c(batch[CRC_FROM : header.length]).to_bytes(4, "big")
    file.write_bytes(body)
    to = memory_store(tmp_path)
    expected = "CRC-32C differs" if damage == "flip" else "their sum differs"
    with pytest.raises(CorruptDataError, match=f"{run.object_key} at byte .*{expected}"):
        copy_to(path, to)
    assert MANIFEST not in keys_of(to)
    assert run.object_key not in keys_of(to)


MANIFEST_VALUE = Manifest(
    version=1,
    cluster_id="c",
    position=3,
    created_ms=NOW,
    topics=1,
    objects=1,
    bytes=10,
    contents=[BackupObject(key=METADATA, bytes=10, crc32c=7)],
)


def test_a_manifest_is_read_as_it_was_written_and_any_change_is_refused() -> None:
    data = encode_manifest(MANIFEST_VALUE)
    assert decode_manifest(data) == MANIFEST_VALUE
    for at in range(len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 0x01
        try:
            # White space and the envelope's own names may change without changing the manifest.
            assert decode_manifest(bytes(changed)) == MANIFEST_VALUE
        except (CorruptDataError, InvalidRequestError):
            continue


def test_a_newer_releases_backup_is_refused_by_both_versions() -> None:
    newer = encode_manifest(
        Manifest(
            version=2,
            cluster_id="c",
            position=3,
            created_ms=NOW,
            topics=1,
            objects=0,
            bytes=0,
            contents=[],
        )
    )
    with pytest.raises(InvalidRequestError, match="backup version 2, this release knows 1"):
        decode_manifest(newer)


def test_clearing_scratch_removes_databases_alone(tmp_path: Path) -> None:
    for name in ("a.sqlite", "a.sqlite-wal", "b.partial", "note.txt"):
        (tmp_path / name).touch()
    clear_scratch(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_restored_directory_outlives_the_loss_of_its_database(tmp_path: Path) -> None:
    """Its state began with no entry: a restore leaves a snapshot of it beside."""
    run_rig(tmp_path / "data", fill)
    source = open_store(tmp_path / "backup")
    copy_to(tmp_path / "data", source)
    restored = tmp_path / "restored"
    restore_to(restored, source)
    shutil.copytree(restored, tmp_path / "unused")
    found: list[Any] = []

    async def look(rig: Rig) -> None:
        found.append(
            (
                rig.order.cluster_id,
                {
                    (topic.name, number): await rig.read_all(partition_key(topic.topic_key, number))
                    for topic in rig.view.topics()
                    for number in range(topic.partitions)
                },
            )
        )

    run_rig(restored, look)
    (restored / "metadata.sqlite").unlink()
    run_rig(restored, look)
    assert found[0] == found[1]
    assert any(found[0][1].values())
    assert not verify_path(restored).findings
    # Before its first start there is no entry that says how far it got: that is said, not guessed.
    (tmp_path / "unused" / "metadata.sqlite").unlink()
    with pytest.raises(CorruptDataError, match="it is missing, and no whole snapshot"):
        run_rig(tmp_path / "unused", look)
