"""What a run that is read again from the store is taken for, block by block and by version."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.log.checking import OTHERS, Checked, Fault
from penstock.log.fetch.blocks import BlockCache, BlockKey
from penstock.log.fetch.object_reads import CHANGES_MAX
from penstock.log.fetch.read_again import ReadAgain, is_whole
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.findings import DamagedError, Damages
from penstock.log.settings import LogSettings
from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.ports.objects import Versioned
from penstock.records.sums import partition_seed, run_sum
from penstock.segment import build_segment
from penstock.segment.format import Mark, SegmentRun
from penstock.state.rows import StoredRun
from support.batches import make_batch
from support.simulated.clock import ManualClock
from support.simulated.inline_executor import InlineExecutor
from support.simulated.randomness import SeededRandom

KEY = PartitionKey((1 << 20) + 3)
TOPIC = bytes([7] * 16)
SEED = partition_seed(TOPIC, 3)


def batch(offset: int, size: int = 100) -> bytes:
    return bytes(make_batch(bytes(size), offset=offset, epoch=0))


BATCH_BYTES = len(batch(0))


def stored_run(*batches: bytes, end_offset: int | None = None) -> tuple[StoredRun, bytearray]:
    """A run of the log, and its object, whose index names it."""
    body = b"".join(batches)
    end_offset = len(batches) if end_offset is None else end_offset
    built = build_segment(
        [
            SegmentRun(
                topic_id=TOPIC,
                partition=3,
                base_offset=0,
                end_offset=end_offset,
                record_count=len(batches),
                batch_count=len(batches),
                max_timestamp=5,
                parts=[body],
                length=len(body),
                marks=[Mark(base_offset=0, position=0, max_timestamp=-1)],
            )
        ]
    )
    run = StoredRun(
        KEY,
        0,
        end_offset,
        0,
        "o",
        built.positions[0],
        len(body),
        5,
        len(batches),
        object_bytes=built.size_bytes,
        sum=run_sum(memoryview(body), SEED),
    )
    return run, bytearray(b"".join(built.parts))


def following(versions: list[str]) -> str:
    """The next one; the last again and again."""
    return versions.pop(0) if len(versions) > 1 else versions[0]


class Rig:
    """`passed`: what was taken note of; `versions`: of the next answers, the last of all others.

    Reads of the index are those from the object's tail; `gets` has the others' bounds.
    """

    def __init__(
        self,
        run: StoredRun,
        data: bytearray,
        *,
        block_bytes: int = 150,
        topic_id: bytes | None = TOPIC,
        clean_end: int = 0,
    ) -> None:
        self.run, self.data = run, data
        self.versions = ["v1"]
        self.index_versions: list[str] = []
        self.errors: dict[int, PenstockError] = {}
        self.gets: list[tuple[int, int]] = []
        self.passed: list[tuple[int, Checked, str | None, int]] = []
        self.is_run = True
        self.healed: list[int] = []
        clock = ManualClock(now_ms=5)
        damages = Damages(clock=clock, partition_name=str, log_start=lambda _: 0)
        damages.healed = lambda place, position, detail: self.healed.append(position)  # type: ignore[method-assign]
        pool: Executor = InlineExecutor(SeededRandom(1))
        self.checks = RunChecks(
            damages=damages,
            clock=clock,
            pool=pool,
            clean_end=lambda _: clean_end,
            epochs=lambda _: (),
            seed_of=lambda _: SEED,
            again_s=60,
            store=self,  # type: ignore[arg-type]
            topic_id_of=lambda _: topic_id,
        )
        self.blocks = BlockCache(LogSettings())
        self.again = ReadAgain(
            blocks=self.blocks,
            block_bytes=block_bytes,
            checks=self.checks,
            load_failed=self._load_failed,
            passed=self._passed,
        )
        self._block_bytes = block_bytes

    async def get_directly(self, _key: str, start: int, end: int) -> Versioned:
        assert end <= self.run.object_bytes
        if end == self.run.object_bytes and end - start > self._block_bytes:
            return Versioned(bytes(self.data[start:end]), following(self.index_versions or ["v1"]))
        self.gets.append((start, end))
        if start in self.errors:
            raise self.errors[start]
        return Versioned(bytes(self.data[start:end]), following(self.versions))

    async def _load_failed(
        self, run: StoredRun, offset: int, error: PenstockError
    ) -> PenstockError:
        return RetryableError("load", f"offset {offset}", str(error))

    def _passed(
        self,
        run: StoredRun,
        start: int,
        found: Checked,
        version: str | None,
        read: Sequence[tuple[BlockKey, memoryview]] | None = None,
    ) -> bool:
        assert read is not None
        self.passed.append((start, found, version, len(read)))
        return self.is_run

    def whole(self) -> None:
        asyncio.run(self.again.whole(self.run))

    def part(self, number: int) -> None:
        """From batch `number` on, as far as it needs that batch."""
        position = self.run.position + number * BATCH_BYTES
        asyncio.run(self.again.part(self.run, position, number, position))

    def damage(self, number: int) -> None:
        """Flip a bit of a batch's records."""
        self.data[self.run.position + number * BATCH_BYTES + 80] ^= 1

    @property
    def is_trusted(self) -> bool:
        return self.checks.is_proven(self.run, self.versions[0])


def rig_of(count: int = 4, **options: Any) -> Rig:
    return Rig(*stored_run(*(batch(offset) for offset in range(count))), **options)


def raised_by(work: Callable[[], None]) -> tuple[int, int, str]:
    with pytest.raises(DamagedError) as caught:
        work()
    damage = caught.value.damage
    return damage.start, damage.end, damage.detail


def test_a_whole_run_is_proven_by_its_sum_and_takes_the_place_of_what_was_kept() -> None:
    rig = rig_of(topic_id=None)
    rig.blocks.put(BlockKey("o", 0), memoryview(b"rotten"), "v0")
    rig.whole()
    ((start, found, version, block_count),) = rig.passed
    assert (start, found.end_offset, found.fault, version) == (rig.run.position, 4, None, "v1")
    end = rig.run.position + rig.run.length
    assert block_count == -(-end // 150), "no block past the run's end"
    kept = [rig.blocks.peek(BlockKey("o", number)) for number in range(block_count)]
    assert b"".join(block or b"" for block in kept) == rig.data[: 150 * block_count]
    assert rig.blocks.version_of("o") == "v1"
    assert rig.healed == [end - 1]
    assert rig.is_trusted


def test_the_last_block_ends_with_its_object() -> None:
    rig = rig_of(block_bytes=400)
    rig.run = replace(rig.run, object_bytes=rig.run.position + rig.run.length + 3)
    rig.checks.trust(rig.run, "v1")
    rig.whole()
    assert rig.gets[-1][1] == rig.run.object_bytes


def test_of_a_run_that_the_index_names_no_more_is_read_than_is_asked_for() -> None:
    rig = rig_of()
    rig.part(1)
    ((start, found, _, _),) = rig.passed
    assert start == rig.run.position + BATCH_BYTES
    assert found.fault is None
    assert found.end_offset == 2, "the others begin in blocks that were not read"
    first, last = start // 150, (start + BATCH_BYTES - 1) // 150
    assert [at for at, _ in rig.gets] == [150 * number for number in range(first, last + 1)]
    assert rig.healed == [start]


@pytest.mark.parametrize("number", [0, 1])
def test_where_the_index_does_not_name_the_run_all_of_it_is_read(number: int) -> None:
    rig = rig_of(topic_id=None)
    rig.part(number)
    assert [(start, found.end_offset) for start, found, *_ in rig.passed] == [(rig.run.position, 4)]


def test_all_of_it_is_read_where_all_but_its_first_batch_is_asked_for() -> None:
    rig = rig_of(topic_id=None)
    begin, end = rig.run.position + BATCH_BYTES, rig.run.position + rig.run.length
    asyncio.run(rig.again.part(rig.run, begin, 1, end - 1))
    assert [start for start, *_ in rig.passed] == [rig.run.position]


def test_a_run_without_a_sum_is_served_by_its_batches_alone() -> None:
    """Of a release that kept none: its topic may be gone, and nothing names it."""
    rig = rig_of(topic_id=None)
    rig.run = replace(rig.run, sum=None)
    rig.part(1)
    assert [found.end_offset for _, found, *_ in rig.passed] == [2]


@pytest.mark.parametrize(
    ("number", "damaged", "is_doubted"),
    [
        (None, None, False),
        (None, 2, False),  # the index named it, and there is no sum to tell
        (0, None, True),
        (1, None, True),
        (1, 1, True),
    ],
)
def test_a_doubted_run_is_believed_again_once_all_of_it_was_read(
    number: int | None, damaged: int | None, *, is_doubted: bool
) -> None:
    rig = rig_of()
    rig.checks.doubt(rig.run)
    if damaged is not None:
        rig.damage(damaged)
    try:
        if number is None:
            rig.whole()
        else:
            rig.part(number)
    except DamagedError:
        assert damaged is not None
    assert rig.checks.is_doubted(rig.run) is is_doubted


def test_a_doubted_run_is_believed_where_the_store_itself_says_damaged() -> None:
    rig = rig_of()
    rig.checks.doubt(rig.run)
    rig.errors = {300: CorruptDataError("get", "o", "400 of 450 bytes")}
    with pytest.raises(RetryableError):
        rig.whole()
    assert not rig.checks.is_doubted(rig.run)


def test_damage_in_the_store_too_is_an_error_from_its_batch_on() -> None:
    rig = rig_of()
    rig.damage(2)
    assert raised_by(rig.whole) == (2, 4, "CRC-32C differs")
    ((start, found, _, _),) = rig.passed
    assert (start, found.end_offset) == (rig.run.position, 2), "those before it are right"
    assert rig.is_trusted, "the index named it: no sum can"
    assert rig.gets[-1][0] < rig.run.position + 3 * BATCH_BYTES, "nothing after it is read"


def test_damage_after_what_is_asked_for_is_not_met() -> None:
    rig = rig_of()
    rig.damage(3)
    rig.part(0)
    assert [found.fault for _, found, *_ in rig.passed] == [None]


def test_of_a_damaged_run_that_nothing_names_nothing_is_served() -> None:
    rig = rig_of(topic_id=None)
    rig.damage(2)
    for work in (rig.whole, lambda: rig.part(2)):
        assert raised_by(work) == (
            0,
            4,
            "CRC-32C differs, and the object's index doesn't name the run",
        )
    assert not rig.passed
    assert not rig.is_trusted


def test_bytes_whose_sum_is_another_are_damaged_whatever_the_index_says() -> None:
    rig = rig_of()
    rig.is_run = False
    assert raised_by(rig.whole) == (0, 4, OTHERS)
    assert not rig.is_trusted
    assert not rig.healed


def test_a_store_that_says_damaged_stops_at_what_came_before() -> None:
    rig = rig_of()
    rig.errors = {300: CorruptDataError("get", "o", "400 of 450 bytes")}
    with pytest.raises(RetryableError, match="offset 1: get o: 400 of 450 bytes"):
        rig.whole()
    ((_, found, _, _),) = rig.passed
    assert (found.end_offset, found.fault) == (1, None)
    assert rig.is_trusted
    assert rig.gets[-1][0] == 300


def test_nothing_is_served_of_what_the_store_calls_damaged_and_no_index_names() -> None:
    rig = rig_of(topic_id=None)
    rig.errors = {300: CorruptDataError("get", "o", "400 of 450 bytes")}
    with pytest.raises(RetryableError, match="offset 0: get o"):
        rig.whole()
    assert not rig.passed


def test_an_object_that_is_gone_is_an_error_of_all_of_its_run() -> None:
    rig = rig_of()
    rig.errors = {300: NotFoundError("get", "o", "gone")}
    with pytest.raises(RetryableError, match="offset 0: get o: gone"):
        rig.part(2)
    assert not rig.passed


def test_an_object_that_was_replaced_between_two_blocks_is_read_once_more() -> None:
    rig = rig_of()
    rig.versions = ["v1", "v1", "v2"]
    rig.whole()
    assert [version for _, _, version, _ in rig.passed] == ["v2"]
    assert len({*rig.gets}) + 3 == len(rig.gets)
    assert not rig.checks.reads.is_unsteady("o")


def test_an_index_of_another_version_is_looked_at_once_more() -> None:
    rig = rig_of()
    rig.index_versions = ["other", "v1"]
    rig.part(1)
    assert [found.end_offset for _, found, _, _ in rig.passed] == [2]
    assert not rig.checks.reads.is_unsteady("o")


@pytest.mark.parametrize("is_damaged", [True, False])
def test_an_index_that_is_ever_of_another_version_proves_nothing(*, is_damaged: bool) -> None:
    rig = rig_of()
    rig.index_versions = ["other"]
    if is_damaged:
        rig.damage(3)
        assert raised_by(lambda: rig.part(1))[:2] == (0, 4)
        assert not rig.passed
        return
    rig.part(1)
    assert [start for start, *_ in rig.passed] == [rig.run.position], "the sum of all of it does"
    assert rig.checks.reads.is_unsteady("o")


@pytest.mark.parametrize("case", ["right", "no sum", "another sum", "damaged"])
def test_of_several_versions_the_sum_alone_proves_anything(case: str) -> None:
    rig = rig_of()
    match case:
        case "no sum":
            rig.run = replace(rig.run, sum=None)
        case "another sum":
            assert rig.run.sum is not None
            rig.run = replace(rig.run, sum=rig.run.sum ^ 1)
        case "damaged":
            rig.damage(3)
    rig.versions = [f"v{number}" for number in range(100)]
    if case != "right":
        detail = "the object was replaced again and again while the run was read"
        assert raised_by(rig.whole) == (0, 4, detail)
        assert not rig.passed
        assert not rig.checks.reads.is_unsteady("o")
        return
    rig.whole()
    ((start, found, version, block_count),) = rig.passed
    assert (start, found.end_offset, version) == (rig.run.position, 4, None)
    assert len(rig.gets) == 2 + 2 + block_count, "two tries end with their second block"
    assert rig.checks.reads.is_unsteady("o")
    assert all(rig.blocks.peek(BlockKey("o", number)) for number in range(block_count))


def test_each_look_counts_an_object_s_changes_from_there() -> None:
    rig = rig_of()
    rig.versions = [f"v{number}" for number in range(CHANGES_MAX + 1)]

    async def change() -> None:
        for _ in range(CHANGES_MAX + 1):
            await rig.checks.reads.get_directly("o", 0, 1)

    asyncio.run(change())
    assert rig.checks.reads.is_suspect("o")
    rig.whole()
    assert not rig.checks.reads.is_suspect("o")


@pytest.mark.parametrize(("third", "is_right"), [(6, True), (3, False)])
def test_a_batch_after_a_gap_is_right_once_the_next_one_is_seen(
    third: int, *, is_right: bool
) -> None:
    """A base offset lies outside the CRC: one that became larger looks like a gap."""
    run, data = stored_run(batch(0), batch(5), batch(third), end_offset=7)
    block_bytes = run.position + 2 * BATCH_BYTES
    rig = Rig(run, data, block_bytes=block_bytes, clean_end=7)
    work = rig.again.part(run, run.position + BATCH_BYTES, 1, run.position + BATCH_BYTES)
    if is_right:
        asyncio.run(work)
        assert rig.gets == [(0, block_bytes), (block_bytes, run.object_bytes)]
        return
    assert raised_by(lambda: asyncio.run(work))[:2] == (1, 7)


def test_a_gap_is_none_where_compaction_left_none() -> None:
    run, data = stored_run(batch(0), batch(5), end_offset=6)
    rig = Rig(run, data)
    assert raised_by(rig.whole)[0] == 1


def test_batches_that_end_before_their_run_are_missing() -> None:
    run, data = stored_run(batch(0), batch(1), end_offset=3)
    rig = Rig(run, data)
    start, end, detail = raised_by(rig.whole)
    assert (start, end) == (2, 3)
    assert "the batches end before offset 2" in detail


@pytest.mark.parametrize("is_block_s_end", [True, False])
def test_a_batch_that_its_run_cuts_off_is_damaged(*, is_block_s_end: bool) -> None:
    run, data = stored_run(batch(0), batch(1))
    run = replace(run, length=run.length - 1)
    end = run.position + run.length
    rig = Rig(run, data, block_bytes=end if is_block_s_end else 150)
    start, _, detail = raised_by(rig.whole)
    assert start == 1
    assert "batch cut off" in detail
    assert all(start < end for start, _ in rig.gets)


def test_a_run_is_whole_if_all_of_it_was_read_and_is_right() -> None:
    run, _ = stored_run(batch(0), batch(1))
    end = run.position + run.length
    whole = Checked(end, 2, 2, None)
    assert is_whole(run, run.position, whole)
    assert not is_whole(run, run.position + BATCH_BYTES, whole)
    assert not is_whole(run, run.position, whole._replace(position=end - BATCH_BYTES))
    early = Fault(end, 2, 3, "the batches end before offset 2, the run at 3")
    assert not is_whole(run, run.position, whole._replace(fault=early))
