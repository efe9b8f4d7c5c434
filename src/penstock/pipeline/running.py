"""`penstock pipeline run`: the scheduler, its engine process, and what it shows of itself.

This process imports no Spark, and holds nothing that a kill could lose: what jobs have achieved is
in the cluster's journal and in the tables.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Any

import msgspec

from penstock.observability.metrics import Metrics
from penstock.peers.secret import ClusterSecret
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.engine_choice import EngineChoice
from penstock.pipeline.engine_process.keeper import EngineKeeper, EngineStartError
from penstock.pipeline.engine_process.leases import LeaseHolder
from penstock.pipeline.engine_process.messages import Start
from penstock.pipeline.health import Health, health
from penstock.pipeline.jobs import Intervals, Job, JobSettings, find_jobs
from penstock.pipeline.monitor import Monitor, count, counted, engine_figures, status_of
from penstock.pipeline.schedule import Outcome, Schedule, Stopping, Work
from penstock.pipeline.secret import only_secret
from penstock.pipeline.table_watch import TableWatch
from penstock.system.clock import SystemClock
from penstock.system.heard import swallowed_counts
from penstock.system.randomness import SystemRandom


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `penstock pipeline run`.

    Args:
        http: host and port of /metrics, /v1/status and /health; None: they aren't served.
        lag_alarm_s: a table that is longer behind makes /health say so.
        bad_alarm_share: so does a table of whose records a greater share became dead letters of
            late, from 0 to 1.
        drain_s: how long jobs are waited for at the end.
        once: run each job once, and end.
    """

    api: ClientOptions
    engine: EngineChoice
    jobs: JobSettings
    intervals: Intervals
    parallel: int = 4
    bulk_parallel: int = 2
    http: tuple[str, int] | None = None
    lag_alarm_s: float = 600.0
    bad_alarm_share: float = 0.1
    drain_s: float = 60.0
    once: bool = False


@dataclass(frozen=True, slots=True)
class _EngineWork:
    """A job that the engine process does."""

    job: Job
    interval_s: float
    keeper: EngineKeeper

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def is_bulk(self) -> bool:
        return self.job.is_bulk

    def run(self, stopping: Stopping) -> Mapping[str, Any]:
        return self.keeper.run(self.job, stopping)


class PipelineRun:
    """The scheduler and its engine process. Any thread; `run` once.

    Args:
        report: called at each run's end.
        say: called with a line for people.
        metrics: get the figures of jobs and engine.
        secret: the cluster's; None: found in the environment, by the engine process, too.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        report: Callable[[Outcome], None],
        say: Callable[[str], None] = lambda _: None,
        metrics: Metrics | None = None,
        secret: ClusterSecret | None = None,
    ) -> None:
        self._settings = settings
        self._report = report
        self._say = say
        self.metrics = metrics or Metrics()
        clock, random = SystemClock(), SystemRandom()
        self._client = PipelineClient(settings.api, tell=say, secret=secret)
        self._watch = TableWatch(clock, registry=settings.jobs.registry)
        self._failed: set[str] = set()
        self.keeper = EngineKeeper(
            Start(settings.engine, settings.api, settings.jobs),
            LeaseHolder(self._client),
            clock=clock,
            random=random,
            changed=self._changed,
            gives_up=settings.once,
            environment={} if secret is None else only_secret(secret),
        )
        self._schedule = Schedule(
            counted(self._find, self.metrics),
            clock=clock,
            random=random,
            report=self._note,
            parallel=settings.parallel,
            bulk_parallel=settings.bulk_parallel,
            may_start=lambda: self.keeper.is_ready,
        )

    def run(self) -> bool:
        """Run jobs until `stop`, or each once.

        Returns:
            Whether all jobs had ended by themselves, and with `once` none had failed.

        Raises:
            EngineStartError: the engine can't be opened, now or ever.
        """
        settings, keeper = self._settings, self.keeper
        with self._client, ExitStack() as stack:
            self._serve(stack)
            # Last in, first out: health is answered while the engine ends.
            stack.enter_context(keeper)
            drained = self._schedule.run(drain_s=settings.drain_s, once=settings.once)
        if keeper.fatal:
            raise EngineStartError(keeper.fatal)
        return drained and not keeper.was_killed and not (settings.once and self._failed)

    def stop(self) -> None:
        """Let running jobs end, and begin no other. From a signal's handler, too."""
        self._schedule.stop()

    def kill(self) -> None:
        """End at once. From a signal's handler, too."""
        self.keeper.kill()
        self._schedule.stop()

    def status(self) -> dict[str, Any]:
        """Return what the process knows of engine, jobs and tables."""
        return status_of(self._schedule, self.keeper.status(), self._watch.lags())

    def engine_figures(self) -> dict[str, float]:
        """Return the values of the engine's metrics."""
        return engine_figures(self.keeper.status(), is_ready=self.keeper.is_ready)

    # -- inside ----------------------------------------------------------------------------------

    def _serve(self, stack: ExitStack) -> None:
        if self._settings.http is None:
            return
        metrics = self.metrics
        metrics.share("penstock_swallowed_errors_total", _Sum(self.keeper.swallowed))
        metrics.on_scrape(self.engine_figures)
        metrics.on_scrape_by_label(self._watch.figures)
        host, port = self._settings.http
        server = stack.enter_context(Monitor((host, port), metrics, self.status, self._health))
        self._say(f"metrics on http://{host}:{server.port}/metrics")

    def _find(self) -> Iterable[Work]:
        intervals = self._settings.intervals
        found = find_jobs((), intervals)
        if intervals.table_s:
            rows = self._client.tables()
            topics = self._client.topics()
            self._watch.look(topics, rows)
            found = find_jobs(topics.topics, intervals)
        return [_EngineWork(job, interval_s, self.keeper) for job, interval_s in found]

    def _note(self, outcome: Outcome) -> None:
        count(self.metrics, outcome)
        (self._failed.add if outcome.error else self._failed.discard)(outcome.name)
        self._report(outcome)

    def _changed(self) -> None:
        if self.keeper.fatal:
            self._schedule.stop()
        self._schedule.wake()

    def _health(self) -> Health:
        engine, settings = self.keeper.status(), self._settings
        problem = f" ({engine.problem})" if engine.problem and not self.keeper.is_ready else ""
        return health(
            is_ready=self.keeper.is_ready,
            engine=f"{engine.state}{problem}",
            oldest=self._watch.oldest(),
            silent_s=self._watch.silent_s() if settings.intervals.table_s else 0.0,
            alarm_s=settings.lag_alarm_s,
            worst=self._watch.dead_letters(),
            alarm_share=settings.bad_alarm_share,
        )


def run_pipeline(
    settings: RunSettings,
    *,
    report: Callable[[Outcome], None],
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Run jobs until a signal says to end, or each once. Main thread.

    Args:
        report: called at each run's end.
        say: called with a line for people.

    Returns:
        Whether all jobs had ended by themselves, and with `once` none had failed.

    Raises:
        EngineStartError: the engine can't be opened, now or ever.
    """
    run = PipelineRun(settings, report=report, say=say)
    with ExitStack() as stack:
        # Signals are heard to the end.
        _on_signals(stack, run)
        return run.run()


def _on_signals(stack: ExitStack, run: PipelineRun) -> None:
    """Let the first SIGTERM or Ctrl-C end it in order, and the second at once."""
    asked = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            run.kill()
        asked = True
        run.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.signal(number, on_signal)
        stack.callback(signal.signal, number, before)


class _Sum(Mapping[str, int]):
    """Adds the swallowed errors of engine processes to those of this one."""

    def __init__(self, others: Callable[[], Mapping[str, int]]) -> None:
        self._own = swallowed_counts()
        self._others = others

    def __getitem__(self, cause: str) -> int:
        return self._own[cause] + self._others().get(cause, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


__all__ = ["PipelineRun", "RunSettings", "run_pipeline"]
