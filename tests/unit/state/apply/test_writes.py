"""CommitWrite: all of a write or nothing, and once per (writer, batch)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.state.answers import (
    BatchStatus,
    Condemned,
    Done,
    Refusal,
    RunsCommitted,
    WriteCommitted,
)
from penstock.state.changes import HeadMoved
from penstock.state.commands import CondemnObjects
from penstock.state.pipeline_commands import CloseJob, ExpireWriters, WriteRun
from unit.state.orders import KEY, batch, commit
from unit.state.pipelines import OTHER, SIZE, Pipeline, key_of, output, reason, write


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    found = Pipeline(tmp_path)
    yield found
    found.check()
    found.close()


def run(position: int, *batches: list[int], key: int = KEY, index: int = 0) -> WriteRun:
    flat = [value for one in batches for value in one]
    return WriteRun(partition_key=key, object=index, position=position, batches=flat)


def test_batches_of_many_partitions_and_objects_get_offsets(pipeline: Pipeline) -> None:
    pipeline.named("before", batch(7))
    job = pipeline.open_job()
    pipeline.time_ms = 3_000
    answer = pipeline.one(
        write(
            job,
            objects=[output(job), output(job, 1)],
            runs=[
                run(16, batch(2, newer=50), batch(3, newer=-20), key=OTHER),
                run(500, batch(1), key=OTHER),
                run(600, batch(4)),
                run(700, batch(5)),
                run(16, batch(6), index=1),
            ],
        )
    )
    assert answer == WriteCommitted([OTHER, 0, 6, KEY, 7, 22])
    assert pipeline.changes[-2:] == [HeadMoved(OTHER, 0, 6), HeadMoved(KEY, 0, 22)]
    assert pipeline.runs(OTHER) == [(0, 5, key_of(job)), (5, 6, key_of(job))]
    # Adjacent in one object: one run; and never across objects.
    assert pipeline.runs() == [
        (0, 7, "before"),
        (7, 16, key_of(job)),
        (16, 22, key_of(job, 1)),
    ]
    first = pipeline.queries.runs_from(OTHER, 0, limit=1)[0]
    assert (first.raw, first.max_timestamp, first.batch_count, first.length) == (1, 50, 2, 200)
    assert pipeline.live_runs() == {"before": 1, key_of(job): 3, key_of(job, 1): 1}
    row = pipeline.queries.writer("w")
    assert row is not None
    assert (row.incarnation, row.batch_id, row.time_ms) == ("first", 0, 3_000)


def test_a_replayed_batch_is_stored_once_and_gets_the_first_answer(pipeline: Pipeline) -> None:
    first = pipeline.open_job()
    assert pipeline.one(write(first, 4)) == WriteCommitted([KEY, 0, 3])
    pipeline.named("between", batch(5))
    again = pipeline.open_job()
    pipeline.machine.drop_caches()
    for job in (first, again):
        replayed = write(job, 4, objects=[output(job, 99)])
        assert pipeline.one(replayed) == WriteCommitted([KEY, 0, 3], repeated=True)
        # Its answer may be what was lost, its job closed since.
        pipeline.one(CloseJob(job=job))
        assert pipeline.one(replayed) == WriteCommitted([KEY, 0, 3], repeated=True)
        assert key_of(job, 99) not in pipeline.live_runs()
    assert [row[:2] for row in pipeline.runs()] == [(0, 3), (3, 8)]


def test_an_earlier_batch_and_another_checkpoint_are_refused(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    pipeline.one(write(job, 4))
    assert reason(pipeline.one(write(job, 3))) is Refusal.STALE_WRITE
    for batch_id in (0, 4, 5):
        other = write(job, batch_id, incarnation="second", objects=[output(job, 77)])
        assert reason(pipeline.one(other)) is Refusal.WRITER_IN_USE
    assert pipeline.one(write(job, 4, writer_id="v", objects=[output(job, 88)])) == (
        WriteCommitted([KEY, 3, 6])
    )
    # Batches without rows are not committed, so that numbers are left out.
    assert pipeline.one(write(job, 9)) == WriteCommitted([KEY, 6, 9])


def test_all_of_it_or_nothing(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    unknown = write(job, runs=[run(16, batch(2)), run(200, batch(2), key=KEY + 2)])
    assert reason(pipeline.one(unknown)) is Refusal.UNKNOWN_PARTITION
    pipeline.one(write(job, writer_id="v", runs=[], objects=[output(job, 5)]))
    assert pipeline.one(CondemnObjects(keys=[key_of(job, 5)])) == Condemned([key_of(job, 5)])
    condemned = write(job, objects=[output(job), output(job, 5)])
    assert reason(pipeline.one(condemned)) is Refusal.OBJECT_CONDEMNED
    assert pipeline.runs() == []
    assert pipeline.queries.writer("w") is None
    assert list(pipeline.live_runs()) == [key_of(job, 5)]
    assert pipeline.one(write(job)) == WriteCommitted([KEY, 0, 3])
    assert reason(pipeline.one(write(job, 1, objects=[output(job)]))) is Refusal.OBJECT_EXISTS


def test_an_object_that_no_run_is_in_is_unreferenced(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    assert pipeline.one(write(job, runs=[])) == WriteCommitted([])
    assert pipeline.queries.unreferenced_objects(limit=9) == [key_of(job)]
    assert pipeline.one(write(job, runs=[], objects=[output(job, 9)])) == (
        WriteCommitted([], repeated=True)
    )


def test_batches_of_idempotent_producers_are_the_next_of_their_sequences(
    pipeline: Pipeline,
) -> None:
    job = pipeline.open_job()
    pipeline.one(commit(batch(2, producer=(7, 0, 0))))

    def sent(batch_id: int, *batches: list[int]) -> Any:
        return pipeline.one(write(job, batch_id, runs=[run(16, *batches)]))

    gap = sent(0, batch(2, producer=(7, 0, 2)), batch(1, producer=(7, 0, 5)))
    assert reason(gap) is Refusal.OUT_OF_ORDER_SEQUENCE
    stored_before = sent(1, batch(2, producer=(7, 0, 0)))
    assert reason(stored_before) is Refusal.OUT_OF_ORDER_SEQUENCE
    assert [row[:2] for row in pipeline.runs()] == [(0, 2)]
    good = sent(2, batch(2, producer=(7, 0, 2)), batch(1, producer=(7, 1, 0)), batch(9))
    assert good == WriteCommitted([KEY, 2, 14])
    assert reason(sent(3, batch(1, producer=(7, 0, 4)))) is Refusal.FENCED_PRODUCER
    # What was judged is what the partition's state now says.
    again = pipeline.one(commit(batch(1, producer=(7, 1, 0)), position=900))
    assert again == RunsCommitted([[BatchStatus.DUPLICATE, 4]])
    # A producer that the partition doesn't know may begin anywhere.
    fresh = sent(4, batch(1, producer=(8, 3, 40)), batch(1, producer=(8, 3, 41)))
    assert fresh == WriteCommitted([KEY, 14, 16])


@pytest.mark.parametrize(
    "fields",
    [
        {"runs": [run(16, [100, 3, 0, -1, -1])]},
        {"runs": [run(16)]},
        {"runs": [run(-1, batch(1))]},
        {"runs": [run(SIZE - 99, batch(1))]},
        {"runs": [run((1 << 64) - 1, batch(1))]},
        {"runs": [run(16, batch(0))]},
        {"runs": [run(16, batch(1 << 31))]},
        {"runs": [run(16, batch(1, length=0))]},
        {"runs": [run(16, batch(1, newer=1 << 63))]},
        {"runs": [run(16, batch(1, newer=1 << 62), batch(1, newer=1 << 62))]},
        {"runs": [run(16, batch(1, producer=(-2, 0, 0)))]},
        {"runs": [run(16, batch(1, producer=(1 << 63, 0, 0)))]},
        {"runs": [run(16, batch(1, producer=(1, -1, 0)))]},
        {"runs": [run(16, batch(1, producer=(1, 0, 1 << 31)))]},
        {"runs": [run(16, batch(1), index=1)]},
        {"runs": [run(16, batch(1), index=-1)]},
        {"runs": [run(16, batch(1), key=1 << 63)]},
        {"runs": [run(16, batch(1), key=-1)]},
        {"batch_id": -1},
        {"batch_id": 1 << 63},
        {"writer_id": ""},
        {"writer_id": "x" * 1001},
        {"incarnation": ""},
    ],
)
def test_what_is_no_write_is_refused(pipeline: Pipeline, fields: dict[str, Any]) -> None:
    job = pipeline.open_job()
    assert reason(pipeline.one(write(job, **fields))) is Refusal.MALFORMED
    assert pipeline.runs() == []
    assert pipeline.live_runs() == {}
    assert pipeline.queries.writers_page("", limit=9) == []


def test_only_objects_of_the_job(pipeline: Pipeline) -> None:
    job, other = pipeline.open_job(), pipeline.open_job()
    for objects in ([output(other)], [output(job), output(job)]):
        assert reason(pipeline.one(write(job, objects=objects))) is Refusal.INVALID_OBJECT


def test_writers_are_forgotten_unless_they_have_written_since(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    pipeline.one(write(job))
    pipeline.one(write(job, writer_id="v", objects=[output(job, 1)]))
    page = pipeline.queries.writers_page("", limit=9)
    assert page == [("v", 1_000), ("w", 1_000)]
    assert pipeline.queries.writers_page("v", limit=9) == page[1:]
    pipeline.time_ms = 2_000
    pipeline.one(write(job, 1, objects=[output(job, 2)]))
    assert pipeline.one(ExpireWriters(writers=[*page, ("x", 1 << 63)])) == Done()
    assert pipeline.queries.writers_page("", limit=9) == [("w", 2_000)]
