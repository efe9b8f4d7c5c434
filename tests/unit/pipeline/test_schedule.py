"""Jobs on a schedule: each fails alone, is tried again later and later, and ends when told."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.model.errors import RetryableError
from penstock.pipeline.schedule import (
    REST,
    Outcome,
    Schedule,
    State,
    Stopping,
    Work,
)
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from support.simulated.randomness import SeededRandom
from support.waiting import eventually

WAIT_S = 120


class Job:
    """Runs a function; due again at once, or never as far as a test is concerned."""

    def __init__(
        self,
        name: str,
        act: Callable[[Stopping], Mapping[str, Any]] = lambda _: {},
        *,
        interval_s: float = 0.0,
        is_bulk: bool = False,
    ) -> None:
        self.name = name
        self.is_bulk = is_bulk
        self.interval_s = interval_s
        self._act = act

    def run(self, stopping: Stopping) -> Mapping[str, Any]:
        return self._act(stopping)


def fail(_: Stopping) -> Mapping[str, Any]:
    raise RetryableError("run", "job", "no agent")


class Told:
    """Outcomes, and who waits for them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._changed = threading.Condition()

    def __call__(self, outcome: Outcome) -> None:
        with self._changed:
            self.outcomes.append(outcome)
            self._changed.notify_all()

    def wait_for(self, enough: Callable[[list[Outcome]], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.outcomes), WAIT_S), self.outcomes

    def names(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes]


def make(find: Callable[[], list[Work]], told: Told, **options: Any) -> Schedule:
    return Schedule(find, clock=SystemClock(), random=SystemRandom(), report=told, **options)


@contextmanager
def running(schedule: Schedule) -> Iterator[list[bool]]:
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(schedule.run()), daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        schedule.stop()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_job_that_fails_stops_no_other() -> None:
    told = Told()
    jobs: list[Work] = [Job("bad", fail), Job("good")]
    with running(make(lambda: jobs, told)):
        told.wait_for(lambda seen: [o.name for o in seen if not o.error].count("good") >= 5)
    bad = [outcome for outcome in told.outcomes if outcome.name == "bad"]
    assert bad[0].error == "run job: no agent"
    assert len(bad) < 5  # it rests meanwhile


def test_an_error_that_nobody_foresaw_stops_no_other_either() -> None:
    def blow(_: Stopping) -> Mapping[str, Any]:
        raise ZeroDivisionError("1/0")

    told = Told()
    jobs: list[Work] = [Job("bad", blow), Job("good")]
    with running(make(lambda: jobs, told)):
        told.wait_for(lambda seen: sum(o.name == "good" for o in seen) >= 3)
        told.wait_for(lambda seen: any(o.error == "1/0" for o in seen))


def test_a_job_never_runs_twice_at_the_same_time() -> None:
    inside: list[int] = []
    together: list[int] = []

    def act(_: Stopping) -> Mapping[str, Any]:
        inside.append(1)
        together.append(len(inside))
        inside.pop()
        return {}

    told = Told()
    jobs: list[Work] = [Job("one", act)]
    with running(make(lambda: jobs, told, parallel=4)):
        told.wait_for(lambda seen: len(seen) >= 20)
    assert set(together) == {1}


def test_no_more_run_at_the_same_time_than_allowed() -> None:
    lock = threading.Lock()
    inside: set[str] = set()
    most = 0

    def act(name: str) -> Callable[[Stopping], Mapping[str, Any]]:
        def run(_: Stopping) -> Mapping[str, Any]:
            nonlocal most
            with lock:
                inside.add(name)
                most = max(most, len(inside))
            with lock:
                inside.remove(name)
            return {}

        return run

    told = Told()
    jobs: list[Work] = [Job(name, act(name)) for name in "abcdef"]
    with running(make(lambda: jobs, told, parallel=2)):
        told.wait_for(lambda seen: {o.name for o in seen} == set("abcdef"))
    assert most <= 2


def test_jobs_come_and_go_while_it_runs() -> None:
    told = Told()
    jobs: list[Work] = [Job("first")]
    schedule = make(lambda: list(jobs), told, discovery_s=0.01)
    with running(schedule):
        told.wait_for(lambda seen: seen)
        jobs[:] = [Job("second")]
        told.wait_for(lambda seen: any(o.name == "second" for o in seen))
        # A run of the first that was under way may take longer than many of the second.
        eventually(lambda: [state.work.name for state in schedule.states()] == ["second"])
        seen_count = len(told.outcomes)
        told.wait_for(lambda seen: len(seen) > seen_count + 10)
        assert set(told.names()[-5:]) == {"second"}


def test_where_jobs_cannot_be_found_those_known_go_on() -> None:
    told = Told()
    jobs: list[Work] = [Job("known")]
    broken = threading.Event()

    def find() -> list[Work]:
        if broken.is_set():
            raise RetryableError("list", "topics", "no agent")
        return jobs

    with running(make(find, told, discovery_s=0.01)):
        told.wait_for(lambda seen: seen)
        broken.set()
        told.wait_for(lambda seen: any(o.name == "discovery" and o.error for o in seen))
        seen_count = len(told.outcomes)
        told.wait_for(lambda seen: sum(o.name == "known" for o in seen[seen_count:]) >= 3)


def test_stop_tells_running_jobs_and_waits_for_them() -> None:
    started, ended = threading.Event(), threading.Event()

    def act(stopping: Stopping) -> Mapping[str, Any]:
        started.set()
        while not stopping.is_set():
            threading.Event().wait(0.001)
        ended.set()
        return {"stopped": True}

    told = Told()
    with running(make(lambda: [Job("long", act)], told)) as drained:
        assert started.wait(WAIT_S)
    assert ended.is_set()
    assert drained == [True]
    assert told.outcomes[-1].summary == {"stopped": True}


def test_what_does_not_end_in_time_is_told_of() -> None:
    started, release = threading.Event(), threading.Event()

    def act(_: Stopping) -> Mapping[str, Any]:
        started.set()
        release.wait(WAIT_S)
        return {}

    schedule = make(lambda: [Job("deaf", act)], Told())
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(schedule.run(drain_s=0.01)), daemon=True)
    thread.start()
    assert started.wait(WAIT_S)
    schedule.stop()
    thread.join(WAIT_S)
    release.set()
    assert ended == [False]


def test_once_ends_when_each_job_ran_well_or_not() -> None:
    told = Told()
    jobs: list[Work] = [Job("bad", fail), Job("good"), Job("other")]
    assert make(lambda: jobs, told).run(once=True)
    assert sorted(told.names()) == ["bad", "good", "other"]


def test_a_success_ends_the_rests() -> None:
    state = State(Job("one", interval_s=7.0), due_s=0.0)
    for _ in range(3):
        state.start(0.0)
        state.fail(10.0, "no agent", SeededRandom(1))
    assert (state.failures_in_a_row, state.error) == (3, "no agent")
    # Half of the longest rest at least, so that a table doesn't come back at once.
    assert 10.0 + REST.after(3) / 2 <= state.due_s <= 10.0 + REST.after(3)
    state.start(30.0)
    state.succeed(31.0, 1_700_000_000_000, {"rows": 3})
    assert (state.due_s, state.failures_in_a_row, state.error) == (37.0, 0, "")
    assert (state.run_count, state.failure_count) == (1, 3)


def test_a_run_longer_than_its_interval_is_followed_at_once() -> None:
    state = State(Job("one", interval_s=7.0), due_s=0.0)
    state.start(0.0)
    state.succeed(100.0, 0, {})
    assert state.due_s == 100.0


def test_jobs_that_may_wait_keep_no_other_from_starting() -> None:
    """Two of them run without end; a table is brought up to date meanwhile, again and again."""
    release = threading.Event()

    def wait(_: Stopping) -> Mapping[str, Any]:
        assert release.wait(WAIT_S)
        return {}

    told = Told()
    jobs: list[Work] = [Job(f"bulk {n}", wait, is_bulk=True) for n in range(3)]
    jobs.append(Job("table"))
    schedule = make(lambda: jobs, told, parallel=1, bulk_parallel=2)
    with running(schedule):
        told.wait_for(lambda seen: [o.name for o in seen].count("table") >= 5)
        busy = [state.work.name for state in schedule.states() if state.is_running]
        assert sum(name.startswith("bulk") for name in busy) == 2
        release.set()


def test_nothing_starts_without_an_engine() -> None:
    ready = threading.Event()
    told = Told()
    found = threading.Event()

    def find() -> list[Work]:
        found.set()
        return [Job("table")]

    schedule = make(find, told, may_start=ready.is_set)
    with running(schedule):
        assert found.wait(WAIT_S)
        schedule.wake()
        eventually(lambda: bool(schedule.states()))
        assert not any(state.has_run or state.is_running for state in schedule.states())
        ready.set()
        schedule.wake()
        told.wait_for(lambda seen: len(seen) >= 1)
