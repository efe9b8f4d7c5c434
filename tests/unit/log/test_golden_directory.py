"""A data directory of every format version opens today; one of a newer release is refused.

The directories are made by tests/golden/data/make.py, once per version.
"""

import importlib.util
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.model.ids import partition_key
from penstock.recovery.verify import Finding
from penstock.segment import FOOTER_BYTES, parse_job_key
from penstock.state.answers import BatchStatus
from penstock.state.orders import open_local_journal
from penstock.state.read.queries import Queries
from penstock.state.schema import FORMAT_VERSION, OLDEST_VERSION
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from penstock.wal import entries_after
from support.log_contents import contents, verify_path
from support.log_rig import NOW, Rig, run_rig
from support.simulated.clock import ManualClock

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "data"
ARCHIVES = sorted(GOLDEN.glob("version-*.tar.gz"))


def make_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_golden_data", GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = make_module()


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "data"


@pytest.fixture(params=ARCHIVES, ids=[path.name.split(".")[0] for path in ARCHIVES])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of a golden directory, and what must be read from it."""
    archive: Path = request.param
    expected = json.loads((GOLDEN / archive.name.replace(".tar.gz", ".json")).read_text())
    return unpacked(archive, tmp_path), expected


def test_there_is_one_per_version_and_they_are_small() -> None:
    assert [path.name for path in ARCHIVES] == [
        f"version-{version}.tar.gz" for version in range(OLDEST_VERSION, FORMAT_VERSION + 1)
    ]
    assert sum(path.stat().st_size for path in GOLDEN.iterdir() if path.is_file()) < 420 << 10


def test_what_jobs_left_in_version_4_is_known(tmp_path: Path) -> None:
    data = unpacked(GOLDEN / "version-4.tar.gz", tmp_path)

    async def test(rig: Rig) -> None:
        queries = rig.queries()
        writer = queries.writer("golden-writer")
        assert writer is not None
        assert writer.batch_id == 3
        assert [(row.table, row.offsets) for row in queries.table_rows()] == [
            ("golden.plain", {0: 7})
        ]
        assert [job.last_n for job in queries.pipeline_jobs()] == [1]
        jobs = [row for row in queries.objects("", 99) if parse_job_key(row.key)]
        assert [(row.live_runs, row.raw) for row in jobs] == [(1, 2), (1, 0)]

    run_rig(data, test)


def test_the_leader_epochs_of_version_4_are_known(tmp_path: Path) -> None:
    data = unpacked(GOLDEN / "version-4.tar.gz", tmp_path)
    expected = json.loads((GOLDEN / "version-4.json").read_text())["records"]

    async def test(rig: Rig) -> None:
        assert rig.view.leader_epoch == 1
        (late, written) = (rig.view.topic(name) for name in ("late", "written"))
        assert late is not None
        assert written is not None
        for topic in rig.view.topics():
            starts = rig.view.epoch_starts(partition_key(topic.topic_key, 0))
            if topic in (late, written):
                assert starts == ((1, 0),)
            else:
                end = expected[f"{topic.name}-0"]["high_watermark"]
                assert starts == ((0, 0), (1, end)), topic.name
        assert max(row.raw for row in rig.queries().objects("", 99)) == 2

    run_rig(data, test)


@pytest.mark.slow
def test_everything_is_read_as_it_was_written(golden: tuple[Path, dict[str, Any]]) -> None:
    data, expected = golden
    assert not verify_path(data).findings
    assert MAKE.as_json(contents(data)) == expected["contents"]
    with closing(Queries(data / "metadata.sqlite")) as queries:
        assert queries.wal_runs(), "some of it lies in the WAL"

    async def test(rig: Rig) -> None:
        assert await MAKE.read(rig) == expected["records"]
        assert rig.journal.cluster_id == expected["cluster_id"]
        assert rig.journal.agent_id == expected["agent_id"]

    run_rig(data, test)
    assert not verify_path(data).findings


@pytest.mark.slow
def test_it_goes_on_from_there(golden: tuple[Path, dict[str, Any]]) -> None:
    data, expected = golden

    async def test(rig: Rig) -> None:
        topic = rig.view.topic("plain")
        assert topic is not None
        key = partition_key(topic.topic_key, 0)
        end = expected["records"]["plain-0"]["high_watermark"]
        again = await rig.append(key, b"sequence", producer=(*MAKE.PRODUCER, 11))
        assert (again.status, again.base_offset) == (BatchStatus.DUPLICATE, end - 1)
        following = await rig.append(key, b"more", producer=(*MAKE.PRODUCER, 12))
        assert (following.status, following.base_offset) == (BatchStatus.STORED, end)
        await rig.drain()
        await rig.upkeep.snapshot()
        rig.forget_memory()
        assert (await rig.read_all(key))[-1] == (end, b"more")

    run_rig(data, test)
    assert not verify_path(data).findings


def open_order(data: Path) -> None:
    clock = ManualClock(now_ms=NOW)
    open_local_journal(data / "metadata.sqlite", clock=clock, random=SystemRandom()).close()


def test_a_newer_releases_database_is_refused_by_both_versions(tmp_path: Path) -> None:
    data = unpacked(ARCHIVES[-1], tmp_path)
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    words = f"format version {FORMAT_VERSION + 1}, this release knows {FORMAT_VERSION}"
    with pytest.raises(InvalidRequestError, match=words):
        open_order(data)
    with pytest.raises(InvalidRequestError, match=words):
        verify_path(data)


def found(data: Path) -> list[Finding]:
    return verify_path(data).findings


def test_what_the_database_lacks_is_in_the_wal(tmp_path: Path) -> None:
    data = unpacked(ARCHIVES[-1], tmp_path)
    expected = json.loads((GOLDEN / "version-5.json").read_text())
    with closing(Queries(data / "metadata.sqlite")) as queries:
        position = queries.position()
        assert "late" not in {topic.name for topic in queries.topic_rows()}
    tail = list(entries_after(PosixDevice(data), position, sync=False))
    assert [entry.position for entry in tail] == list(range(position + 1, position + 5))
    late = expected["records"]["plain-1"]["records"][-3:]
    assert [value for _, value in late] == ["late 0", "late 1", "late 2"]


@pytest.mark.parametrize(("version", "crc_at"), [(3, 52), (1, 36)])
def test_another_versions_wal_is_refused_by_both_versions(
    tmp_path: Path, version: int, crc_at: int
) -> None:
    data = unpacked(ARCHIVES[-1], tmp_path)
    with closing(Queries(data / "metadata.sqlite")) as queries:
        named = {run.generation for run in queries.wal_runs()}
    for path in (data / "wal").glob("*.wal"):
        content = bytearray(path.read_bytes())
        if int.from_bytes(content[8:16], "big") in named:
            # The first frame: magic, then the version; its own CRC is right.
            content[4096 + 4] = version
            end = 4096 + crc_at
            content[end : end + 4] = crc32c(content[4096:end]).to_bytes(4, "big")
            path.write_bytes(content)

    async def nothing(_: Rig) -> None:
        pass

    said = f"version {version}, this release knows version 2"
    with pytest.raises(CorruptDataError, match=said):
        run_rig(data, nothing)
    assert {said in finding.detail for finding in found(data)} == {True}


def test_a_newer_releases_segment_is_refused_by_both_versions(tmp_path: Path) -> None:
    data = unpacked(ARCHIVES[-1], tmp_path)
    path = min((data / "objects" / "segments").rglob("*.seg"))
    content = bytearray(path.read_bytes())
    # docs/formats/segment.md, footer: the version, and the CRC-32C of what is before it.
    footer = len(content) - FOOTER_BYTES
    content[footer + 24] += 1
    content[footer + 32 : footer + 36] = crc32c(content[footer : footer + 32]).to_bytes(4, "big")
    path.write_bytes(content)
    (finding,) = verify_path(data).findings
    assert path.name in finding.subject
    assert "version 2, this release knows 1" in finding.detail


def test_the_script_keeps_what_is_there() -> None:
    with pytest.raises(SystemExit, match="made once"):
        MAKE.main()
