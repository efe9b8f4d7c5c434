"""The sum of each run in the state is that of the batches that it was made of, and shows whether
bytes are those batches."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import PartitionKey
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.sums import SUM_MASK, batch_sum, crcs_of, pack_crcs, partition_seed, run_sum
from penstock.state.answers import Refusal, RunsReplaced, WriteCommitted
from penstock.state.commands import CommitRuns, CreateTopic, RunCommit, TrimLog
from penstock.state.pipeline_commands import ReplaceRuns, WriteRun
from penstock.state.schema import FEATURE_LEVEL_MAX, INTEGRITY_LEVEL, MERGING_LEVEL
from unit.state.orders import KEY, TOPIC_ID, batch, commit, store
from unit.state.pipelines import OTHER, Pipeline, output, replacing, write

SEEDS = {KEY: partition_seed(TOPIC_ID, 0), OTHER: partition_seed(TOPIC_ID, 1)}


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    found = Pipeline(tmp_path, level=FEATURE_LEVEL_MAX)
    yield found
    found.check()
    found.close()


def sums(pipeline: Pipeline, key: PartitionKey = KEY) -> dict[int, int | None]:
    """By base offset."""
    return {run.base_offset: run.sum for run in pipeline.queries.runs_from(key, 0, limit=99)}


def expected(batches: Sequence[tuple[int, int]], *, key: PartitionKey = KEY) -> int:
    """Of (base offset, CRC) of batches of 100 bytes."""
    numbers = (batch_sum(SEEDS[key], base, 0, crc, 100) for base, crc in batches)
    return sum(numbers) & SUM_MASK


# -- commits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("crcs", [[11, 22], [11, 22, 33]])
@pytest.mark.parametrize("count", [1, 4])
def test_crcs_that_are_not_one_per_batch_give_no_sum(
    pipeline: Pipeline, crcs: list[int], count: int
) -> None:
    pipeline.one(commit(*(batch(1) for _ in range(count)), crcs=crcs))
    assert sums(pipeline) == {0: None}


def test_batches_that_are_joined_add_up_and_duplicates_do_not_count(pipeline: Pipeline) -> None:
    producer = [(7, 0, sequence) for sequence in (0, 2, 2, 3)]
    counts = (2, 1, 1, 4)
    batches = [batch(n, producer=one) for n, one in zip(counts, producer, strict=True)]
    pipeline.one(commit(*batches, crcs=[11, 22, 33, 44]))
    # The repeat's bytes lie between: what follows them is another run.
    assert sums(pipeline) == {0: expected([(0, 11), (2, 22)]), 3: expected([(3, 44)])}


@pytest.mark.parametrize("crcs", [b"", b"123", pack_crcs([1]), pack_crcs([1, 2, 3])])
def test_crcs_of_another_number_leave_the_sum_unknown(pipeline: Pipeline, crcs: bytes) -> None:
    run = RunCommit(partition_key=KEY, position=0, batches=[*batch(), *batch()], crcs=crcs)
    pipeline.one(CommitRuns(runs=[run], wal=1))
    assert sums(pipeline) == {0: None}


def test_below_the_level_no_sum_is_kept(tmp_path: Path) -> None:
    below = Pipeline(tmp_path, level=INTEGRITY_LEVEL - 1)
    below.one(commit(batch(), crcs=[5]))
    below.one(commit(batch(), crcs=[5], position=900))
    below.one(store(below.queries.wal_runs(), object_key="o"))
    assert sums(below) == {0: None}
    command = replacing(below.queries, below.open_job())
    (listed,) = command.partitions
    said = msgspec.structs.replace(listed, sums=[7])
    assert below.one(msgspec.structs.replace(command, partitions=[said])) == RunsReplaced([0])
    assert sums(below) == {0: None}
    below.close()


def test_what_a_writer_wrote_has_its_sum(pipeline: Pipeline) -> None:
    run = WriteRun(partition_key=KEY, object=0, position=16, batches=batch(3), crcs=pack_crcs([77]))
    answer = pipeline.one(write(pipeline.open_job(), runs=[run]))
    assert isinstance(answer, WriteCommitted)
    assert sums(pipeline) == {0: expected([(0, 77)])}


# -- moves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("takes_all", [True, False])
def test_a_move_joins_sums(pipeline: Pipeline, *, takes_all: bool) -> None:
    """Both ways of it: all runs as they are listed, and one by one."""
    for number in range(4):
        pipeline.one(commit(batch(), crcs=[number], position=1000 * number))
    runs = pipeline.queries.wal_runs()
    # Sums that overflow SQLite's integers when it adds them.
    assert sum(run.sum or 0 for run in runs) > 1 << 63
    moved = runs if takes_all else [runs[0], runs[2], runs[3]]
    pipeline.one(store(moved, object_key="o"))
    if takes_all:
        assert sums(pipeline) == {0: expected([(at, at) for at in range(4)])}
    else:
        found = sums(pipeline)
        assert found == {at: expected([(at, at)]) for at in range(2)} | {
            2: expected([(2, 2), (3, 3)])
        }


@pytest.mark.parametrize("takes_all", [True, False])
def test_a_move_with_an_unknown_sum_is_unknown(pipeline: Pipeline, *, takes_all: bool) -> None:
    for number, crcs in enumerate(([1], [], [3])):
        pipeline.one(commit(batch(), crcs=crcs, position=1000 * number))
    runs = pipeline.queries.wal_runs()
    pipeline.one(store(runs if takes_all else runs[1:], object_key="o"))
    assert sums(pipeline) == ({0: None} if takes_all else {0: expected([(0, 1)]), 1: None})


# -- replacements ----------------------------------------------------------------------------------


def _joined(pipeline: Pipeline, said: list[int], **fields: object) -> ReplaceRuns:
    command = replacing(pipeline.queries, pipeline.open_job())
    (listed,) = command.partitions
    changed = msgspec.structs.replace(listed, sums=said, **fields)  # type: ignore[arg-type]
    return msgspec.structs.replace(command, partitions=[changed])


def _three(pipeline: Pipeline) -> int:
    """Three runs in objects; the sum of all of them."""
    for number, name in enumerate("abc"):
        pipeline.named(name, batch(10), crcs=[number])
    return expected([(0, 0), (10, 1), (20, 2)])


def test_a_join_must_have_the_sum_of_its_inputs(pipeline: Pipeline) -> None:
    total = _three(pipeline)
    for said in ([total ^ 1], [total, total], [1 << 63]):
        answer = pipeline.one(_joined(pipeline, said))
        assert answer == RunsReplaced([Refusal.INVALID_REPLACEMENT]), said
    assert len(sums(pipeline)) == 3
    assert pipeline.one(_joined(pipeline, [total])) == RunsReplaced([0])
    assert sums(pipeline) == {0: total}


@pytest.mark.parametrize("said", [[], [-1]])
def test_a_join_that_does_not_say_its_sum_loses_it(pipeline: Pipeline, said: list[int]) -> None:
    _three(pipeline)
    assert pipeline.one(_joined(pipeline, said)) == RunsReplaced([0])
    assert sums(pipeline) == {0: None}


def test_where_batches_are_left_out_the_job_is_believed(pipeline: Pipeline) -> None:
    """By key, or below the log's start: the outputs hold other batches, which only the job has
    read."""
    _three(pipeline)
    assert pipeline.one(_joined(pipeline, [5], clean_end=30)) == RunsReplaced([0])
    assert sums(pipeline) == {0: 5}


def test_below_the_logs_start_batches_may_be_left_out(pipeline: Pipeline) -> None:
    pipeline.named("a", batch(10), batch(10), crcs=[1, 2])
    pipeline.one(TrimLog(items=[KEY, 10]))
    command = _joined(pipeline, [expected([(10, 2)])])
    (listed,) = command.partitions
    outputs = [10, *listed.outputs[1:]]
    kept = msgspec.structs.replace(listed, outputs=outputs)
    assert pipeline.one(msgspec.structs.replace(command, partitions=[kept])) == RunsReplaced([0])
    assert sums(pipeline) == {10: expected([(10, 2)])}


def test_an_unknown_input_can_not_be_compared_and_the_output_is_known(pipeline: Pipeline) -> None:
    pipeline.named("a", batch(10), crcs=[1])
    pipeline.named("b", batch(10))
    assert pipeline.one(_joined(pipeline, [5])) == RunsReplaced([0])
    assert sums(pipeline) == {0: 5}


def test_outputs_may_cut_the_inputs_in_other_places(pipeline: Pipeline) -> None:
    pipeline.named("a", batch(10), batch(10), crcs=[1, 2])
    pipeline.named("b", batch(10), crcs=[3])
    first, second = expected([(0, 1)]), expected([(10, 2), (20, 3)])
    command = _joined(pipeline, [first, second])
    (listed,) = command.partitions
    outputs = [0, 10, 0, 16, 100, 0, 1, 10, 30, 0, 116, 200, 0, 2]
    cut = msgspec.structs.replace(listed, outputs=outputs)
    command = msgspec.structs.replace(
        command, partitions=[cut], objects=[output(command.job, size=1000)]
    )
    assert pipeline.one(command) == RunsReplaced([0])
    assert sums(pipeline) == {0: first, 10: second}


def test_merged_runs_have_sums_of_their_own(pipeline: Pipeline) -> None:
    total = _three(pipeline)
    invalid = RunsReplaced([Refusal.INVALID_REPLACEMENT])
    for said, fields in (
        ([total ^ 1], {"merged": False}),
        ([], {"merged": True}),
        ([-1], {"merged": True}),
        ([total ^ 1], {"merged": True, "clean_end": 30}),
        # More batches than the inputs' three.
        ([total ^ 1], {"merged": True, "outputs": [0, 30, 0, 16, 300, 0, 4]}),
        # A merged batch has all offsets of its inputs.
        ([total ^ 1], {"merged": True, "outputs": [0, 29, 0, 16, 300, 0, 1]}),
    ):
        assert pipeline.one(_joined(pipeline, said, **fields)) == invalid, (said, fields)
    merged = [0, 30, 0, 16, 300, 0, 1]
    changes = pipeline.one(_joined(pipeline, [total ^ 1], merged=True, outputs=merged))
    assert changes == RunsReplaced([0])
    assert sums(pipeline) == {0: total ^ 1}


def test_merged_runs_leave_producers_as_they_are(pipeline: Pipeline) -> None:
    for number, name in enumerate("abc"):
        pipeline.named(name, batch(10, producer=(7, 0, 10 * number)), crcs=[number])
    before = pipeline.queries.producer_ranges(KEY, 7)
    outputs = [0, 30, 0, 16, 300, 0, 1]
    assert pipeline.one(_joined(pipeline, [5], merged=True, outputs=outputs)) == RunsReplaced([0])
    assert (
        pipeline.queries.producer_ranges(KEY, 7) == before == (0, [0, 9, 0, 10, 19, 10, 20, 29, 20])
    )


def test_below_its_level_merging_counts_for_nothing(tmp_path: Path) -> None:
    """A release of then leaves the field out, and refuses what has another sum."""
    below = Pipeline(tmp_path, level=MERGING_LEVEL - 1)
    total = _three(below)
    merged = _joined(below, [total ^ 1], merged=True)
    assert below.one(merged) == RunsReplaced([Refusal.INVALID_REPLACEMENT])
    assert below.one(_joined(below, [total], merged=True)) == RunsReplaced([0])
    below.close()


# -- what a reader sees ----------------------------------------------------------------------------


def _body(value: bytes, count: int) -> bytes:
    return bytes(
        encode_batch(
            [
                Record(offset_delta=at, timestamp=5, key=None, value=value, headers=())
                for at in range(count)
            ]
        )
    )


VALUES = st.lists(
    st.tuples(st.binary(min_size=3, max_size=3), st.integers(1, 3)),
    min_size=2,
    max_size=5,
    unique_by=lambda one: one[0],
)


@given(VALUES, st.data())
def test_only_the_batches_that_were_committed_have_the_sum(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    """Two batches swapped, one of them another one's, or the run of another partition."""
    pipeline = Pipeline(tmp_path_factory.mktemp("sums"), level=FEATURE_LEVEL_MAX)
    bodies = [_body(*one) for one in values]
    listed = [
        number
        for body, (_, count) in zip(bodies, values, strict=True)
        for number in (len(body), count, 0, -1, -1, -1)
    ]
    run = RunCommit(partition_key=KEY, position=0, batches=listed, crcs=crcs_of(bodies))
    pipeline.one(CommitRuns(runs=[run], wal=1))
    (stored,) = pipeline.queries.runs_from(KEY, 0, limit=9)
    pipeline.close()

    def folded(parts: Sequence[bytes], key: PartitionKey = KEY, base_offset: int = 0) -> int:
        view = memoryview(b"".join(parts))
        return run_sum(view, SEEDS[key], base_offset=base_offset, leader_epoch=0)

    assert folded(bodies) == stored.sum
    for order in itertools.islice(itertools.permutations(bodies), 1, 20):
        assert folded(order) != stored.sum
    first, second = data.draw(st.permutations(range(len(bodies))))[:2]
    doubled = list(bodies)
    doubled[first] = bodies[second]
    assert folded(doubled) != stored.sum
    assert folded(bodies, OTHER) != stored.sum
    assert folded(bodies, base_offset=1) != stored.sum


def test_a_topic_of_the_same_name_has_other_sums(tmp_path: Path) -> None:
    """An older object under a key: the topic was deleted and created, or its cluster restored."""
    pipeline = Pipeline(tmp_path, level=FEATURE_LEVEL_MAX)
    pipeline.one(CreateTopic(name="u", topic_id=b"another topic id", partitions=1))
    (key,) = (key for key, _, _ in pipeline.queries.heads() if key not in (KEY, KEY + 1))
    pipeline.one(commit(batch(), crcs=[9]))
    pipeline.one(commit(batch(), crcs=[9], key=key, position=500))
    assert sums(pipeline)[0] != sums(pipeline, key)[0]
    pipeline.close()
