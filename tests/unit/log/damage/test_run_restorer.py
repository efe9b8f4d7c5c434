"""Damaged runs come back from copies that are proven, and from nothing else."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.log.damage.copies import Piece, cover
from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey
from penstock.state.answers import Refusal, Refused, RunsRestored
from penstock.state.commands import RestoredRun, RestoreRuns
from penstock.state.levels import LevelNotOnError
from penstock.state.rows import StoredRun
from support.log_contents import verify_path
from support.log_rig import Rig, run_rig
from unit.log.test_findings import consume, flip, object_path, read_views, runs_of

STILL = 1 << 40


async def stored(
    rig: Rig, *, topics: int = 1, batches: int = 10, **configs: str
) -> list[PartitionKey]:
    """Topics of one partition, each with one run in an object; nothing in memory."""
    keys = [(await rig.topic(f"t{number}", **configs))[0] for number in range(topics)]
    for number in range(batches):
        for key in keys:
            await rig.append(key, b"value %d of %d" % (number, key))
    await rig.drain()
    rig.forget_memory()
    return keys


async def found_missing(rig: Rig) -> PartitionKey:
    """A partition whose only run lies in an object that is gone, as a consumer has found."""
    (key,) = await stored(rig)
    (run,) = runs_of(rig, key)
    object_path(rig, run).unlink()
    await consume(rig, key, read_views)
    return key


def keep(rig: Rig, folder: Path) -> None:
    """A copy of all objects, as an operator may have one."""
    shutil.copytree(rig.path / "objects", folder, dirs_exist_ok=True)


def forget_wal(rig: Rig) -> None:
    """As when the WAL's files were used again: nothing of the entries can be read there."""
    for path in (rig.path / "wal").glob("*.wal"):
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(bytes(path.stat().st_size - 4096))


async def found_all(rig: Rig, keys: list[PartitionKey], batches: int = 10) -> None:
    rig.forget_memory()
    for key in keys:
        found, error = await consume(rig, key, read_views)
        assert error is None
        assert [offset for offset, _ in found] == list(range(batches))
        assert [value for _, value in found] == [
            b"value %d of %d" % (number, key) for number in range(batches)
        ]


@pytest.mark.parametrize("damage", ["bit", "object", "bit and WAL header"])
def test_a_wal_that_was_not_used_again_holds_a_copy(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await stored(rig)
        (run,) = runs_of(rig, key)
        path = object_path(rig, run)
        if damage == "object":
            path.unlink()
        else:
            flip(path, run.position + 70)
        if damage == "bit and WAL header":
            (file,) = (rig.path / "wal").glob("00000001.wal")
            flip(file, 9)
        before = None if damage == "object" else path.read_bytes()
        await consume(rig, key, read_views)
        (report,) = await rig.log.damage_repair.find()
        assert (report.state, report.copy) == ("damaged", "WAL 0 generation 1")
        assert runs_of(rig, key) == [run], "nothing is changed"
        (report,) = await rig.log.damage_repair.restore()
        assert (report.state, report.lost) == ("restored", [])
        assert "were restored from WAL 0 generation 1" in caplog.text
        await rig.log.let_queries_find()
        (now,) = runs_of(rig, key)
        assert now.object_key != run.object_key
        assert (now.sum, now.length, now.batch_count) == (run.sum, run.length, run.batch_count)
        assert (path.read_bytes() if path.exists() else None) == before, "never under the old key"
        assert not rig.log.damages.known()
        assert rig.log.lost_ranges.status()["known"] == 0
        await found_all(rig, [key])
        assert await rig.log.keeper.condemn_unreferenced() == 1, "the damaged one alone"

    run_rig(tmp_path, test, segment_age_ms=STILL)
    assert not [found for found in verify_path(tmp_path).findings if found.is_damage]


@pytest.mark.slow
def test_an_operators_copy_under_the_same_keys(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        keys = await stored(rig, topics=3)
        keep(rig, tmp_path / "kept")
        forget_wal(rig)
        (one,) = {run.object_key for key in keys for run in runs_of(rig, key)}
        (rig.path / "objects" / one).unlink()
        for key in keys:
            await consume(rig, key, read_views)
        assert {report.copy for report in await rig.log.damage_repair.find()} == {""}
        reports = await rig.log.damage_repair.restore()
        assert {report.state for report in reports} == {"damaged"}
        source = str(tmp_path / "kept")
        before = len(list((rig.path / "objects/segments").rglob("*.seg")))
        reports = await rig.log.damage_repair.restore(source=source)
        assert [(report.state, report.copy) for report in reports] == [
            ("restored", f"{source}/{one}")
        ] * 3
        objects = list((rig.path / "objects/segments").rglob("*.seg"))
        assert len(objects) == before + 1, "one object for all of them"
        await found_all(rig, keys)

    run_rig(tmp_path / "data", test, segment_age_ms=STILL)
    damaged = [found for found in verify_path(tmp_path / "data").findings if found.is_damage]
    assert {found.subject.partition("/")[0] for found in damaged} <= {"wal"}, damaged


def test_a_copy_that_is_damaged_or_anothers_is_not_taken(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        one, two = await stored(rig, topics=2)
        keep(rig, tmp_path / "rotten")
        keep(rig, tmp_path / "swapped")
        forget_wal(rig)
        first, second = runs_of(rig, one)[0], runs_of(rig, two)[0]
        assert first.length == second.length
        flip(tmp_path / "rotten" / first.object_key, first.position + 70)
        other = tmp_path / "swapped" / first.object_key
        whole = bytearray(other.read_bytes())
        start, end = first.position, first.position + first.length
        whole[start:end] = whole[second.position : second.position + second.length]
        other.write_bytes(whole)
        flip(object_path(rig, first), first.position + 70)
        await consume(rig, one, read_views)
        for name in ("rotten", "swapped", "nowhere"):
            (report,) = await rig.log.damage_repair.restore(source=str(tmp_path / name))
            assert (report.state, report.copy) == ("damaged", ""), name
        assert runs_of(rig, one) == [first]

    run_rig(tmp_path / "data", test, segment_age_ms=STILL)


def test_an_object_that_nothing_names_any_more_holds_a_copy(tmp_path: Path) -> None:
    """Here a repair's own source: what it has moved stays until it is deleted."""

    async def test(rig: Rig) -> None:
        (key,) = await stored(rig)
        keep(rig, tmp_path / "kept")
        forget_wal(rig)
        (run,) = runs_of(rig, key)
        path = object_path(rig, run)
        whole = path.read_bytes()
        path.unlink()
        await consume(rig, key, read_views)
        await rig.log.damage_repair.restore(source=str(tmp_path / "kept"))
        await rig.log.let_queries_find()
        path.write_bytes(whole)  # the first object is right again, and named no more
        rig.forget_memory()
        (run,) = runs_of(rig, key)
        object_path(rig, run).unlink()
        await consume(rig, key, read_views)
        (report,) = await rig.log.damage_repair.restore()
        assert report.state == "restored"
        assert report.copy.startswith("objects that nothing names any more/segments/")
        await found_all(rig, [key])

    run_rig(tmp_path / "data", test, segment_age_ms=STILL)


@pytest.mark.options(segment_age_ms=STILL)
async def test_two_repairs_at_once_bring_a_run_back_once(rig: Rig) -> None:
    key = await found_missing(rig)
    repair = rig.log.damage_repair
    states = [
        [report.state for report in reports]
        for reports in await asyncio.gather(repair.restore(), repair.restore())
    ]
    assert states == [["restored"], []]
    await found_all(rig, [key])


def test_a_run_that_another_agent_has_repaired_meanwhile_is_left(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        key = await found_missing(rig)
        (run,) = runs_of(rig, key)
        restorer = rig.log.damage_repair._restorer
        (first,) = await restorer.restore([run], "")
        (second,) = await restorer.restore([run], "")
        assert (first.refusal, second.refusal) == (None, "INPUT_CHANGED")
        assert len(rig.log.numbers._orphans) == 1, (
            "the second object was refused, and holds nothing"
        )
        await rig.log.let_queries_find()
        assert await rig.log.keeper.condemn_unreferenced() == 2, "the damaged, and the second"
        await found_all(rig, [key])

    run_rig(tmp_path, test, segment_age_ms=STILL)
    assert not [found for found in verify_path(tmp_path).findings if found.is_damage]


@pytest.mark.options(segment_age_ms=STILL)
async def test_a_repair_that_ends_before_its_entry_leaves_an_orphan(rig: Rig) -> None:
    key = await found_missing(rig)
    restorer = rig.log.damage_repair._restorer
    before = set((rig.path / "objects/segments").rglob("*.seg"))

    class Away:
        async def commit(self, _: Any) -> Any:
            raise RetryableError("commit", "restore", "the journal is away")

    restorer._committer = Away()
    with pytest.raises(RetryableError, match="away"):
        await rig.log.damage_repair.restore()
    (orphan,) = set((rig.path / "objects/segments").rglob("*.seg")) - before
    restorer._committer = rig.log
    assert await rig.log.keeper.condemn_failed() == 1
    (report,) = await rig.log.damage_repair.restore()
    assert report.state == "restored"
    await rig.log.let_queries_find()
    (now,) = runs_of(rig, key)
    assert not orphan.match(now.object_key), "under another key"
    await found_all(rig, [key])


@pytest.mark.options(segment_age_ms=STILL)
async def test_below_the_level_nothing_is_put(rig: Rig) -> None:
    await found_missing(rig)
    before = list((rig.path / "objects/segments").rglob("*.seg"))

    class Older:
        feature_level = 3

        def agents(self) -> list[Any]:
            return []

    rig.log.damage_repair._levels = Older()
    with pytest.raises(LevelNotOnError, match="feature level 4 is needed, 3 is on"):
        await rig.log.damage_repair.restore()
    assert list((rig.path / "objects/segments").rglob("*.seg")) == before


@pytest.mark.options(segment_age_ms=STILL)
async def test_apply_takes_only_the_run_itself_for_a_copy(rig: Rig) -> None:
    (key,) = await stored(rig)
    (run,) = runs_of(rig, key)

    def restored(**changes: Any) -> RestoredRun:
        values: dict[str, Any] = {
            "partition_key": key,
            "base_offset": run.base_offset,
            "end_offset": run.end_offset,
            "position": run.position,
            "length": run.length,
            "object_key": run.object_key,
        }
        base, end, length = run.base_offset, run.end_offset, run.length
        row = [base, end, 16, length, run.max_timestamp, run.batch_count, run.sum]
        return RestoredRun(**({"restored": row} | values | changes))

    def row(**changes: int) -> list[int]:
        fields = ("base", "end", "position", "length", "newest", "batches", "sum")
        return [
            changes.get(name, value)
            for name, value in zip(fields, restored().restored, strict=True)
        ]

    changed, invalid = Refusal.INPUT_CHANGED, Refusal.INVALID_REPLACEMENT
    wrong = [
        (restored(length=run.length - 1), changed),
        (restored(object_key="segments/00/1-1-1.seg"), changed),
        (restored(base_offset=1, restored=row(base=1)), changed),
        (restored(partition_key=key + 1), Refusal.UNKNOWN_PARTITION),
        (restored(restored=row(base=1)), invalid),
        (restored(restored=row(end=run.end_offset - 1)), invalid),
        (restored(restored=row(length=run.length + 1)), invalid),
        (restored(restored=row(newest=run.max_timestamp + 1)), invalid),
        (restored(restored=row(batches=run.batch_count + 1)), invalid),
        (restored(restored=row(sum=(run.sum or 0) ^ 1)), invalid),
        (restored(restored=row(position=-1)), invalid),
        (restored(restored=row(position=1 << 20)), invalid),
        (restored(restored=[]), invalid),
        (restored(restored=row()[:-1]), invalid),
        (restored(restored=row(base=1 << 63)), invalid),
        (restored(length=0), invalid),
    ]
    for number, (bad, reason) in enumerate(wrong):
        key_of = f"segments/00/9-9-{number}.seg"
        (answer,) = await rig.log.commit(
            [RestoreRuns(object_key=key_of, object_bytes=1 << 20, runs=[bad])]
        )
        assert answer == RunsRestored([int(reason)]), (number, answer)
    await rig.log.let_queries_find()
    assert runs_of(rig, key) == [run]
    (answer,) = await rig.log.commit(
        [RestoreRuns(object_key=run.object_key, object_bytes=1 << 20, runs=[restored()])]
    )
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.OBJECT_EXISTS


def piece(base: int, end: int, length: int, key: str = "a") -> Piece:
    return Piece(key, base, end, 0, length)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([piece(0, 4, 40), piece(4, 10, 60)], [0, 4]),
        ([piece(4, 10, 60), piece(0, 4, 40), piece(0, 2, 20)], [0, 4]),
        ([piece(0, 4, 40), piece(5, 10, 60)], []),
        ([piece(0, 4, 40), piece(4, 11, 60)], []),
        ([piece(0, 10, 99)], []),
        ([], []),
    ],
)
def test_pieces_cover_a_run_or_are_none(pieces: list[Piece], expected: list[int]) -> None:
    run = StoredRun(PartitionKey(1), 0, 10, 0, "x", 0, 100, 0, 10)
    assert [one.base_offset for one in cover(run, pieces)] == expected
