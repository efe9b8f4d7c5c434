"""A job's lease: renewed while agents are away, lost when they say so or stay away."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.errors import FencedError, PenstockError, RetryableError
from penstock.pipeline.api_messages import JobOpen, JobRequest
from penstock.pipeline.lease import JobLease
from support.simulated.clock import ManualClock
from support.waiting import eventually

SHORT_MS = 40


class Agents:
    """The calls that a lease makes."""

    def __init__(self, error: PenstockError | None = None, *, lease_ms: int = SHORT_MS) -> None:
        self.error = error
        self.lease_ms = lease_ms
        self.renewals = 0
        self.closed: list[int] = []

    def open_job(self, request: JobRequest) -> JobOpen:
        assert request.kind == "test"
        return JobOpen(job=7, position=40, time_ms=50, lease_ms=self.lease_ms)

    def renew_job(self, job: int) -> None:
        assert job == 7
        self.renewals += 1
        if self.error is not None:
            raise self.error

    def close_job(self, job: int, *, deadline_s: float | None = None) -> None:
        assert deadline_s is not None
        self.closed.append(job)
        if self.error is not None:
            raise self.error


def lease(agents: Any, clock: ManualClock) -> JobLease:
    return JobLease(agents, kind="test", name="tests", clock=clock)


def test_it_is_renewed_and_closed() -> None:
    agents = Agents()
    with lease(agents, ManualClock()) as job:
        assert (job.job, job.position, job.time_ms) == (7, 40, 50)
        eventually(lambda: agents.renewals >= 3)
        job.check()
    assert agents.closed == [7]


def test_agents_that_are_away_are_waited_for_as_long_as_the_lease() -> None:
    agents, clock = Agents(RetryableError("renew", "7", "away")), ManualClock()
    with lease(agents, clock) as job:
        eventually(lambda: agents.renewals >= 2)
        job.check()
        clock.advance(SHORT_MS / 1000 + 0.001)
        with pytest.raises(FencedError, match="could not be renewed"):
            job.check()
        # Somebody is there again, and knows the job.
        agents.error = None
        before = agents.renewals
        # The first of three may have begun before the clock was moved on, and the last one not have
        # been noted.
        eventually(lambda: agents.renewals >= before + 3)
        job.check()


def test_a_job_that_was_closed_stays_lost() -> None:
    agents = Agents(FencedError("renew", "7", "closed"))
    with lease(agents, ManualClock()) as job:
        eventually(lambda: job._lost is not None)
        agents.error = None
        for _ in range(2):
            with pytest.raises(FencedError, match="closed"):
                job.check()
        assert agents.renewals == 1


def test_it_is_closed_when_the_work_fails() -> None:
    agents = Agents(lease_ms=60_000)
    with pytest.raises(ValueError, match="work"), lease(agents, ManualClock()):
        raise ValueError("work")
    assert agents.closed == [7]


def test_one_that_another_process_opened_is_taken_over_and_left_open() -> None:
    agents = Agents()
    agent: Any = agents
    taken = JobLease(agent, kind="test", name="tests", lease_ms=SHORT_MS, clock=ManualClock())
    taken.take_over(7)
    eventually(lambda: agents.renewals >= 3)
    taken.leave()
    assert (taken.job, agents.closed) == (7, [])
    agents.error = FencedError("renew", "7", "closed")
    with pytest.raises(FencedError, match="closed"):
        lease(agents, ManualClock()).take_over(7)
