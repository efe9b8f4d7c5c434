"""Jobs come round until they are closed, whatever one round does."""

import asyncio
import logging

import pytest

from penstock.agent.jobs import Job, Jobs
from penstock.model.errors import FatalStorageError, RetryableError
from penstock.system.background import of_loop


def run_rounds(outcomes: list[BaseException | None], fatal: list[BaseException]) -> int:
    """Run one job until every outcome was had; returns how many rounds there were."""

    async def main() -> int:
        over = asyncio.Event()
        count = 0

        async def work() -> None:
            nonlocal count
            outcome = outcomes[count]
            count += 1
            if count == len(outcomes):
                over.set()
            if outcome is not None:
                raise outcome

        jobs = Jobs([Job(name="work", interval_s=0.001, run=work)], on_fatal=fatal.append)
        jobs.start()
        await asyncio.wait_for(over.wait(), 60)
        await jobs.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return count

    return asyncio.run(main())


def test_a_round_that_fails_is_told_and_followed_by_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        retryable = RetryableError("do", "it", "not now")
        assert run_rounds([retryable, ValueError("a bug"), None], []) == 3
    assert "not now" in caplog.text
    assert "a bug" in caplog.text


def test_unknown_durability_ends_the_process() -> None:
    error, fatal = FatalStorageError("sync", "file", "failed"), list[BaseException]()
    run_rounds([error, None], fatal)
    assert fatal == [error]


async def test_a_failed_job_is_counted_named_in_the_status_and_ready_again_once_it_succeeds() -> (
    None
):
    """A bug takes the server out of readiness, a store that is away doesn't."""
    background = of_loop()
    work = Job(name="work", interval_s=1, run=no_work, matters=True).work
    background.expect(work)
    assert background.counts["work"] == 0
    background.failed(work, RetryableError("put", "object", "the store is away"))
    assert background.not_ready() == ""
    background.failed(work, ValueError("a bug"), "; next try in 1 s")
    assert background.not_ready() == "work failed: a bug"
    assert background.status() == {"work": {"failures": 2, "failing": True, "last_error": "a bug"}}
    background.succeeded(work)
    assert background.not_ready() == ""
    assert background.status()["work"]["failing"] is False
    assert background.counts["work"] == 2


async def no_work() -> None:
    """Do nothing."""
