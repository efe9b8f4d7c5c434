"""What was appended is found at once, though the database follows later; and after a crash too."""

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from penstock.log.append import lane
from penstock.log.fetch.reader import LogReader, Missing
from penstock.log.layout import DataLayout
from penstock.model.errors import StorageFullError
from penstock.model.ids import PartitionKey
from penstock.objects import open_store
from penstock.recovery.directory import back_up, restore
from penstock.recovery.verify import FindingKind
from penstock.state.answers import BatchStatus
from penstock.state.read.queries import Queries
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from penstock.wal import entries_after
from support.log_contents import contents, verify_path
from support.log_rig import NOW, Rig, run_rig
from support.simulated.clock import ManualClock


@pytest.fixture(autouse=True)
def far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database follows only when it is asked to."""
    monkeypatch.setattr(lane, "BEHIND_S", 3600.0)


async def appended(rig: Rig, count: int = 5) -> PartitionKey:
    (key,) = await rig.topic("t")
    for number in range(count):
        await rig.append(key, b"%d" % number)
    assert rig.log._queries.is_behind
    assert rig.queries().runs_from(key, 0, limit=9) == []
    return key


EXPECTED = [(number, b"%d" % number) for number in range(5)]


async def test_a_read_past_the_tail_cache_waits_for_the_database(rig: Rig) -> None:
    key = await appended(rig)
    rig.forget_memory()
    assert rig.log.read(key, 0, 1000, may_load=False) is None
    found = rig.log.read(key, 0, 1000)
    assert isinstance(found, Missing)
    assert rig.log.read(key, 2, 1000) == found, "one flush for all"
    assert await rig.read_all(key) == EXPECTED
    assert not rig.log._queries.is_behind


async def test_a_look_up_by_time_finds_the_newest_record(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    for number in range(4):
        await rig.append(key, b"x", timestamp=NOW + 1000 * number)
        assert await rig.log.offset_for_time(key, NOW + 1000 * number) == (
            number,
            NOW + 1000 * number,
        )
        await rig.append(key, b"x", timestamp=NOW)
        found = await rig.log.offset_of_max_timestamp(key)
        assert found == (2 * number, NOW + 1000 * number)
        break
    await rig.log.let_queries_find()
    assert rig.log.partition_bytes([key])[key] > 0


async def test_an_upload_moves_what_the_database_lacks(rig: Rig) -> None:
    key = await appended(rig)
    await rig.drain()
    assert [run.generation for run in rig.queries().runs_from(key, 0, limit=9)] == [0]
    rig.forget_memory()
    assert await rig.read_all(key) == EXPECTED


async def test_whoever_waited_for_a_command_finds_it_in_the_database(rig: Rig) -> None:
    await appended(rig)
    await rig.topic("u")
    assert not rig.log._queries.is_behind
    assert len(rig.queries().topic_rows()) == 2


@pytest.mark.slow
async def test_a_database_that_finds_no_space_is_caught_up_later(rig: Rig) -> None:
    key = await appended(rig)
    connection = rig.journal._replica._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    with pytest.raises(StorageFullError):
        for number in range(2000):
            await rig.append(key, b"more %d" % number)
            if number % 100 == 0:
                await rig.log.let_queries_find()
    end = rig.log.high_watermark(key)
    connection.execute("PRAGMA max_page_count = 1000000").fetchall()
    await rig.log.let_queries_find()
    assert not rig.log._queries.is_behind
    rig.forget_memory()
    assert len(await rig.read_all(key)) == end


def crashed(folder: Path) -> Path:
    """A directory as a killed process leaves it: the database lacks what was appended."""

    async def test(rig: Rig) -> None:
        key = await appended(rig, 3)
        await rig.log.let_queries_find()
        for number in range(3, 5):
            await rig.append(key, b"%d" % number)
        # Without a file that is being made, which may get its name meanwhile.
        shutil.copytree(rig.path, folder / "crashed", ignore=shutil.ignore_patterns("*.new"))

    run_rig(folder / "data", test)
    return folder / "crashed"


@pytest.mark.slow
def test_a_start_applies_what_the_database_lacks(tmp_path: Path) -> None:
    data = crashed(tmp_path)
    report = verify_path(data)
    assert not report.findings
    assert (report.unapplied_entries, report.unapplied_in_wal, report.records) == (2, 2, 3)
    told = CliRunner().invoke(root, ["verify", "--data", str(data)])
    assert "the last 2 of the journal's entries yet (2 of them are only in" in told.output
    assert (
        json.loads(CliRunner().invoke(root, ["verify", "--data", str(data), "--json"]).stdout)[
            "unapplied_entries"
        ]
        == 2
    )
    with closing(Queries(data / "metadata.sqlite")) as queries:
        position = queries.position()
        assert sum(end for _, _, end in queries.heads()) == 3
    assert len(list(entries_after(PosixDevice(data), position, sync=False))) == 2

    async def test(rig: Rig) -> None:
        (topic,) = rig.view.topics()
        key = PartitionKey(topic.topic_key << 20)
        assert await rig.read_all(key) == EXPECTED
        again = await rig.append(key, b"5")
        assert (again.status, again.base_offset) == (BatchStatus.STORED, 5)

    run_rig(data, test)
    run_rig(data, lambda rig: asyncio.sleep(0), drain=True)
    report = verify_path(data)
    assert not report.findings
    assert not report.unapplied_entries
    told = CliRunner().invoke(root, ["verify", "--data", str(data)])
    assert "not in the database" not in told.output


@pytest.mark.slow
def test_a_backup_without_a_server_holds_what_the_database_lacks(tmp_path: Path) -> None:
    data = crashed(tmp_path)
    layout = DataLayout(data)

    async def make() -> None:
        with ThreadPoolExecutor(1) as pool:
            await back_up(
                layout,
                str(tmp_path / "backup"),
                store=open_store(layout.objects),
                pool=pool,
                clock=ManualClock(now_ms=NOW),
                random=SystemRandom(),
            )
        restored.root.mkdir()
        await restore(
            str(tmp_path / "backup"),
            restored,
            clock=ManualClock(now_ms=NOW),
            random=SystemRandom(),
        )

    restored = DataLayout(tmp_path / "restored")
    before = contents(data)
    asyncio.run(make())
    assert contents(data) == before, "the source is only read"
    with closing(Queries(restored.metadata)) as queries:
        assert [end for _, _, end in queries.heads()] == [5]
    assert not verify_path(restored.root).findings


def is_frame_of(header: bytes, position: int) -> bool:
    return header[:4] == b"PFRM" and int.from_bytes(header[36:44], "big") == position


def test_verify_names_damage_in_what_the_database_lacks(tmp_path: Path) -> None:
    data = crashed(tmp_path)
    with closing(Queries(data / "metadata.sqlite")) as queries:
        position = queries.position()
    path, at = next(
        (path, at)
        for path in (data / "wal").glob("*.wal")
        for at in range(4096, path.stat().st_size, 512)
        if is_frame_of(path.read_bytes()[at : at + 56], position + 1)
    )
    content = bytearray(path.read_bytes())
    content[at + 60] ^= 1
    path.write_bytes(content)
    (finding,) = verify_path(data).findings
    assert finding.kind is FindingKind.DAMAGED
    assert f"at byte {at}" in finding.subject


class CaughtUpMeanwhile:
    """A database that lacks what was appended when it is asked, and no more right after."""

    def __init__(self) -> None:
        self.is_behind = True
        self.flushed = False

    def runs_from(self, *_: Any, **__: Any) -> list[Any]:
        self.is_behind = False
        return []

    async def flush(self) -> None:
        self.flushed = True


@pytest.mark.parametrize("read", [LogReader.read, LogReader.read_parts])
async def test_what_a_commit_brings_during_a_look_is_looked_for_again(
    rig: Rig, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = await rig.topic("t", 1)
    reader, behind = rig.log.reader, CaughtUpMeanwhile()
    monkeypatch.setattr(reader, "_queries", behind)
    monkeypatch.setattr(reader, "_behind", behind)
    found = read(reader, key, 0, 1 << 20)
    assert isinstance(found, Missing)
    await found.load
    assert behind.flushed
