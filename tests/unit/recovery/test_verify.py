"""Verify finds each kind of damage and names it, and calls nothing damaged that is whole."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from penstock.model.ids import partition_key
from penstock.objects import open_store
from penstock.recovery.verify import FindingKind, VerifyReport, verify
from penstock.segment import FOOTER_BYTES
from penstock.state.commands import DeleteTopic
from penstock.state.read.queries import Queries
from penstock.state.rows import StoredRun
from penstock.system.files import PosixDevice
from penstock.wal import WalReader
from support.log_rig import Rig, run_rig

BATCHES = 6
BATCH_RECORDS = 3


def report_of(path: Path) -> VerifyReport:
    """Verify a directory as the command does."""

    async def run() -> VerifyReport:
        device = PosixDevice(path)
        with (
            closing(Queries(path / "metadata.sqlite")) as queries,
            closing(WalReader(device)) as wal,
        ):
            store = open_store(path / "objects")
            return await verify(queries=queries, store=store, wal=wal, device=device)

    return asyncio.run(run())


def kinds(report: VerifyReport) -> set[FindingKind]:
    return {finding.kind for finding in report.findings}


def text(report: VerifyReport) -> str:
    return "\n".join(f"{f.kind.value} {f.subject}: {f.detail}" for f in report.findings)


async def fill(rig: Rig) -> None:
    """Two partitions: the first batches in a segment, the others in the WAL."""
    keys = await rig.topic("t", partitions=2)
    for number in range(BATCHES):
        for key in keys:
            await rig.append(key, *(b"%d-%d" % (number, n) * 20 for n in range(BATCH_RECORDS)))
        if number == BATCHES // 2 - 1:
            await rig.drain()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with records in a segment and in the WAL; tests damage a copy of it."""
    path = tmp_path_factory.mktemp("filled") / "data"
    run_rig(path, fill)
    return path


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "copy"))


def segment_of(data: Path) -> Path:
    (segment,) = (data / "objects" / "segments").rglob("*.seg")
    return segment


def wal_file(data: Path) -> Path:
    """The WAL file that the state names."""
    with closing(Queries(data / "metadata.sqlite")) as queries:
        generation = queries.wal_runs()[0].generation
    (found,) = (
        path
        for path in (data / "wal").glob("*.wal")
        if int.from_bytes(path.read_bytes()[8:16], "big") == generation
    )
    return found


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def change(data: Path, *statements: str) -> None:
    with closing(sqlite3.connect(data / "metadata.sqlite")) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount, statement
        connection.commit()


def test_a_directory_with_records_in_wal_and_segments_is_clean(filled: Path) -> None:
    report = report_of(filled)
    assert report.ok
    assert not report.findings, text(report)
    assert (report.topics, report.partitions, report.objects) == (1, 2, 1)
    assert report.batches == 2 * BATCHES
    assert report.records == 2 * BATCHES * BATCH_RECORDS
    with closing(Queries(filled / "metadata.sqlite")) as queries:
        assert report.bytes == sum(queries.partition_bytes(None).values())


@pytest.mark.slow
@pytest.mark.parametrize("drain", [False, True])
def test_a_directory_is_clean_after_trims_deletions_and_restarts(
    tmp_path: Path, *, drain: bool
) -> None:
    async def first(rig: Rig) -> None:
        await fill(rig)
        gone = await rig.topic("gone")
        await rig.append(gone[0], b"x")
        (kept, empty) = await rig.topic("kept", partitions=2)
        for _ in range(5):
            await rig.append(kept, b"a", b"b")
            await rig.append(empty, b"c")
        # In the middle of a run, and everything.
        assert await rig.log.delete_records([(kept, 3), (empty, -1)]) == [3, 5]
        topic = rig.view.topic("gone")
        assert topic is not None
        await rig.log.commit([DeleteTopic(topic_id=bytes(topic.topic_id))])

    async def second(rig: Rig) -> None:
        topic = rig.view.topic("kept")
        assert topic is not None
        with closing(Queries(rig.path / "metadata.sqlite")) as queries:
            report = await verify(
                queries=queries,
                store=rig.store,
                wal=rig.wal_reader,
                device=PosixDevice(rig.path),
            )
        assert not [f for f in report.findings if f.is_damage], text(report)

    run_rig(tmp_path, first, drain=drain)
    assert report_of(tmp_path).ok, text(report_of(tmp_path))
    run_rig(tmp_path, second, drain=drain)
    report = report_of(tmp_path)
    assert report.ok, text(report)
    assert report.topics == 2


def test_what_was_deleted_of_a_run_is_not_counted(tmp_path: Path) -> None:
    """A run of two batches is whole on disk though the log starts at its second one."""

    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        for number in range(2):
            await rig.append(key, *(b"%d" % n for n in range(number, number + BATCH_RECORDS)))
        await rig.drain()
        await rig.log.delete_records([(key, BATCH_RECORDS)])

    run_rig(tmp_path / "data", test)
    report = report_of(tmp_path / "data")
    assert not report.findings, text(report)
    assert (report.runs, report.batches, report.records) == (1, 1, BATCH_RECORDS)


def test_an_empty_directory_is_clean(tmp_path: Path) -> None:
    async def nothing(rig: Rig) -> None:
        await rig.topic("t")

    run_rig(tmp_path, nothing)
    assert not report_of(tmp_path).findings


def in_segment_data(data: Path) -> None:
    flip(segment_of(data), 200)


def in_segment_header(data: Path) -> None:
    flip(segment_of(data), 3)


def in_index(data: Path) -> None:
    segment = segment_of(data)
    flip(segment, segment.stat().st_size - FOOTER_BYTES - 5)


def in_footer(data: Path) -> None:
    segment = segment_of(data)
    flip(segment, segment.stat().st_size - 10)


def truncated(data: Path) -> None:
    segment = segment_of(data)
    segment.write_bytes(segment.read_bytes()[:-100])


@pytest.mark.parametrize(
    "damage", [in_segment_data, in_segment_header, in_index, in_footer, truncated]
)
def test_damage_of_a_segment_is_named(data: Path, damage: Callable[[Path], None]) -> None:
    damage(data)
    report = report_of(data)
    assert not report.ok
    assert kinds(report) == {FindingKind.DAMAGED}, text(report)
    assert segment_of(data).name in text(report)


@pytest.mark.slow
def test_every_bit_of_a_run_in_a_segment_counts(data: Path) -> None:
    """Base offset, length and leader epoch lie outside a batch's CRC, and are checked against the
    state."""
    with closing(Queries(data / "metadata.sqlite")) as queries:
        key = queries.heads()[0][0]
        (run,) = queries.runs_from(key, 0, limit=1)
        assert run.object_key
    segment = segment_of(data)
    intact = segment.read_bytes()
    for at in range(run.position, run.position + 100):
        flip(segment, at)
        report = report_of(data)
        assert kinds(report) == {FindingKind.DAMAGED}, at
        segment.write_bytes(intact)


def test_a_missing_object_is_named(data: Path) -> None:
    segment = segment_of(data)
    segment.unlink()
    report = report_of(data)
    assert kinds(report) == {FindingKind.MISSING}
    assert segment.name in text(report)
    assert any(finding.subject.startswith("t-0 offsets 0 to 8") for finding in report.findings)


def test_an_orphan_is_listed_and_is_no_damage(data: Path) -> None:
    segment = segment_of(data)
    shutil.copy(segment, segment.with_name("7-7-7.seg"))
    report = report_of(data)
    assert report.ok
    assert kinds(report) == {FindingKind.ORPHAN}
    assert "7-7-7.seg" in text(report)


@pytest.mark.parametrize("position", [4096, 4096 + 10, 4096 + 40, 4096 + 150, 512 * 9 + 20])
def test_a_flipped_bit_in_the_wal_is_named(data: Path, position: int) -> None:
    path = wal_file(data)
    # The first frames of the file were moved to the segment; recovery still walks over them.
    flip(path, position)
    report = report_of(data)
    assert not report.ok
    assert kinds(report) == {FindingKind.DAMAGED}, text(report)
    assert f"wal/{path.name} at byte" in text(report)


def test_a_flipped_bit_in_a_batch_of_the_wal_names_its_offsets(data: Path) -> None:
    with closing(Queries(data / "metadata.sqlite")) as queries:
        run = queries.wal_runs()[-1]
    flip(wal_file(data), run.position + run.length - 3)
    report = report_of(data)
    name = f"offsets {run.base_offset} to {run.end_offset - 1} in WAL generation {run.generation}"
    assert name in text(report)
    assert "CRC-32C differs" in text(report)


def test_a_missing_wal_file_is_named(data: Path) -> None:
    with closing(Queries(data / "metadata.sqlite")) as queries:
        generation = queries.wal_runs()[0].generation
    wal_file(data).unlink()
    report = report_of(data)
    assert kinds(report) == {FindingKind.MISSING}
    assert f"WAL generation {generation}: the journal names it, but no file has it" in text(report)


def test_a_gap_an_overlap_and_a_wrong_end_are_named(data: Path) -> None:
    """Rows changed behind the state machine's back."""
    change(data, "DELETE FROM wal_runs WHERE base_offset = 12 AND partition_key & 1 = 0")
    assert "gap t-0: offsets 12 to 14 have no run" in text(report_of(data))
    change(
        data,
        "UPDATE wal_runs SET base_offset = 13 WHERE base_offset = 15 AND partition_key & 1 = 0",
    )
    found = text(report_of(data))
    assert "overlap" not in found
    assert "t-0: offsets 12 to 12 have no run" in found
    change(data, "UPDATE wal_runs SET end_offset = 20 WHERE base_offset = 13")
    assert "the high watermark is 18" in text(report_of(data))


def test_an_overlap_is_named(data: Path) -> None:
    change(data, "UPDATE wal_runs SET end_offset = 14 WHERE base_offset = 9")
    found = text(report_of(data))
    assert "overlap t-0: a run begins at offset 12 where 14 is due" in found
    assert "overlap t-1" in found


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE partitions SET bytes = bytes + 1", "its row says"),
        ("UPDATE partitions SET next_offset = next_offset + 2", "offsets 18 to 19 have no run"),
        ("UPDATE partitions SET next_offset = next_offset - 1", "the high watermark is 17"),
        ("UPDATE objects SET live_runs = 5", "2 runs name it, its row counts 5"),
        ("UPDATE objects SET bytes = bytes - 1", "the journal says"),
        ("UPDATE object_runs SET length = length - 1", "at byte"),
        ("UPDATE object_runs SET batch_count = batch_count - 1", "3 batches, the journal names 2"),
        ("UPDATE wal_runs SET position = position + 1 WHERE base_offset = 15", "t-0 offsets 15"),
        ("UPDATE topics SET partitions = 3", "t-2: the partition has no row"),
        ("DELETE FROM topics", "its topic has no row"),
    ],
)
def test_a_row_that_disagrees_with_others_or_the_bytes_is_named(
    data: Path, statement: str, expected: str
) -> None:
    change(data, statement)
    report = report_of(data)
    assert not report.ok
    assert expected in text(report)


@pytest.mark.parametrize("page", [1, 3, 8])
def test_a_damaged_page_of_the_database_is_named(data: Path, page: int) -> None:
    database = data / "metadata.sqlite"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    content = bytearray(database.read_bytes())
    content[page * 4096 : page * 4096 + 400] = b"\xa5" * 400
    database.write_bytes(content)
    report = report_of(data)
    assert not report.ok
    assert FindingKind.DATABASE in kinds(report)


@pytest.mark.slow
async def test_a_live_log_is_clean_while_runs_move_and_files_are_recycled(rig: Rig) -> None:
    keys = await rig.topic("t", partitions=3)
    ended = False

    async def load() -> None:
        number = 0
        while not ended:
            await rig.append(keys[number % 3], bytes(20_000), b"%d" % number)
            number += 1
            if number % 20 == 0:
                await rig.drain()
            if number % 50 == 0:
                await rig.log.delete_records([(keys[0], -1)])

    task = asyncio.create_task(load())
    queries = Queries(rig.path / "metadata.sqlite")
    try:
        while rig.log.uploader.segment_count < 5:
            report = await verify(
                queries=queries,
                store=rig.store,
                wal=rig.wal_reader,
                device=PosixDevice(rig.path),
            )
            assert report.ok, text(report)
    finally:
        ended = True
        await task
        queries.close()


# -- whole batches in the wrong place: with their CRCs, offsets that are due, and labels ----------


async def _own(rig: Rig, *, salt: str = "") -> None:
    """Two partitions with records of one length and one time, in two segments each."""
    topic = rig.view.topic("t")
    if topic is None:
        keys = await rig.topic("t", partitions=2)
    else:
        keys = [partition_key(topic.topic_key, number) for number in range(2)]
    for number in range(4):
        for key in keys:
            await rig.append(key, b"%d of %d %4s" % (number, key & 1, salt.encode()))
        if number % 2:
            await rig.drain()


def _runs(data: Path) -> list[StoredRun]:
    with closing(Queries(data / "metadata.sqlite")) as queries:
        found = []
        for key, _, _ in queries.heads():
            found += [run for run in queries.runs_from(key, 0, limit=99) if run.object_key]
        return found


def _object_of(data: Path, run: StoredRun) -> Path:
    return data / "objects" / run.object_key


def test_two_runs_in_one_anothers_place_are_damage(tmp_path: Path) -> None:
    """Of two partitions, in one object: their batches have the same offsets and lengths."""
    data = tmp_path / "data"
    run_rig(data, _own)
    assert report_of(data).ok
    runs = _runs(data)
    first = runs[0]
    (second,) = (run for run in runs[1:] if run.object_key == first.object_key)
    assert (first.base_offset, first.length) == (second.base_offset, second.length)
    content = bytearray(_object_of(data, first).read_bytes())
    ours, theirs = (slice(run.position, run.position + run.length) for run in (first, second))
    content[ours], content[theirs] = content[theirs], content[ours]
    _object_of(data, first).write_bytes(content)
    findings = report_of(data).findings
    assert [finding.kind for finding in findings] == [FindingKind.DAMAGED] * 2
    assert [finding.subject.partition(" in ")[0] for finding in findings] == [
        "t-0 offsets 0 to 1",
        "t-1 offsets 0 to 1",
    ]
    assert all("sum differs" in finding.detail for finding in findings)


@pytest.mark.slow
def test_another_historys_object_under_the_key_is_damage(tmp_path: Path) -> None:
    """Of a copy of the directory that went its own way: same topic, same offsets, same lengths."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run_rig(ours, _own)
    shutil.copytree(ours, theirs)
    run_rig(ours, partial(_own, salt="a"))
    run_rig(theirs, partial(_own, salt="b"))
    (mine, other) = (_runs(data)[-1] for data in (ours, theirs))
    assert (mine.base_offset, mine.length, mine.object_bytes) == (
        other.base_offset,
        other.length,
        other.object_bytes,
    )
    assert report_of(ours).ok
    shutil.copyfile(_object_of(theirs, other), _object_of(ours, mine))
    assert "sum differs" in text(report_of(ours))


def test_a_run_of_an_older_release_has_no_sum_and_is_clean(filled: Path, data: Path) -> None:
    change(data, "UPDATE object_runs SET sum = NULL", "UPDATE wal_runs SET sum = NULL")
    assert report_of(data).findings == report_of(filled).findings == []


@pytest.mark.parametrize("table", ["object_runs", "wal_runs"])
def test_a_sum_that_is_not_its_batches_is_named(data: Path, table: str) -> None:
    """A flipped cell of the database, or what the journal named was another batch."""
    change(data, f"UPDATE {table} SET sum = sum + 1 WHERE partition_key & 1 = 0")
    report = report_of(data)
    assert kinds(report) == {FindingKind.DAMAGED}
    assert text(report).count("sum differs") == {"object_runs": 1, "wal_runs": 3}[table]
