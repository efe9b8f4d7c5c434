"""Jobs come round until they are closed, whatever one round does."""

import asyncio
import logging

import pytest

from penstock.app.jobs import Job, Jobs
from penstock.model.errors import FatalStorageError, RetryableError


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
