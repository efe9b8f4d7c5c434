"""All jobs of a cluster on a schedule, on one engine.

Each job runs in a thread and fails alone: a job that fails is tried again after a pause that grows
with its failures, and other jobs go on. The schedule asks again and again what there is to do,
since topics get tables, and lose them, while it runs.

What a job has achieved is in the cluster's journal; nothing is kept here. So a process that is
killed loses nothing but time, and two of them at once do no harm.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from penstock.model.errors import PenstockError
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system.backoff import Backoff

logger = logging.getLogger(__name__)

REST: Final = Backoff(first_s=5.0, most_s=300.0)
"""After a job failed."""
DISCOVERY_S: Final = 10.0
DRAIN_S: Final = 60.0


class Stopping(Protocol):
    """Says whether the process is to end: a job looks between its steps."""

    def is_set(self) -> bool:
        """It is."""
        ...


class Work(Protocol):
    """One job: compaction, or one table."""

    @property
    def name(self) -> str:
        """The job's name in logs and metrics, which is the same each time that the job is found."""
        ...

    @property
    def is_bulk(self) -> bool:
        """Whether it may wait for the others: it has a bound of its own, so that a long one never
        keeps a short one from starting."""
        ...

    @property
    def interval_s(self) -> float:
        """Between the starts of two runs."""
        ...

    def run(self, stopping: Stopping) -> Mapping[str, Any]:
        """Do all that there is to do now, and return a summary of it for people and programs.

        Raises:
            PenstockError: it failed, and is tried again later.
        """
        ...


@dataclass(slots=True)
class State:
    """A job's state in this process. Times are by the monotonic clock, except `done_ms`."""

    work: Work
    due_s: float
    is_running: bool = False
    is_wanted: bool = True
    run_count: int = 0
    failure_count: int = 0
    failures_in_a_row: int = 0
    started_s: float = 0.0
    done_ms: int = 0
    error: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_run(self) -> bool:
        """Whether it ran to its end, well or not."""
        return bool(self.run_count + self.failure_count)

    def start(self, now_s: float) -> None:
        """It runs from now on."""
        self.is_running, self.started_s = True, now_s

    def succeed(self, now_s: float, now_ms: int, summary: Mapping[str, Any]) -> None:
        """It is through, and due again when its interval is over."""
        self.is_running = False
        self.run_count += 1
        self.failures_in_a_row, self.error = 0, ""
        self.done_ms, self.summary = now_ms, summary
        self.due_s = max(now_s, self.started_s + self.work.interval_s)

    def fail(self, now_s: float, error: str, random: Random) -> None:
        """It failed, and is due again after a rest.

        Args:
            random: draws the rest, so that jobs that failed together don't return together.
        """
        self.is_running = False
        self.failure_count += 1
        self.failures_in_a_row += 1
        self.error = error
        self.due_s = now_s + REST.jittered(self.failures_in_a_row, random, least=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one run. `error` is "" if it succeeded."""

    name: str
    seconds: float
    summary: Mapping[str, Any]
    error: str
    failures_in_a_row: int


class Schedule:
    """Runs jobs until `stop`.

    Args:
        find: returns the present jobs.
        report: called at each run's end.
        parallel, bulk_parallel: how many run at the same time, those that may wait apart.
        may_start: whether there is an engine; none is started without. `wake` says that the
            answer is another.
    """

    def __init__(
        self,
        find: Callable[[], Iterable[Work]],
        *,
        clock: Clock,
        random: Random,
        report: Callable[[Outcome], None],
        parallel: int = 4,
        bulk_parallel: int = 2,
        may_start: Callable[[], bool] = lambda: True,
        discovery_s: float = DISCOVERY_S,
    ) -> None:
        assert parallel > 0
        assert bulk_parallel > 0
        self._find = find
        self._clock = clock
        self._random = random
        self._report = report
        self._parallel = {False: parallel, True: bulk_parallel}
        self._may_start = may_start
        self._discovery_s = discovery_s
        self._states: dict[str, State] = {}
        self._lock = threading.Lock()
        self._ended: SimpleQueue[_Ended | None] = SimpleQueue()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Start no more jobs; running jobs see it, and are waited for. From any thread, and from a
        signal's handler."""
        self._stopping.set()
        self._ended.put(None)

    def wake(self) -> None:
        """Look again at what may start. From any thread."""
        self._ended.put(None)

    def states(self) -> list[State]:
        """List each job's state by name; for people, without waiting."""
        with self._lock:
            return [self._states[name] for name in sorted(self._states)]

    def run(self, *, drain_s: float = DRAIN_S, once: bool = False) -> bool:
        """Run jobs until `stop`.

        Args:
            drain_s: how long running jobs are waited for after `stop`.
            once: stop when each present job has run once, well or not.

        Returns:
            Whether all jobs have ended; with `once`, also whether the jobs could be found.
        """
        discovery_due_s = self._clock.monotonic_s()
        failures = 0
        while not self._stopping.is_set():
            now_s = self._clock.monotonic_s()
            if now_s >= discovery_due_s:
                failures = self._discover(failures)
                now_s = self._clock.monotonic_s()
                discovery_due_s = now_s + (REST.after(failures) if failures else self._discovery_s)
            self._start_due(now_s, once=once)
            if once and failures:
                return False
            if once and self._all_ran():
                return True
            self._await_end(max(0.0, self._next_due_s(discovery_due_s, once=once) - now_s))
        return self._drain(drain_s)

    def _discover(self, failures: int) -> int:
        """Returns: how often in a row it failed now."""
        try:
            found = {work.name: work for work in self._find()}
        except Exception as error:
            if not isinstance(error, PenstockError):
                logger.exception("finding jobs failed; it is tried again")
            self._report(
                Outcome(
                    name="discovery",
                    seconds=0.0,
                    summary={},
                    error=_text(error),
                    failures_in_a_row=failures + 1,
                )
            )
            # What was found before goes on.
            return failures + 1
        now_s = self._clock.monotonic_s()
        with self._lock:
            for name, work in found.items():
                state = self._states.get(name)
                if state is None:
                    self._states[name] = State(work, due_s=now_s)
                else:
                    state.work, state.is_wanted = work, True
            for name, state in list(self._states.items()):
                state.is_wanted = name in found
                if not state.is_wanted and not state.is_running:
                    del self._states[name]
        return 0

    def _start_due(self, now_s: float, *, once: bool) -> None:
        if not self._may_start():
            return
        with self._lock:
            waiting = [state for state in self._startable(once=once) if state.due_s <= now_s]
            # Who waits longest first: a short interval must not keep the others from running.
            waiting.sort(key=lambda state: (state.due_s, state.work.name))
            for state in waiting:
                if self._free(is_bulk=state.work.is_bulk) <= 0:
                    continue
                state.start(now_s)
                threading.Thread(
                    target=self._work,
                    args=(state.work,),
                    name=f"job {state.work.name}",
                    daemon=True,
                ).start()

    def _free(self, *, is_bulk: bool) -> int:
        running = sum(
            state.is_running and state.work.is_bulk == is_bulk for state in self._states.values()
        )
        return self._parallel[is_bulk] - running

    def _work(self, work: Work) -> None:
        before_s = self._clock.monotonic_s()
        summary: Mapping[str, Any] = {}
        error = ""
        try:
            summary = work.run(self._stopping)
        except Exception as caught:
            if not isinstance(caught, PenstockError):
                # A bug, or a library's error that wasn't translated: the log gets its traceback.
                logger.exception("job %s failed", work.name)
            error = _text(caught)
        seconds = self._clock.monotonic_s() - before_s
        self._ended.put(_Ended(work.name, seconds, summary, error))

    def _await_end(self, wait_s: float) -> bool:
        try:
            ended = self._ended.get(timeout=wait_s)
        except Empty:
            return False
        if ended is None:
            return False
        now_s = self._clock.monotonic_s()
        with self._lock:
            state = self._states[ended.name]
            if ended.error:
                state.fail(now_s, ended.error, self._random)
            else:
                state.succeed(now_s, self._clock.now_ms(), ended.summary)
            if not state.is_wanted:
                del self._states[ended.name]
        self._report(
            Outcome(
                name=ended.name,
                seconds=ended.seconds,
                summary=ended.summary,
                error=ended.error,
                failures_in_a_row=state.failures_in_a_row,
            )
        )
        return True

    def _startable(self, *, once: bool) -> list[State]:
        """Jobs that may run when they are due. With `once` those that haven't run: short ones, due
        again at once, would never all be at rest together."""
        return [
            state
            for state in self._states.values()
            if not state.is_running and state.is_wanted and not (once and state.has_run)
        ]

    def _next_due_s(self, discovery_due_s: float, *, once: bool) -> float:
        if not self._may_start():
            return discovery_due_s
        with self._lock:
            due = [
                state.due_s
                for state in self._startable(once=once)
                if self._free(is_bulk=state.work.is_bulk) > 0
            ]
            return min([discovery_due_s, *due])

    def _all_ran(self) -> bool:
        with self._lock:
            return all(not state.is_running and state.has_run for state in self._states.values())

    def _drain(self, drain_s: float) -> bool:
        deadline_s = self._clock.monotonic_s() + drain_s
        while any(state.is_running for state in self.states()):
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return False
            self._await_end(left_s)
        return True


@dataclass(frozen=True, slots=True)
class _Ended:
    name: str
    seconds: float
    summary: Mapping[str, Any]
    error: str


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
