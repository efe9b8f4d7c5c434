"""What is known of a run: its sum as it is read, doubt, proof, and damage that was just met."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from penstock.log.checking import Checked, Fault
from penstock.log.fetch import run_checks
from penstock.log.fetch.placed import Proof
from penstock.log.fetch.run_checks import KNOWN_S, RunChecks, place_of
from penstock.log.findings import DamagedError, DamageKind, Damages
from penstock.model.ids import PartitionKey
from penstock.records.sums import SUM_MASK
from penstock.state.rows import StoredRun
from support.simulated.clock import ManualClock
from support.simulated.inline_executor import InlineExecutor
from support.simulated.randomness import SeededRandom

KEY: Final = PartitionKey(3)
OTHER: Final = PartitionKey(4)
RUN = StoredRun(KEY, 100, 130, 0, "o", 1000, 300, 60, 3, object_bytes=2000, sum=SUM_MASK)
FAULT = Fault(1100, 110, 130, "CRC-32C differs")


class Known:
    """What the log says of partitions; `asked` counts questions to the database."""

    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=5)
        self.clean_end = 0
        self.asked = 0
        self.seed: int | None = 9
        self.epochs: tuple[Any, ...] = ()
        self.checks = RunChecks(
            damages=Damages(clock=self.clock, partition_name=str, log_start=lambda _: 0),
            clock=self.clock,
            pool=InlineExecutor(SeededRandom(1)),
            clean_end=self._clean_end,
            epochs=lambda _: self.epochs,
            seed_of=lambda _: self.seed,
            again_s=60,
            store=None,  # type: ignore[arg-type]
            topic_id_of=lambda _: None,
        )

    def _clean_end(self, key: PartitionKey) -> int:
        self.asked += 1
        return 0 if key == OTHER else self.clean_end


@pytest.fixture
def known() -> Known:
    return Known()


def part(start: int, end: int, total: int, fault: Fault | None = None) -> tuple[int, Checked]:
    """What a check from byte `start` of the run on says."""
    return RUN.position + start, Checked(RUN.position + end, 0, 1, fault, total)


@pytest.mark.parametrize("last", [0, 1])
def test_a_run_that_is_read_in_parts_has_its_sum_at_its_end(known: Known, last: int) -> None:
    fold = known.checks.fold
    assert fold(RUN, *part(0, 100, SUM_MASK - 4))
    assert fold(RUN, *part(100, 200, 7))
    assert fold(RUN, *part(200, 300, SUM_MASK - 2 + last)) is (last == 0)
    assert fold(RUN, *part(200, 300, 5)), "it is folded once"


def test_one_part_may_be_all_of_it(known: Known) -> None:
    assert known.checks.fold(RUN, *part(0, 300, SUM_MASK))
    assert not known.checks.fold(RUN, *part(0, 300, 1))


def test_parts_that_do_not_follow_one_another_say_nothing(known: Known) -> None:
    fold = known.checks.fold
    assert fold(RUN, *part(100, 300, 5)), "the first was never read"
    assert fold(RUN, *part(0, 100, 5))
    assert fold(RUN, *part(200, 300, 5)), "one is left out"
    assert fold(RUN, *part(100, 100, 0)), "nothing was checked"
    assert fold(RUN, *part(0, 0, 5))
    assert not fold(RUN, *part(100, 300, 5)), "the first part counts still"


def test_a_reader_that_begins_again_has_another_sum(known: Known) -> None:
    fold = known.checks.fold
    assert fold(RUN, *part(0, 100, 5))
    assert fold(RUN, *part(0, 100, SUM_MASK - 1))
    assert fold(RUN, *part(100, 300, 1))


def test_runs_of_one_object_have_each_their_own_sum(known: Known) -> None:
    other = replace(RUN, position=1300, sum=8)
    fold = known.checks.fold
    assert fold(RUN, *part(0, 100, SUM_MASK))
    assert fold(other, 1300, Checked(1400, 0, 1, None, 8))
    assert fold(RUN, *part(100, 300, 0))
    assert fold(other, 1400, Checked(1600, 0, 1, None, 0))


@pytest.mark.parametrize("lacks", ["sum", "topic"])
def test_what_has_no_sum_is_never_another(known: Known, lacks: str) -> None:
    run = replace(RUN, sum=None) if lacks == "sum" else RUN
    known.seed = 9 if lacks == "sum" else None
    assert not known.checks.has_sum(run)
    assert known.checks.fold(run, *part(0, 300, 5))
    assert known.checks.is_proven(run, "v1")
    assert not known.checks.needs_proof(run, 10, "v1")


def test_a_short_run_is_proven_by_its_sum_and_a_long_one_by_an_index(known: Known) -> None:
    checks = known.checks
    assert checks.is_provable(RUN, 300)
    assert not checks.is_provable(RUN, 299)
    assert not checks.is_provable(replace(RUN, sum=None), 300)
    assert not checks.needs_proof(RUN, 300, "v1")
    assert checks.needs_proof(RUN, 299, "v1")
    checks.trust(RUN, "v1")
    assert not checks.needs_proof(RUN, 299, "v1")
    assert checks.needs_proof(RUN, 299, "v2")
    known.clock.advance(60)
    assert checks.needs_proof(RUN, 299, "v1")


def test_a_run_with_a_damaged_batch_has_no_sum_until_it_was_right_again(known: Known) -> None:
    checks = known.checks
    assert checks.fold(RUN, *part(100, 200, 5, FAULT))
    assert checks.is_provable(RUN, 300), "only a check from its first byte tells"
    assert checks.fold(RUN, *part(0, 100, 5, FAULT))
    assert not checks.is_provable(RUN, 300)
    assert checks.needs_proof(RUN, 300, "v1")
    assert checks.is_provable(replace(RUN, position=1300), 300)
    assert checks.is_provable(replace(RUN, object_key="p"), 300)
    assert checks.fold(RUN, *part(100, 200, 5))
    assert not checks.is_provable(RUN, 300)
    assert checks.fold(RUN, *part(0, 100, 5))
    assert checks.is_provable(RUN, 300)


def test_doubt_is_of_one_run_and_ends_with_trust(known: Known) -> None:
    checks = known.checks
    assert not checks.is_doubted(RUN)
    checks.doubt(RUN)
    assert checks.is_doubted(RUN)
    assert not checks.is_doubted(replace(RUN, position=1300))
    assert not checks.is_doubted(replace(RUN, object_key="p"))
    checks.trust(RUN, "v1")
    assert not checks.is_doubted(RUN)
    assert checks.is_proven(RUN, "v1")


def test_a_run_that_the_index_does_not_name_is_doubted_where_it_is_to_be_served(
    known: Known,
) -> None:
    """Its topic is gone, so that nothing names it."""
    checks = known.checks
    assert asyncio.run(checks.look_at_index(RUN, "v1")) is Proof.UNNAMED
    assert not checks.is_doubted(RUN)
    assert asyncio.run(checks.prove(RUN, "v1")) is Proof.UNNAMED
    assert checks.is_doubted(RUN)


def test_an_index_of_another_version_raises_no_doubt(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prove(run: StoredRun, version: str | None) -> Proof:
        return Proof.OTHER_VERSION

    monkeypatch.setattr(known.checks._placed, "prove", prove)
    assert asyncio.run(known.checks.prove(RUN, "v1")) is Proof.OTHER_VERSION
    assert not known.checks.is_doubted(RUN)


# -- rules ---------------------------------------------------------------------------


def test_the_database_is_asked_about_gaps_at_the_first_one(known: Known) -> None:
    checks = known.checks
    known.clean_end = 120
    assert checks.rules(RUN).gap_end == 0
    assert not known.asked
    assert checks.may_lack(KEY, 120)
    assert checks.rules(RUN).gap_end == 120
    assert checks.may_lack(KEY, 119)
    assert checks.may_lack(KEY, 120)
    assert known.asked == 1
    assert not checks.may_lack(KEY, 121)
    assert known.asked == 2, "compaction may have gone on"
    known.clean_end = 121
    assert checks.may_lack(KEY, 121)


def test_a_look_up_says_whether_the_rules_have_changed(known: Known) -> None:
    checks = known.checks
    assert not checks.look_up(RUN)
    known.clean_end = 120
    assert checks.look_up(RUN)
    assert checks.rules(RUN).gap_end == 120
    assert not checks.look_up(RUN)
    assert checks.rules(replace(RUN, partition_key=OTHER)).gap_end == 0


def test_rules_are_the_run_s_end_and_its_topic_s_seed(known: Known) -> None:
    rules = known.checks.rules(RUN)
    assert (rules.end_offset, rules.seed) == (130, 9)
    assert known.checks.rules(replace(RUN, sum=None)).seed is None
    known.epochs = ((2, 0), (5, 110))
    assert known.checks.rules(RUN).epochs == known.epochs


def test_labels_are_those_of_the_leader_epochs(known: Known) -> None:
    assert known.checks.leader_epoch(KEY, 109) == 0
    known.epochs = ((2, 0), (5, 110))
    assert [known.checks.leader_epoch(KEY, offset) for offset in (109, 110)] == [2, 5]


# -- damage that was just met --------------------------------------------------------


def raises(check: Callable[[], None]) -> bool:
    try:
        check()
    except DamagedError:
        return True
    return False


def test_a_damaged_offset_is_an_error_at_once_for_a_second(known: Known) -> None:
    checks = known.checks
    checks.raise_known(KEY, 115)
    error = checks.damaged(RUN, FAULT)
    with pytest.raises(DamagedError) as caught:
        checks.raise_known(KEY, 115)
    assert caught.value is error
    found = [raises(lambda at=at: checks.raise_known(KEY, at)) for at in (109, 110, 129, 130)]
    assert found == [False, True, True, False]
    checks.raise_known(OTHER, 115)
    known.clock.advance(KNOWN_S - 0.01)
    assert raises(lambda: checks.raise_known(KEY, 115))
    known.clock.advance(0.01)
    checks.raise_known(KEY, 115)


def test_what_was_moved_is_looked_at_again_at_once(known: Known) -> None:
    known.checks.damaged(RUN, FAULT)
    known.checks.forget(OTHER)
    assert raises(lambda: known.checks.raise_known(KEY, 115))
    known.checks.forget(KEY)
    known.checks.raise_known(KEY, 115)


def test_damage_names_its_place_kind_and_one_offset_at_least(known: Known) -> None:
    checks = known.checks
    in_wal = replace(RUN, generation=(5 << 32) + 7, object_key="")
    assert checks.damaged(RUN, FAULT).damage.kind is DamageKind.DAMAGED_OBJECT
    assert checks.damaged(in_wal, FAULT).damage.kind is DamageKind.DAMAGED_WAL
    missing = checks.damaged(RUN, FAULT, kind=DamageKind.MISSING_OBJECT).damage
    assert missing.kind is DamageKind.MISSING_OBJECT
    empty = checks.damaged(RUN, Fault(1100, 110, 110, "nothing")).damage
    assert (empty.start, empty.end, empty.position) == (110, 111, 1100)
    assert place_of(RUN) == "o"
    assert place_of(replace(RUN, origin="s3://parent")) == "s3://parent/o"
    assert place_of(in_wal).endswith("generation 7")


def test_what_is_remembered_is_bounded(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_KNOWN_MAX", "_CLEAN_ENDS_MAX", "_FOLDS_MAX"):
        monkeypatch.setattr(run_checks, name, 3)
    checks, known.clean_end = known.checks, 1
    runs = [replace(RUN, partition_key=PartitionKey(number)) for number in range(10)]
    placed = [replace(run, position=1000 * number) for number, run in enumerate(runs)]
    for number, run in enumerate(placed):
        checks.doubt(run)
        checks.damaged(run, FAULT)
        checks.may_lack(run.partition_key, 1)
        broken = Checked(run.position + 100, 0, 1, FAULT, 5)
        checks.fold(run, run.position, broken)
        if number in (1, 2):
            assert all(checks.is_doubted(one) for one in placed[: number + 1])
            assert all(not checks.is_provable(one, 300) for one in placed[: number + 1])
            assert all(
                raises(lambda key=one.partition_key: checks.raise_known(key, 115))
                for one in placed[: number + 1]
            )
            asked = known.asked
            for one in placed[: number + 1]:
                assert checks.may_lack(one.partition_key, 1)
            assert known.asked == asked
        assert checks.is_doubted(run)
        assert not checks.is_provable(run, 300)
        sizes = map(
            len, (checks._doubted, checks._broken, checks._bad, checks._clean_ends, checks._folds)
        )
        assert max(sizes) <= 3


def test_the_sums_that_were_begun_last_are_kept(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checks, "_FOLDS_MAX", 2)
    fold = known.checks.fold
    first, second, third = (replace(RUN, position=1000 * number, sum=1) for number in (1, 2, 3))

    def read(run: StoredRun, start: int, end: int, total: int) -> bool:
        return fold(run, run.position + start, Checked(run.position + end, 0, 1, None, total))

    assert read(first, 0, 100, 1)
    assert read(second, 0, 100, 1)
    assert read(first, 100, 200, 1)
    assert read(third, 0, 100, 1)
    assert not read(first, 200, 300, 1), "its sum is known, and another"
    assert not read(third, 100, 300, 1)
    assert read(second, 100, 300, 1), "it is known no more"


def test_bytes_that_are_right_again_are_no_damage_any_more(known: Known) -> None:
    checks = known.checks
    checks.damaged(RUN, FAULT)
    checks.right(RUN, 1101, 1300)
    checks.right(replace(RUN, object_key="p"), 1000, 1300)
    assert checks.damages.known()
    checks.right(RUN, 1000, 1101)
    assert not checks.damages.known()
