"""What was cut or damaged gives no backup, and no directory that a server opens."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from crc32c import crc32c
from typing_extensions import Buffer

from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
)
from penstock.objects import open_store
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.records.batch import CRC_FROM, stored_header
from penstock.recovery.manifest import (
    MANIFEST,
)
from penstock.recovery.restore import is_unfinished
from penstock.state.orders import open_local_journal
from penstock.state.read.queries import Queries
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from penstock.wal import WalReader
from penstock.wal.format import FILE_HEADER_BYTES, generation_of
from support.backups import (
    copy_to,
    fill,
    keys_of,
    memory_store,
    restore_to,
    value_at,
)
from support.log_contents import contents, verify_path
from support.log_rig import NOW, run_rig
from support.simulated.clock import ManualClock


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


@pytest.mark.slow
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
        with pytest.raises(NotFoundError, match="was cut short" if puts else "there is no backup"):
            restore_to(restored, to)
        assert not (restored / "metadata.sqlite").exists()
        copy_to(source, to)
        restore_to(restored, to)
        assert contents(restored) == contents(source)
        puts += 1
    assert puts == 5, "marker, two segments, state, manifest"


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_destination_that_holds_something_is_left_alone(source: Path, tmp_path: Path) -> None:
    to = memory_store(tmp_path)
    copy_to(source, to)
    before = {key: value_at(to, key) for key in keys_of(to)}
    with pytest.raises(ConflictError, match="there is a backup already"):
        copy_to(source, to)
    assert {key: value_at(to, key) for key in keys_of(to)} == before
    own = open_store(source / "objects")
    with pytest.raises(ConflictError, match="objects that aren't a backup's"):
        copy_to(source, own)
    assert not verify_path(source).findings


@pytest.mark.slow
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


@pytest.mark.slow
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
        open_local_journal(database, clock=ManualClock(now_ms=NOW), random=SystemRandom())
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
    with pytest.raises(
        CorruptDataError,
        match=r"(t|trimmed)-\d offsets .* in WAL 0 generation \d+: the journal names .* no file",
    ):
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
    offsets = rf"t\w*-\d offsets {run.base_offset} to {run.end_offset - 1} in WAL"
    with pytest.raises(CorruptDataError, match=f"{offsets} .*CRC-32C differs"):
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
    with pytest.raises(
        CorruptDataError, match=rf"{run.object_key} at byte .*: t\w*-\d offset .*{expected}"
    ):
        copy_to(path, to)
    assert MANIFEST not in keys_of(to)
    assert run.object_key not in keys_of(to)
