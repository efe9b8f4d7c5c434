"""Batches that an operator sends for lost offsets are checked as a producer's are."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.log.damage.rebuilt_records import PIECES_MAX, check_rebuilt
from penstock.model.errors import ConflictError, InvalidRequestError
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.state.answers import Refusal, RunsRestored
from penstock.state.commands import RestoredRun, RestoreRuns
from support.log_contents import verify_path
from support.log_rig import Rig, run_rig
from unit.log.damage.test_run_restorer import STILL, forget_wal, stored
from unit.log.test_findings import consume, object_path, read_views, runs_of

EPOCHS = ((0, 0), (3, 5))


def batch(start: int, end: int, **changes: int) -> bytearray:
    records = [
        Record(offset_delta=number, timestamp=100 + number, key=None, value=b"v", headers=())
        for number in range(end - start)
    ]
    return encode_batch(records, base_offset=start, **changes)


def test_adjacent_batches_make_one_run_and_carry_their_epochs() -> None:
    data = batch(0, 2) + batch(2, 4) + batch(6, 8)
    rows = check_rebuilt(data, [(0, 4), (6, 9)], 7, EPOCHS, subject="t-0")
    assert [(row.base_offset, row.end_offset, row.batch_count) for row in rows] == [
        (0, 4, 2),
        (6, 8, 1),
    ]
    assert rows[1].position == rows[0].length
    assert int.from_bytes(data[12:16], "big") == 0
    at = rows[1].position
    assert int.from_bytes(data[at + 12 : at + 16], "big") == 3


def flipped(data: bytearray) -> bytearray:
    data[70] ^= 1
    return data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytearray, "there is no batch"),
        (lambda: batch(0, 2)[:40], "cut off"),
        (lambda: batch(0, 2)[:-1], "bytes"),
        (lambda: flipped(batch(0, 2)), "CRC-32C differs"),
        (lambda: batch(0, 2, producer_id=5), "has a producer"),
        (lambda: batch(0, 2, attributes=8), "another attribute"),
        (lambda: batch(2, 4) + batch(0, 2), "is due"),
        (lambda: batch(0, 2) + batch(1, 3), "is due"),
        (lambda: batch(3, 5), "are not lost"),
        (lambda: batch(9, 10), "are not lost"),
    ],
)
def test_a_batch_that_is_wrong_or_elsewhere_is_refused(
    data: Callable[[], bytearray], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_rebuilt(data(), [(0, 4), (6, 9)], 7, EPOCHS, subject="t-0")


def test_a_run_is_filled_in_one_entry_beside_what_is_kept_of_it(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await stored(rig)
        forget_wal(rig)
        (run,) = runs_of(rig, key)
        path = object_path(rig, run)
        whole = bytearray(path.read_bytes())
        whole[run.position + run.length // 10 * 5 + 65] ^= 1
        path.write_bytes(whole)
        rig.forget_memory()
        await consume(rig, key, read_views)
        fill = rig.log.rebuilt_records.fill
        with pytest.raises(InvalidRequestError, match="not lost"):
            await fill(key, 0, 10, batch(4, 6), accept_loss=False)
        with pytest.raises(ConflictError, match="no run of these offsets"):
            await fill(key, 0, 9, batch(5, 6), accept_loss=False)
        first, second = await asyncio.gather(
            fill(key, 0, 10, batch(5, 6), accept_loss=False),
            fill(key, 0, 10, batch(5, 6), accept_loss=False),
            return_exceptions=True,
        )
        assert not isinstance(first, BaseException)
        assert isinstance(second, ConflictError), "two at once: one of them"
        rig.forget_memory()
        found, error = await consume(rig, key, read_views)
        assert error is None
        assert [offset for offset, _ in found] == list(range(10))
        assert found[5][1] == b"v"
        await rig.log.let_queries_find()
        assert [(run.base_offset, run.end_offset) for run in runs_of(rig, key)] == [
            (0, 5),
            (5, 6),
            (6, 10),
        ]
        await rig.log.rebuilt_ranges.refresh()
        assert rig.log.rebuilt_ranges.count == 1
        (row,) = rig.log.rebuilt_ranges.status()["ranges"]
        assert (row["start"], row["end"]) == (5, 6)
        await rig.log.delete_records([(key, 6)])
        await rig.log.let_queries_find()
        assert rig.log.rebuilt_ranges.count == 0, "retention has passed them"

    run_rig(tmp_path, test, segment_age_ms=STILL)
    damaged = [found for found in verify_path(tmp_path).findings if found.is_damage]
    assert {found.subject.partition("/")[0] for found in damaged} <= {"wal"}, damaged


@pytest.mark.slow
@pytest.mark.options(segment_age_ms=STILL)
async def test_more_pieces_than_an_entry_holds_are_refused(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    count = 2 * PIECES_MAX + 2
    await rig.append(key, *[b"v"] * count)
    await rig.drain()
    forget_wal(rig)
    rig.forget_memory()
    (run,) = runs_of(rig, key)
    object_path(rig, run).unlink()
    await consume(rig, key, read_views)
    data = bytearray().join(batch(at, at + 1) for at in range(0, count, 2))
    with pytest.raises(ConflictError, match=f"an entry holds {PIECES_MAX}"):
        await rig.log.rebuilt_records.fill(key, 0, count, data, accept_loss=True)
    assert runs_of(rig, key) == [run]


def test_a_part_of_an_accepted_loss_is_filled_and_the_rest_stays_lost(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await stored(rig)
        forget_wal(rig)
        (run,) = runs_of(rig, key)
        object_path(rig, run).unlink()
        await consume(rig, key, read_views)
        await rig.log.damage_repair.accept_loss()
        fill = rig.log.rebuilt_records.fill
        done = await fill(key, 2, 6, batch(2, 3) + batch(4, 6), accept_loss=False)
        assert done.filled == [(2, 3), (4, 6)]
        with pytest.raises(ConflictError, match="no run of these offsets is damaged"):
            await fill(key, 2, 6, batch(2, 3), accept_loss=False)
        await rig.log.let_queries_find()
        assert rig.queries().lost_ranges_of(key) == [(0, 2), (3, 4), (6, 10)]
        rig.forget_memory()
        found, error = await consume(rig, key, read_views)
        assert error is None
        assert [offset for offset, _ in found] == [2, 4, 5]

    run_rig(tmp_path, test, segment_age_ms=STILL)
    damaged = [found for found in verify_path(tmp_path).findings if found.is_damage]
    assert {found.subject.partition("/")[0] for found in damaged} <= {"wal"}, damaged


@pytest.mark.options(segment_age_ms=STILL)
async def test_apply_fills_lost_offsets_alone(rig: Rig) -> None:
    """Two servers may have looked at once: apply decides."""
    (key,) = await stored(rig)
    forget_wal(rig)
    (run,) = runs_of(rig, key)
    object_path(rig, run).unlink()
    await consume(rig, key, read_views)
    await rig.log.damage_repair.accept_loss()
    await rig.append(key, b"later")

    async def code(start: int, end: int, *, rebuilt: bool = True, kept: int = 0) -> int:
        numbers = itertools.count(1)
        row = [start, end, 16, 70, 100, 1, 7]
        listed = RestoredRun(
            partition_key=key,
            base_offset=start,
            end_offset=end,
            position=0,
            length=0,
            kept=row * kept,
            restored=row,
        )
        (answer,) = await rig.log.commit(
            [
                RestoreRuns(
                    object_key=f"segments/00/9-{start}{end}-{next(numbers)}.seg",
                    object_bytes=1 << 20,
                    runs=[listed],
                    rebuilt=rebuilt,
                )
            ]
        )
        assert isinstance(answer, RunsRestored), answer
        return answer.codes[0]

    assert await code(8, 11) == Refusal.INPUT_CHANGED, "one offset more than was lost"
    assert await code(10, 11) == Refusal.INPUT_CHANGED, "a record is there"
    assert await code(0, 9, rebuilt=False) == Refusal.INVALID_REPLACEMENT
    assert await code(0, 8, kept=1) == Refusal.INVALID_REPLACEMENT
    assert await code(4, 6) == 0
    assert await code(5, 6) == Refusal.INPUT_CHANGED, "filled before"
    assert await code(0, 4) == 0
    await rig.log.let_queries_find()
    assert rig.queries().lost_ranges_of(key) == [(6, 10)]
