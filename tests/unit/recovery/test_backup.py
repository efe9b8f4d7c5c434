"""A backup holds all that was acknowledged; restored, it equals the source and goes on."""

import asyncio
import base64
import json
import shutil
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.log.layout import DataLayout
from penstock.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.model.ids import PartitionKey, partition_key
from penstock.objects import open_store
from penstock.objects.origins import open_origins
from penstock.ports.objects import ObjectStore
from penstock.recovery.backup import back_up, clear_scratch
from penstock.recovery.cluster import restore_cluster, verify_cluster
from penstock.recovery.manifest import (
    INCOMPLETE,
    MANIFEST,
    METADATA,
    BackupObject,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from penstock.recovery.point_in_time import Moment
from penstock.recovery.restore import restore_backup
from penstock.recovery.stored_backup import read_manifest
from penstock.recovery.verify import VerifyReport
from penstock.state.answers import BatchStatus
from penstock.state.read.queries import Queries
from penstock.system.clock import SystemClock
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from penstock.wal import WalReader
from support.backups import (
    PRODUCER,
    copy_to,
    fill,
    folder_store,
    keys_of,
    memory_store,
    restore_to,
    whole,
)
from support.log_contents import contents, verify_path
from support.log_rig import NOW, Rig, run_rig
from support.restored_clusters import bucket_on_disk

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "backups"


@pytest.mark.slow
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
        assert rig.journal.cluster_id == manifest.cluster_id

    run_rig(restored, goes_on)
    assert verify_path(restored).ok


@pytest.mark.slow
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


@pytest.mark.slow
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
        await rig.log.let_queries_find()
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


@pytest.mark.slow
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
        await rig.log.let_queries_find()
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


MANIFEST_VALUE = Manifest(
    version=2,
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
            version=3,
            cluster_id="c",
            position=3,
            created_ms=NOW,
            topics=1,
            objects=0,
            bytes=0,
            contents=[],
        )
    )
    with pytest.raises(InvalidRequestError, match="backup version 3, this release knows 1 to 2"):
        decode_manifest(newer)


def test_clearing_scratch_removes_databases_alone(tmp_path: Path) -> None:
    for name in ("a.sqlite", "a.sqlite-wal", "b.partial", "note.txt"):
        (tmp_path / name).touch()
    clear_scratch(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


@pytest.mark.slow
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
                rig.journal.cluster_id,
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
    with pytest.raises(
        CorruptDataError, match="nothing says the order of what is there: snapshots"
    ):
        run_rig(tmp_path / "unused", look)


@pytest.mark.parametrize("version", [1, 2])
def test_a_backup_of_every_version_is_verified_and_restored(tmp_path: Path, version: int) -> None:
    """Those in tests/golden/backups were made by the code that introduced each version."""
    with tarfile.open(GOLDEN / f"version-{version}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    source = folder_store(tmp_path)
    assert asyncio.run(read_manifest(source)).version == version
    assert verified(tmp_path / "backup").findings == []
    restore_to(tmp_path / "restored", source)
    assert verify_path(tmp_path / "restored").findings == []
    expected = json.loads((GOLDEN / f"version-{version}.json").read_text())
    assert as_json(contents(tmp_path / "restored")) == expected


def as_json(value: Any) -> Any:
    """The value as the golden file has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return value


def inherit(bucket: Path, data: Path) -> None:
    """Make a data directory that reads its objects in a cluster's bucket."""
    data.mkdir()
    asyncio.run(
        restore_cluster(
            str(bucket),
            DataLayout(data),
            moment=Moment(),
            allow_loss=True,
            clock=SystemClock(),
            random=SystemRandom(),
        )
    )


def verified(backup: Path) -> VerifyReport:
    """What `penstock verify --objects` says of a backup."""
    return asyncio.run(
        verify_cluster(
            backup.as_uri(), journal="", name="", clock=SystemClock(), random=SystemRandom()
        )
    )


@pytest.mark.slow
def test_a_backup_needs_neither_the_volume_nor_the_bucket_of_its_source(tmp_path: Path) -> None:
    """A directory that reads what it inherited in a cluster's bucket, with records in its own WAL
    and objects, is backed up, and then both are deleted."""
    bucket, data = bucket_on_disk(tmp_path), tmp_path / "data"
    data.mkdir()
    asyncio.run(
        restore_cluster(
            str(bucket), DataLayout(data), moment=Moment(), allow_loss=True,
            clock=SystemClock(), random=SystemRandom(),
        )
    )  # fmt: skip
    held: dict[str, Any] = {}

    async def go_on(rig: Rig) -> None:
        (key,) = await rig.topic("own")
        await rig.append(key, b"in an object")
        await rig.drain()
        await rig.append(key, b"in the WAL")

    run_rig(data, go_on)
    to = folder_store(tmp_path)
    store = open_origins(open_store(data / "objects"), [bucket.as_uri()], open_store)
    manifest = copy_to(data, to, store=store)
    assert {entry.key.split("/")[0] for entry in manifest.contents} == {
        "archive", "origins", "segments",
    }  # fmt: skip
    with closing(Queries(data / "metadata.sqlite")) as queries:
        assert queries.origins() == [bucket.as_uri()]
        held["heads"] = queries.heads()
    for gone in (bucket, data):
        shutil.rmtree(gone)
    report = verified(tmp_path / "backup")
    assert report.findings == []
    assert report.records == sum(end - start for _, start, end in held["heads"])
    restored = tmp_path / "restored"
    restore_to(restored, to)
    assert not verify_path(restored).findings
    with closing(Queries(restored / "metadata.sqlite")) as queries:
        assert (queries.origins(), queries.heads()) == ([], held["heads"])

    async def read(rig: Rig) -> None:
        for key, start, end in held["heads"]:
            assert [offset for offset, _ in await rig.read_all(key)] == list(range(start, end))

    run_rig(restored, read)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["flip", "delete"])
def test_verify_names_what_is_damaged_in_a_backup(tmp_path: Path, what: str) -> None:
    """Each object of it, a byte that no run names too: a restore would refuse that one."""
    run_rig(tmp_path / "source", fill)
    to = folder_store(tmp_path)
    manifest = copy_to(tmp_path / "source", to)
    assert verified(tmp_path / "backup").ok
    for key in (*(entry.key for entry in manifest.contents), MANIFEST):
        path = tmp_path / "backup" / key
        intact = path.read_bytes()
        if what == "flip":
            path.write_bytes(intact[:-9] + bytes([intact[-9] ^ 1]) + intact[-8:])
        else:
            path.unlink()
        report = verified(tmp_path / "backup")
        if key == MANIFEST and what == "delete":
            # What is left is laid out as a cluster's bucket, and read as one.
            assert report.ok
            inherit(tmp_path / "backup", tmp_path / "looked")
            with closing(Queries(tmp_path / "looked" / "metadata.sqlite")) as queries:
                assert queries.cluster_id() != manifest.cluster_id
        else:
            assert not report.ok
            assert any(key in finding.subject for finding in report.findings), report.findings
        path.write_bytes(intact)
    (tmp_path / "backup" / INCOMPLETE).touch()
    (tmp_path / "backup" / MANIFEST).unlink()
    with pytest.raises(NotFoundError, match="has no manifest"):
        verified(tmp_path / "backup")
