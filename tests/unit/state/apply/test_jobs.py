"""Jobs of the pipeline: what opens, renews and ends them."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.state.answers import Condemned, Done, JobOpened, Refusal, WriteCommitted
from penstock.state.apply.jobs import AGE_MS_MAX, LEASE_MS_MAX
from penstock.state.commands import CondemnObjects
from penstock.state.levels import LEVEL_OF
from penstock.state.pipeline_commands import (
    CloseJob,
    DropTable,
    ExpireWriters,
    OpenJob,
    RenewJob,
    ReplaceRuns,
    SaveTable,
)
from penstock.state.schema import PIPELINE_LEVEL
from unit.state.orders import KEY
from unit.state.pipelines import Pipeline, key_of, output, reason, replacing, write


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    found = Pipeline(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("level", [1, 2])
def test_below_their_level_all_commands_are_refused_and_change_nothing(
    tmp_path: Path, level: int
) -> None:
    pipeline = Pipeline(tmp_path, level=level)
    refused = (
        OpenJob(kind="k", name="n", lease_ms=1, age_max_ms=1),
        RenewJob(job=1),
        CloseJob(job=1),
        ReplaceRuns(job=1, n=1, input_keys=[], objects=[], partitions=[]),
        write(1),
        ExpireWriters(writers=[("w", 1)]),
        SaveTable(topic_id=b"x", table="t", offsets=[]),
        DropTable(topic_id=b"x", table="t"),
    )
    assert {type(command) for command in refused} == {
        kind for kind, level in LEVEL_OF.items() if level == PIPELINE_LEVEL
    }
    for command in refused:
        assert reason(pipeline.one(command)) is Refusal.LEVEL_NOT_ON
    assert pipeline.queries.pipeline_jobs() == []
    assert pipeline.queries.objects("", 9) == []
    pipeline.close()


def test_a_job_is_registered_with_its_position_and_time(pipeline: Pipeline) -> None:
    pipeline.time_ms = 5_000
    answer = pipeline.one(OpenJob(kind="read", name="me", lease_ms=100, age_max_ms=1_000))
    assert answer == JobOpened(1, pipeline.replica.position, 5_000)
    (job,) = pipeline.queries.pipeline_jobs()
    assert (job.job, job.kind, job.name) == (1, "read", "me")
    assert (job.opened_position, job.opened_ms) == (pipeline.replica.position, 5_000)
    assert (job.renewed_ms, job.lease_ms, job.age_max_ms) == (5_000, 100, 1_000)
    assert job.over_ms == 5_100


def test_numbers_are_never_given_twice(pipeline: Pipeline) -> None:
    assert pipeline.open_job() == 1
    assert pipeline.one(CloseJob(job=1)) == Done()
    pipeline.machine.drop_caches()
    assert pipeline.open_job() == 2


def test_a_renewed_job_is_not_closed_by_others(pipeline: Pipeline) -> None:
    job = pipeline.open_job()
    pipeline.time_ms += 100
    assert pipeline.one(RenewJob(job=job)) == Done()
    # Seen before it was renewed; and seen since, but its lease goes on.
    for seen_ms in (1_000, 1_100):
        closing = CloseJob(job=job, seen_renewed_ms=seen_ms)
        assert reason(pipeline.one(closing)) is Refusal.JOB_IS_ALIVE
    pipeline.time_ms += 100
    assert reason(pipeline.one(CloseJob(job=job, seen_renewed_ms=1_000))) is Refusal.JOB_IS_ALIVE
    assert pipeline.one(CloseJob(job=job, seen_renewed_ms=1_100)) == Done()
    assert pipeline.queries.pipeline_job(job) is None
    assert pipeline.one(CloseJob(job=job, seen_renewed_ms=1_100)) == Done()
    assert reason(pipeline.one(RenewJob(job=job))) is Refusal.UNKNOWN_JOB


def test_a_job_past_its_greatest_age_is_not_renewed_and_may_be_closed(pipeline: Pipeline) -> None:
    job = pipeline.open_job(lease_ms=600)
    for _ in range(2):
        pipeline.time_ms += 450
        assert pipeline.one(RenewJob(job=job)) == Done()
    pipeline.time_ms += 100
    assert reason(pipeline.one(RenewJob(job=job))) is Refusal.JOB_TOO_OLD
    # Its lease would go on; its age doesn't let it.
    assert pipeline.one(CloseJob(job=job, seen_renewed_ms=1_900)) == Done()


def test_nobody_holds_deletion_back_for_ever(pipeline: Pipeline) -> None:
    pipeline.open_job(lease_ms=(1 << 64) - 1, age_max_ms=(1 << 64) - 1)
    pipeline.open_job(lease_ms=-5, age_max_ms=-5)
    greedy, modest = pipeline.queries.pipeline_jobs()
    assert (greedy.lease_ms, greedy.age_max_ms) == (LEASE_MS_MAX, AGE_MS_MAX)
    assert (modest.lease_ms, modest.age_max_ms) == (0, 0)


@pytest.mark.parametrize("job", [0, -1, 7, 1 << 63, (1 << 64) - 1])
def test_a_number_that_no_job_has_is_refused(pipeline: Pipeline, job: int) -> None:
    pipeline.named("o")
    assert reason(pipeline.one(RenewJob(job=job))) is Refusal.UNKNOWN_JOB
    assert pipeline.one(CloseJob(job=job)) == Done()
    replaced = ReplaceRuns(job=job, n=1, input_keys=[], objects=[], partitions=[])
    assert reason(pipeline.one(replaced)) is Refusal.UNKNOWN_JOB
    written = msgspec.structs.replace(write(1), job=job)
    assert reason(pipeline.one(written)) is Refusal.UNKNOWN_JOB


def test_a_closed_job_commits_nothing(pipeline: Pipeline) -> None:
    pipeline.named("o", [100, 5, 0, -1, -1, -1])
    job = pipeline.open_job()
    replacement = replacing(pipeline.queries, job)
    pipeline.one(CloseJob(job=job))
    assert reason(pipeline.one(replacement)) is Refusal.UNKNOWN_JOB
    assert reason(pipeline.one(write(job))) is Refusal.UNKNOWN_JOB
    assert pipeline.runs() == [(0, 5, "o")]
    assert pipeline.live_runs() == {"o": 1}


def test_what_an_open_job_has_put_is_condemned_by_nobody_until_it_is_closed(
    pipeline: Pipeline,
) -> None:
    job = pipeline.open_job()
    keys = [key_of(job), key_of(job + 1), "segments/00/1-1-1.seg"]
    assert pipeline.one(CondemnObjects(keys=keys)) == Condemned(keys[1:])
    assert pipeline.one(write(job, objects=[output(job)])) == WriteCommitted([KEY, 0, 3])
    pipeline.one(CloseJob(job=job))
    late = key_of(job, 1)
    assert pipeline.one(CondemnObjects(keys=[late])) == Condemned([late])
    # And what is condemned is never named: its job is closed for good.
    assert reason(pipeline.one(write(job, 1, objects=[output(job, 1)]))) is Refusal.UNKNOWN_JOB
