"""The pipeline's questions: whole pages of runs as of one moment, and what a job holds back."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.ids import PartitionKey
from penstock.state.commands import CondemnObjects, TrimLog
from penstock.state.pipeline_commands import CloseJob, OpenJob
from penstock.state.read import pipeline_queries as module
from penstock.state.read.pipeline_queries import KEYS_PER_STATEMENT
from penstock.state.rows import Backlog, ObjectPlace, RunRows
from unit.state.orders import KEY, batch, commit
from unit.state.pipelines import OTHER, SIZE, Pipeline


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """Partition 0: objects a, b, then two runs in the WAL, then c; partition 1: object d."""
    found = Pipeline(tmp_path)
    found.named("a", batch(10))
    found.named("b", batch(10, length=5_000))
    found.send(commit(batch(5), position=0, wal=7), commit(batch(5), position=900, wal=7))
    found.named("c", batch(10))
    found.named("d", batch(3), partition=OTHER)
    yield found
    found.close()


def spans(found: RunRows) -> list[tuple[int, int, int, str]]:
    return [
        (row[0], row[1], row[2], found.objects[row[4]].key if row[4] else "wal")
        for row in found.rows
    ]


ALL = [
    (KEY, 0, 10, "a"),
    (KEY, 10, 20, "b"),
    (KEY, 20, 25, "wal"),
    (KEY, 25, 30, "wal"),
    (KEY, 30, 40, "c"),
    (OTHER, 0, 3, "d"),
]


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("with_wal", [True, False])
def test_pages_of_any_size_hold_each_run_once(
    pipeline: Pipeline, limit: int, *, with_wal: bool
) -> None:
    found: list[tuple[int, int, int, str]] = []
    after = (-1, -1)
    while True:
        page = pipeline.queries.run_rows(after, limit=limit, with_wal=with_wal)
        assert len(page.rows) <= limit
        assert page.position == pipeline.replica.position
        found += spans(page)
        if len(page.rows) < limit:
            break
        after = page.rows[-1][:2]
    assert found == [row for row in ALL if with_wal or row[3] != "wal"]


def test_a_row_says_where_the_run_lies(pipeline: Pipeline) -> None:
    page = pipeline.queries.run_rows((KEY, 0), limit=2)
    second, third = page.rows
    assert second == (KEY, 10, 20, 0, second[4], 16, 5_000, 0, 1, -1)
    assert page.objects == {second[4]: ObjectPlace("b", SIZE, 1, "")}
    assert third == (KEY, 20, 25, 7, 0, 0, 100, 0, 1, -1)


@pytest.mark.parametrize(
    ("start", "end", "limit", "expected"),
    [
        (0, 40, 9, [0, 10, 20, 25, 30]),
        (9, 11, 9, [0, 10]),
        (10, 10, 9, []),
        (10, 11, 9, [10]),
        (22, 1 << 62, 2, [20, 25]),
        (39, 40, 9, [30]),
        (40, 99, 9, []),
    ],
)
def test_runs_that_overlap_a_range(
    pipeline: Pipeline, start: int, end: int, limit: int, expected: list[int]
) -> None:
    found = pipeline.queries.run_rows_within(KEY, start, end, limit=limit)
    assert [row[1] for row in found.rows] == expected
    objects = pipeline.queries.run_rows_within(KEY, start, end, limit=limit, with_wal=False)
    wanted = [base for base in (0, 10, 30) if base < end and base + 10 > start and start < end]
    assert [row[1] for row in objects.rows] == wanted


@pytest.mark.slow
def test_more_objects_than_one_statement_asks_for(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    count = KEYS_PER_STATEMENT + 3
    for number in range(count):
        pipeline.named(f"o{number}", batch(1))
    page = pipeline.queries.run_rows((-1, -1), limit=10_000)
    assert [page.objects[row[4]].key for row in page.rows] == [f"o{n}" for n in range(count)]
    pipeline.close()


def test_answers_inside_a_moment_are_of_one_state(pipeline: Pipeline) -> None:
    queries = pipeline.queries
    with queries.moment():
        before = queries.run_rows((-1, -1), limit=1)
        with queries.moment():
            pipeline.named("late", batch(1))
        after = queries.run_rows((-1, -1), limit=99)
        assert before.position == after.position == pipeline.replica.position - 1
        assert spans(after) == ALL
    assert len(queries.run_rows((-1, -1), limit=99).rows) == len(ALL) + 1
    with pytest.raises(RuntimeError), queries.moment():
        raise RuntimeError
    assert not queries.is_begun


def test_an_open_job_keeps_what_was_condemned_since_it_began(pipeline: Pipeline) -> None:
    def deletable() -> list[str]:
        return [key for key, _ in pipeline.queries.deletable_objects(limit=9)]

    pipeline.one(TrimLog(items=[KEY, -1]))
    pipeline.one(CondemnObjects(keys=["a"]))
    assert deletable() == ["a"]
    job = pipeline.open_job()
    pipeline.one(CondemnObjects(keys=["b"]))
    later = pipeline.open_job()
    pipeline.one(CondemnObjects(keys=["c"]))
    assert deletable() == ["a"]
    pipeline.one(CloseJob(job=job))
    assert deletable() == ["a", "b"]
    pipeline.one(CloseJob(job=later))
    assert deletable() == ["a", "b", "c"]


def test_in_the_very_entry_that_opens_the_job(pipeline: Pipeline) -> None:
    """Its position is the job's: at that position the object was still live."""

    pipeline.one(TrimLog(items=[KEY, -1]))
    opened = OpenJob(kind="read", name="n", lease_ms=9, age_max_ms=9)
    pipeline.send(CondemnObjects(keys=["a"]), opened)
    assert pipeline.queries.deletable_objects(limit=9) == []


def test_the_backlog_counts_small_runs_among_the_newest(pipeline: Pipeline) -> None:
    def backlog(newest_max: int, small_bytes: int) -> list[Backlog]:
        return pipeline.queries.compaction_backlog(
            -1, limit=9, newest_max=newest_max, small_bytes=small_bytes
        )

    assert backlog(9, 1_000) == [Backlog(KEY, 2, 200), Backlog(OTHER, 1, 100)]
    assert backlog(2, 1_000) == [Backlog(KEY, 1, 100), Backlog(OTHER, 1, 100)]
    assert backlog(9, 100) == [Backlog(KEY, 0, 0), Backlog(OTHER, 0, 0)]
    assert pipeline.queries.compaction_backlog(KEY, limit=1, newest_max=9, small_bytes=1 << 40) == [
        Backlog(OTHER, 1, 100)
    ]


def test_a_page_reads_no_more_than_its_rows(tmp_path: Path) -> None:
    """Each statement searches in the tables' own order; what is sorted is the two short pages that
    are merged."""

    pipeline = Pipeline(tmp_path)
    with sqlite3.connect(pipeline.path) as connection:
        for statement in (module._PAGE, module._RUNS_WITHIN, module._BACKLOG):
            names = ("key", "offset", "limit", "start", "end", "after", "runs", "small")
            found = connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict.fromkeys(names, 1))
            plan = [row[3] for row in found]
            scanned = {step.split()[1] for step in plan if step.startswith("SCAN")}
            assert not scanned & {"object_runs", "wal_runs", "r"}, plan
    connection.close()
    pipeline.close()


def test_no_partitions_no_rows(pipeline: Pipeline) -> None:
    assert pipeline.queries.clean_rows([]) == {}
    assert pipeline.queries.run_rows_within(PartitionKey(9 << 20), 0, 9, limit=9).rows == []
