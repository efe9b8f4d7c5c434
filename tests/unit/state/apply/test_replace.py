"""ReplaceRuns: runs give way to a job's only as they were listed, and counts stay exact."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.state.answers import Condemned, Refusal, RunsReplaced
from penstock.state.changes import RunsMoved
from penstock.state.commands import CondemnObjects, DeleteTopic, TrimLog
from penstock.state.pipeline_commands import (
    CloseJob,
    OutputObject,
    ReplacedPartition,
    ReplaceRuns,
)
from penstock.state.rows import CleanRow
from unit.state.orders import KEY, TOPIC_ID, batch, commit, store
from unit.state.pipelines import OTHER, SIZE, Pipeline, key_of, output, reason, replacing


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Three runs in three objects, offsets 0 to 30."""
    found = Pipeline(tmp_path)
    for name in "abc":
        found.named(name, batch(10, newer=ord(name)))
    yield found
    found.check()
    found.close()


def altered(command: ReplaceRuns, **fields: Any) -> ReplaceRuns:
    """With other fields of its only partition."""
    (listed,) = command.partitions
    return msgspec.structs.replace(command, partitions=[msgspec.structs.replace(listed, **fields)])


def test_runs_of_many_objects_become_one(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job, keep=2)
    assert pipeline.one(command) == RunsReplaced([0])
    assert pipeline.changes[-1] == RunsMoved(partition_key=KEY, start=0, end=30)
    (run,) = pipeline.queries.runs_from(KEY, 0, limit=9)
    assert (run.base_offset, run.end_offset, run.object_key) == (0, 30, key_of(job))
    assert (run.length, run.position, run.raw, run.batch_count) == (150, 16, 0, 3)
    assert run.max_timestamp == ord("c")
    assert pipeline.bytes_of() == 150
    assert pipeline.live_runs() == {"a": 0, "b": 0, "c": 0, key_of(job): 1}
    assert set(pipeline.queries.unreferenced_objects(limit=9)) == {"a", "b", "c"}


def test_the_log_goes_on_behind_what_was_replaced(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job, end=20)
    pipeline.named("d", batch(1))
    assert pipeline.one(command) == RunsReplaced([0])
    assert pipeline.runs() == [(0, 20, key_of(job)), (20, 30, "c"), (30, 31, "d")]


def test_a_repeat_gets_the_first_answer_and_another_number_none(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job, end=20)
    first = pipeline.one(command)
    pipeline.machine.drop_caches()
    assert pipeline.one(command) == first == RunsReplaced([0])
    later = replacing(pipeline.queries, job, n=3, number=1)
    assert reason(pipeline.one(later)) is Refusal.OUT_OF_ORDER_COMMIT
    earlier = msgspec.structs.replace(later, n=0)
    assert reason(pipeline.one(earlier)) is Refusal.OUT_OF_ORDER_COMMIT
    assert pipeline.one(msgspec.structs.replace(later, n=2)) == RunsReplaced([0])
    assert reason(pipeline.one(command)) is Refusal.OUT_OF_ORDER_COMMIT
    assert pipeline.queries.pipeline_jobs()[0].last_n == 2


def test_what_was_trimmed_meanwhile_does_not_come_back(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job)
    pipeline.one(TrimLog(items=[KEY, 10]))
    assert pipeline.one(command) == RunsReplaced([Refusal.INPUT_CHANGED])
    assert pipeline.runs() == [(10, 20, "b"), (20, 30, "c")]
    assert pipeline.live_runs()[key_of(job)] == 0, "what was put for nothing is unreferenced"


def test_what_another_job_has_replaced_is_left_to_it(pipeline: Pipeline) -> None:
    one, two = pipeline.open_job(), pipeline.open_job()
    slow = replacing(pipeline.queries, one)
    assert pipeline.one(replacing(pipeline.queries, two, start=10, end=20)) == RunsReplaced([0])
    assert pipeline.one(slow) == RunsReplaced([Refusal.INPUT_CHANGED])
    assert pipeline.runs() == [(0, 10, "a"), (10, 20, key_of(two)), (20, 30, "c")]


@pytest.mark.parametrize("field", range(5))
def test_an_input_must_be_there_as_listed_in_every_number(pipeline: Pipeline, field: int) -> None:
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job)
    # The middle run's.
    inputs = list(command.partitions[0].inputs)
    inputs[5 + field] += 1
    (code,) = pipeline.one(altered(command, inputs=inputs)).codes  # type: ignore[union-attr]
    assert code in (Refusal.INPUT_CHANGED, Refusal.INVALID_REPLACEMENT)
    assert pipeline.runs() == [(0, 10, "a"), (10, 20, "b"), (20, 30, "c")]


def test_a_run_that_was_not_listed_is_not_lost(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job)
    inputs = command.partitions[0].inputs
    without_middle = altered(command, inputs=inputs[:5] + inputs[10:])
    assert pipeline.one(without_middle) == RunsReplaced([Refusal.INPUT_CHANGED])
    assert len(pipeline.runs()) == 3


def test_a_run_in_the_wal_between_two_in_objects_is_not_lost(pipeline: Pipeline) -> None:
    pipeline.one(commit(batch(4)))
    pipeline.named("d", batch(6))
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job)
    assert pipeline.one(command) == RunsReplaced([Refusal.INPUT_CHANGED])
    # Once it has moved to an object, a plan lists it.
    pipeline.one(store(pipeline.queries.wal_runs(), object_key="moved"))
    assert pipeline.one(replacing(pipeline.queries, job, n=2, number=1)) == RunsReplaced([0])
    assert pipeline.runs() == [(0, 40, key_of(job, 1))]


def test_each_partition_is_replaced_by_itself(pipeline: Pipeline) -> None:
    pipeline.named("other", batch(5), partition=OTHER)
    job = pipeline.open_job()
    one = replacing(pipeline.queries, job)
    two = replacing(pipeline.queries, job, key=OTHER)
    unknown = msgspec.structs.replace(one.partitions[0], partition_key=KEY + 2)
    shifted = [*two.partitions[0].inputs[:2], 3, *two.partitions[0].inputs[3:]]
    command = ReplaceRuns(
        job=job,
        n=1,
        input_keys=[*one.input_keys, *two.input_keys],
        objects=one.objects,
        partitions=[
            unknown,
            msgspec.structs.replace(one.partitions[0], clean_end=31),
            msgspec.structs.replace(two.partitions[0], inputs=shifted),
        ],
    )
    assert pipeline.one(command) == RunsReplaced(
        [Refusal.UNKNOWN_PARTITION, Refusal.INVALID_REPLACEMENT, 0]
    )
    assert pipeline.runs(OTHER) == [(0, 5, key_of(job))]
    assert len(pipeline.runs()) == 3
    assert pipeline.queries.clean_rows([KEY]) == {}


def test_gaps_are_kept(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job, clean_end=30)
    apart = altered(command, outputs=[3, 5, 0, 16, 20, 7, 1, 22, 30, 0, 36, 30, 9, 2])
    assert pipeline.one(apart) == RunsReplaced([0])
    cleaned = RunsMoved(partition_key=KEY, start=0, end=30, cleaned=True)
    assert pipeline.changes[-1] == cleaned, "readers' memories must forget what is gone"
    assert pipeline.runs() == [(3, 5, key_of(job)), (22, 30, key_of(job))]
    assert pipeline.live_runs()[key_of(job)] == 2
    assert pipeline.bytes_of() == 50
    assert pipeline.queries.clean_rows([KEY, OTHER]) == {KEY: CleanRow(30, 1_000)}
    # Joining over a gap that there was is no loss.
    joined = replacing(pipeline.queries, job, n=2, number=1)
    assert pipeline.one(joined) == RunsReplaced([0])
    assert pipeline.runs() == [(3, 30, key_of(job, 1))]


LAST = (22, 30, 0, 36, 30, 9, 2)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"outputs": [0, 20, 0, 16, 20, 7, 1, *LAST], "clean_end": 22}, 0),
        ({"outputs": [0, 20, 0, 16, 20, 7, 1, *LAST], "clean_end": 21}, 1),
        ({"outputs": [0, 20, 0, 16, 20, 7, 1, *LAST], "clean_end": -1}, 1),
        ({"outputs": [*LAST], "clean_end": 21}, 1),
        ({"outputs": [1, 30, 0, 36, 30, 9, 2]}, 1),
        ({"outputs": [0, 29, 0, 36, 30, 9, 2], "clean_end": 30}, 1),
        ({"outputs": [], "clean_end": 30}, 1),
    ],
)
def test_offsets_go_only_where_the_log_is_clean_and_never_the_last(
    pipeline: Pipeline, fields: dict[str, Any], code: int
) -> None:
    """A reader in a gap at the log's end would be told that there is more, and never get it."""
    command = altered(replacing(pipeline.queries, pipeline.open_job()), **fields)
    expected = Refusal.INVALID_REPLACEMENT if code else 0
    assert pipeline.one(command) == RunsReplaced([expected])
    assert (len(pipeline.runs()) == 3) == bool(code)


def test_what_is_clean_never_goes_back_and_survives_a_trim(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    note = ReplacedPartition(partition_key=KEY, inputs=[], outputs=[], clean_end=20)
    command = ReplaceRuns(job=job, n=1, input_keys=[], objects=[], partitions=[note])
    assert pipeline.one(command) == RunsReplaced([0])
    pipeline.time_ms = 2_000
    less = msgspec.structs.replace(note, clean_end=15)
    command = msgspec.structs.replace(command, n=2, partitions=[less])
    assert pipeline.one(command) == RunsReplaced([0])
    pipeline.one(TrimLog(items=[KEY, 30]))
    assert pipeline.queries.clean_rows([KEY]) == {KEY: CleanRow(20, 2_000)}
    pipeline.one(DeleteTopic(topic_id=TOPIC_ID))
    assert pipeline.queries.clean_rows([KEY]) == {}


def test_nothing_comes_back_below_the_start_of_a_run_that_a_trim_cut(pipeline: Pipeline) -> None:
    pipeline.one(TrimLog(items=[KEY, 5]))
    assert pipeline.runs()[0] == (0, 10, "a")
    job = pipeline.open_job()
    command = altered(
        replacing(pipeline.queries, job), outputs=[0, 5, 0, 16, 50, 1, 1, 5, 30, 0, 66, 250, 1, 3]
    )
    assert pipeline.one(command) == RunsReplaced([0])
    assert pipeline.runs() == [(5, 30, key_of(job))]
    assert pipeline.bytes_of() == 250


@pytest.mark.parametrize(
    "fields",
    [
        {"outputs": [0, 30, 0, 16, 300, 1]},
        {"inputs": [0, 30, 0, 16]},
        {"inputs": []},
        {"outputs": [0, 31, 0, 16, 300, 1, 3]},
        {"outputs": [5, 5, 0, 16, 300, 1, 3]},
        {"outputs": [0, 20, 0, 16, 150, 1, 3, 19, 30, 0, 166, 150, 1, 3]},
        {"outputs": [20, 30, 0, 16, 150, 1, 3, 0, 10, 0, 166, 150, 1, 3]},
        {"outputs": [-1, 30, 0, 16, 300, 1, 3]},
        {"outputs": [0, 30, 1, 16, 300, 1, 3]},
        {"outputs": [0, 30, -1, 16, 300, 1, 3]},
        {"outputs": [0, 30, 0, -1, 300, 1, 3]},
        {"outputs": [0, 30, 0, 16, 0, 1, 3]},
        {"outputs": [0, 30, 0, 16, SIZE - 15, 1, 3]},
        {"outputs": [0, 30, 0, 16, 300, 1, 0]},
        {"outputs": [0, 30, 0, 16, 300, 1 << 63, 3]},
        {"inputs": [0, 30, 0, 16, (1 << 64) - 1]},
        {"clean_end": 31},
        {"clean_end": 1 << 63},
        {"partition_key": 1 << 63},
    ],
)
def test_what_is_no_replacement_is_refused(pipeline: Pipeline, fields: dict[str, Any]) -> None:
    job = pipeline.open_job()
    command = altered(replacing(pipeline.queries, job), **fields)
    assert pipeline.one(command) == RunsReplaced([Refusal.INVALID_REPLACEMENT])
    assert pipeline.runs() == [(0, 10, "a"), (10, 20, "b"), (20, 30, "c")]
    assert pipeline.bytes_of() == 300


def test_only_objects_of_the_job_that_are_not_named_yet(pipeline: Pipeline) -> None:
    job, other = pipeline.open_job(), pipeline.open_job()
    # An object of the job that was named before, and isn't any more.
    pipeline.one(replacing(pipeline.queries, job, number=5))
    pipeline.one(TrimLog(items=[KEY, -1]))
    assert pipeline.one(CondemnObjects(keys=[key_of(job, 5)])) == Condemned([key_of(job, 5)])
    pipeline.named("d", batch(1))
    good = replacing(pipeline.queries, job)
    refused: list[tuple[list[OutputObject], Refusal]] = [
        ([output(other)], Refusal.INVALID_OBJECT),
        ([OutputObject(key="segments/00/1-1-1.seg", size_bytes=9)], Refusal.INVALID_OBJECT),
        ([output(job), output(job)], Refusal.INVALID_OBJECT),
        ([output(job, size=-1)], Refusal.INVALID_OBJECT),
        ([output(job, size=(1 << 64) - 1)], Refusal.INVALID_OBJECT),
        ([output(job), output(job, 5)], Refusal.OBJECT_CONDEMNED),
    ]
    n = 1
    for objects, expected in refused:
        n += 1
        command = msgspec.structs.replace(good, n=n, objects=objects)
        assert reason(pipeline.one(command)) is expected
        # The refusal is that commit's answer, so that the driver goes on with the next number.
        assert reason(pipeline.one(command)) is expected
    assert key_of(job) not in pipeline.live_runs(), "refused whole: nothing was named"
    assert pipeline.one(msgspec.structs.replace(good, n=n + 1)) == RunsReplaced([0])
    again = msgspec.structs.replace(good, n=n + 2)
    assert reason(pipeline.one(again)) is Refusal.OBJECT_EXISTS


def test_a_condemned_input_is_no_input_any_more(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job)
    pipeline.one(TrimLog(items=[KEY, -1]))
    pipeline.one(CondemnObjects(keys=list("abc")))
    assert pipeline.one(command) == RunsReplaced([Refusal.INPUT_CHANGED])


def test_in_one_entry_with_what_it_reads(pipeline: Pipeline) -> None:
    """The runs of the same transaction are still in memory alone."""
    job = pipeline.open_job()
    command = replacing(pipeline.queries, job, end=20)
    answers = pipeline.send(command, TrimLog(items=[KEY, 20]), CloseJob(job=job))
    assert answers[0] == RunsReplaced([0])
    assert pipeline.runs() == [(20, 30, "c")]
