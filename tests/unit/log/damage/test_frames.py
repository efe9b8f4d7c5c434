"""A WAL that was damaged while no server ran: the start names what is hit, and serves the rest."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.log.damage.frames import REFRESH_S, DamagedFrames
from penstock.log.findings import DamagedError, DamageKind
from penstock.model.errors import CorruptDataError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.replica.journal_format import (
    ALIGNMENT,
    BLOCK_HEADER_BYTES,
    align,
    decode_block_header,
)
from penstock.state.answers import Done
from penstock.state.commands import Fence
from penstock.system.files import PosixDevice
from penstock.wal.recovery import find_files
from support.cluster_rig import Cluster, ClusterAgent, passing
from support.log_rig import FILE_BYTES, Rig, run_rig
from support.rot import consume, flip, read_views, runs_of, wal_path

FRAMES = 5
VALUE = b"v" * 1000
STILL = 1 << 40


def values(first: int, end: int) -> list[tuple[int, bytes | None]]:
    return [(number, VALUE) for number in range(first, end)]


def a_wal(path: Path) -> tuple[PartitionKey, PartitionKey, Path]:
    """A stopped log whose WAL file holds frames of two partitions in turn, and nothing moved."""
    kept: list[tuple[PartitionKey, PartitionKey, Path]] = []

    async def fill(rig: Rig) -> None:
        first, second = await rig.topic("t", 2)
        for _ in range(FRAMES):
            await rig.append(first, VALUE)
            await rig.append(second, VALUE)
        await rig.log.let_queries_find()
        kept.append((first, second, wal_path(rig, runs_of(rig, first)[0])))

    run_rig(path, fill, segment_age_ms=STILL)
    return kept[0]


async def looked(rig: Rig) -> None:
    """Wait until the start has read what it found damaged."""
    await until(rig, lambda: bool(rig.log.damages.known()))


async def until(rig: Rig, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await rig.log.reads.checks.in_pool(lambda: None)


@pytest.mark.slow
def test_a_damaged_record_is_named_at_the_start_and_all_else_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, path = a_wal(tmp_path)

    async def test(rig: Rig) -> None:
        run = runs_of(rig, first)[2]
        (found,) = rig.log.damaged_frames.status()
        assert (found["file"], found["generation"]) == (f"wal/{path.name}", run.generation)
        assert found["start"] < run.position < found["end"]
        assert rig.log.damaged_frames.count == 1
        await looked(rig)
        (damage,) = rig.log.damages.known()
        assert (damage.kind, damage.start, damage.end) == (DamageKind.DAMAGED_WAL, 2, 3)
        assert f"wal/{path.name} bytes {found['start']} to" in caplog.text
        assert "in it lie t-0 offsets 2 to 2" in caplog.text
        rows, error = await consume(rig, first, read_views)
        assert rows == values(0, 2)
        assert isinstance(error, DamagedError)
        assert await consume(rig, second, read_views) == (values(0, FRAMES), None)
        assert await rig.read_all(first, 3) == values(3, FRAMES), "the frames behind it"
        # It goes on elsewhere, and what is right is moved.
        before = path.read_bytes()
        await rig.append(second, VALUE)
        assert not await rig.log.uploader.drain(10)
        assert rig.log.uploader.damaged_bytes == rig.log.uploader.pending_bytes == run.length
        assert [one for one in runs_of(rig, first) if one.generation] == [run]
        assert path.read_bytes() == before
        assert f"wal/{path.name}" not in rig.wal._pool._free
        # Given up, it holds nothing any more.
        (report,) = await rig.log.damage_repair.accept_loss()
        assert (report.state, report.lost) == ("lost", [(2, 3)])
        # So the status forgets it, long before the next look that is due anyhow.
        async with asyncio.timeout(REFRESH_S / 4):
            while rig.log.damaged_frames.count:
                await asyncio.sleep(0.05)
        rig.clock.advance(3700)
        await rig.drain()
        await rig.log.uploader._release()
        assert f"wal/{path.name}" in rig.wal._pool._free
        await rig.append(first, VALUE)
        rig.forget_memory()
        assert await rig.read_all(first) == [*values(0, 2), *values(3, FRAMES + 1)]

    run = Path(path)
    position = run.read_bytes().index(VALUE, _position(tmp_path, first, 2))
    flip(path, position + 500)
    run_rig(tmp_path, test, segment_age_ms=STILL)

    async def settled(rig: Rig) -> None:
        assert not rig.log.damaged_frames.count
        assert await rig.read_all(first) == [*values(0, 2), *values(3, FRAMES + 1)]

    run_rig(tmp_path, settled, segment_age_ms=STILL)


def _position(path: Path, key: PartitionKey, offset: int) -> int:
    """Where the run that begins at an offset lies in its file."""
    found: list[int] = []

    async def look(rig: Rig) -> None:
        found.extend(run.position for run in runs_of(rig, key) if run.base_offset == offset)

    run_rig(path, look, segment_age_ms=STILL)
    return found[0]


@pytest.mark.parametrize("name", ["frame header", "file header", "entry", "all headers"])
def test_what_hits_no_record_costs_none(tmp_path: Path, name: str) -> None:
    """The journal has the entries, and no read needs a frame: records that are right are served."""
    first, second, path = a_wal(tmp_path)
    at = _position(tmp_path, first, 2)
    whole = path.read_bytes()
    match name:
        case "frame header":
            flip(path, at - 40)
        case "file header":
            flip(path, 10)
        case "entry":
            flip(path, whole.index(VALUE, at) + len(VALUE) + 3)
        case _:
            for start in range(4096, len(whole), 512):
                if whole[start : start + 4] == b"PFRM":
                    flip(path, start)

    async def test(rig: Rig) -> None:
        counts = {"file header": 0, "all headers": 1}
        assert rig.log.damaged_frames.count == counts.get(name, 1)
        for key in (first, second):
            assert await consume(rig, key, read_views) == (values(0, FRAMES), None)
        await rig.drain()
        assert not [run for key in (first, second) for run in runs_of(rig, key) if run.generation]
        assert not rig.log.damages.known()

    run_rig(tmp_path, test, segment_age_ms=STILL)


def cut(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.truncate(at)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "left"),
    [
        (lambda path, _: path.unlink(), 0),
        (cut, 2),
        (lambda path, _: cut(path, 20), 0),
        (lambda path, at: path.write_bytes(path.read_bytes()[:at] + bytes(FILE_BYTES - at)), 2),
    ],
    ids=["missing", "cut", "cut in its header", "zeros from a frame on"],
)
def test_a_file_that_is_missing_or_cut_costs_what_is_not_there(
    tmp_path: Path, spoil: Callable[[Path, int], None], left: int
) -> None:
    first, second, path = a_wal(tmp_path)
    spoil(path, _position(tmp_path, first, left) - 56)

    async def test(rig: Rig) -> None:
        await looked(rig)
        for key in (first, second):
            rows, error = await consume(rig, key, read_views)
            assert rows == values(0, left)
            assert isinstance(error, DamagedError), "never an error that is tried again for ever"
            assert error.damage.start == left
            with pytest.raises(DamagedError):
                await rig.read_all(key, FRAMES - 1)
            await rig.append(key, VALUE)
        rig.forget_memory()
        assert await rig.read_all(first, FRAMES) == values(FRAMES, FRAMES + 1)
        assert not await rig.log.uploader.drain(10)
        for report in await rig.log.damage_repair.accept_loss():
            assert report.state == "lost", report
        for key in (first, second):
            rows, error = await consume(rig, key, read_views)
            assert (rows, error) == ([*values(0, left), *values(FRAMES, FRAMES + 1)], None)

    run_rig(tmp_path, test, segment_age_ms=STILL)

    async def again(rig: Rig) -> None:
        assert not rig.log.damaged_frames.count
        assert not rig.wal.recovery.lost

    run_rig(tmp_path, again, segment_age_ms=STILL)


@pytest.mark.slow
def test_a_database_is_made_again_although_frames_are_damaged(tmp_path: Path) -> None:
    first, second, path = a_wal(tmp_path)
    at = _position(tmp_path, first, 2)
    flip(path, at - 40)
    flip(path, _position(tmp_path, second, 3) + 200)
    (tmp_path / "metadata.sqlite").unlink()

    async def test(rig: Rig) -> None:
        assert rig.journal.rebuilt_because
        await looked(rig)
        assert await consume(rig, first, read_views) == (values(0, FRAMES), None)
        rows, error = await consume(rig, second, read_views)
        assert rows == values(0, 3)
        assert isinstance(error, DamagedError)

    run_rig(tmp_path, test, segment_age_ms=STILL)


def test_a_wal_folder_that_is_not_mounted_is_no_damage(tmp_path: Path) -> None:
    """Its volume may be away: then nothing is lost, and nothing must be written beneath it."""
    first, _, _ = a_wal(tmp_path)
    (tmp_path / "wal").rename(tmp_path / "elsewhere")

    async def read(rig: Rig) -> None:
        assert await rig.read_all(first) == values(0, FRAMES)

    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"mount its volume"):
            run_rig(tmp_path, read)
        assert not list(tmp_path.glob("wal/*"))
    shutil.rmtree(tmp_path / "wal", ignore_errors=True)
    (tmp_path / "elsewhere").rename(tmp_path / "wal")
    run_rig(tmp_path, read)


async def fence(by: ClusterAgent, victim: ClusterAgent) -> None:
    victim.pause_heartbeats()
    await passing(0.1)
    await by.catch_up()
    (answer,) = await by.log.commit(
        [Fence(agent=victim.agent_id, epoch=victim.order.epoch, seen_position=by.order.position)]
    )
    assert isinstance(answer, Done), answer


@pytest.mark.slow
@pytest.mark.parametrize("way", ["restart", "takeover"])
@pytest.mark.parametrize("spoiled", ["flipped", "missing"])
async def test_an_agents_damaged_wal_is_served_by_its_owner_or_who_takes_it_over(
    cluster: Cluster, tmp_path: Path, way: str, spoiled: str
) -> None:
    one = await cluster.agent(1, wal=True, durability="wal")
    two = await cluster.agent(2)
    keys = await one.topic("t", 2)
    for _ in range(3):
        for key in keys:
            await one.append(key, VALUE)
    runs = one.queries.wal_runs(one.queries.wals()[0].wal_key)
    bad = next(run for run in runs if (run.partition_key, run.base_offset) == (keys[0], 1))
    if way == "restart":
        cluster.store.away = RetryableError("put", "store", "away")
        await one.close(0)
        cluster.store.away = None
    else:
        await fence(two, one)
    folder = tmp_path / "agent1"
    (name,) = [
        found.name
        for found in find_files(PosixDevice(folder))
        if found.generation == bad.file_generation
    ]
    if spoiled == "flipped":
        flip(folder / name, bad.position + 500)
    else:
        (folder / name).unlink()
    if way == "restart":
        reader = await cluster.agent(1, wal=True, durability="wal", fresh=True)
    else:
        reader = two
        with pytest.raises(CorruptDataError, match="penstock repair"):
            await two.log.take_over(PosixDevice(folder))
    await passing(REFRESH_S / 10)
    assert reader.log.damaged_frames.count == 1
    known = reader.log.damages.known()
    if spoiled == "flipped":
        assert [(one.start, one.end) for one in known] == [(1, 2)]
        assert await reader.read_all(keys[1]) == values(0, 3)
    else:
        assert sorted({one.partition_key for one in known}) == sorted(keys)
    with pytest.raises(DamagedError):
        await reader.read_all(keys[0])
    for report in await reader.log.damage_repair.accept_loss():
        assert report.state == "lost"
    if way == "takeover":
        await two.log.take_over(PosixDevice(folder))
        assert not two.log.damaged_frames.count
    kept = [] if spoiled == "missing" else [(0, VALUE), (2, VALUE)]
    if kept:
        assert await reader.read_all(keys[0]) == kept


def test_frames_are_looked_at_again_after_a_look_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first look names records and reads them, so an error must not take its place."""
    first, _, path = a_wal(tmp_path)
    flip(path, _position(tmp_path, first, 2) + 500)

    find, failures = DamagedFrames._find_hits, [RetryableError("query", "database", "it is away")]

    def find_hits(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return find(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DamagedFrames, "_find_hits", find_hits)
    monkeypatch.setattr("penstock.log.damage.frames.REFRESH_S", 0.01)
    monkeypatch.setattr("penstock.log.damage.frames._AGAIN_S", 0.01)
    run_rig(tmp_path, looked, segment_age_ms=STILL)
    assert "it is away" in caplog.text
    assert "in it lie t-0 offsets 2 to 2" in caplog.text


@pytest.mark.parametrize("has_database", [False, True])
def test_an_entry_that_is_nowhere_else_ends_the_start_and_is_named(
    tmp_path: Path, *, has_database: bool
) -> None:
    """The power took the journal's last blocks, and a bit of the frame that holds the entry is
    wrong: all later entries stand on that one. The database may still know what it made."""
    first, _, path = a_wal(tmp_path)
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path, crashed)
    position = path.read_bytes().index(VALUE, _position(tmp_path, first, 2))
    flip(crashed / "wal" / path.name, position + 500)
    left = cut_journal(crashed)
    if not has_database:
        for name in crashed.glob("metadata.sqlite*"):
            name.unlink()
    before = {found: found.read_bytes() for found in crashed.rglob("*.wal")}

    async def look(rig: Rig) -> None:
        assert [value for value, _ in await rig.read_all(first, 3)] == [3, 4]

    if has_database:
        run_rig(crashed, look, segment_age_ms=STILL)
        return
    # One entry registers the agent, one makes the topic, and four are before this frame's.
    match = rf"wal/{path.name} at byte .*entry {left + 6} of the journal should lie here and is in"
    with pytest.raises(CorruptDataError, match=match) as told:
        run_rig(crashed, look, segment_age_ms=STILL)
    assert "no journal file" in told.value.detail
    assert "restore this file of wal/, or a backup" in str(told.value)
    assert {found: found.read_bytes() for found in before} == before, "nothing is written over"


def cut_journal(data: Path) -> int:
    """Leave of the journal files their first block; the last position in it."""
    (path,) = sorted((data / "journal").iterdir())
    whole = path.read_bytes()
    header = decode_block_header(whole[ALIGNMENT : ALIGNMENT + BLOCK_HEADER_BYTES], subject="first")
    path.write_bytes(whole[: align(ALIGNMENT + BLOCK_HEADER_BYTES + header.length)])
    return header.end - 1
