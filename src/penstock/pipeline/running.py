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
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.engine_choice import EngineChoice
from penstock.pipeline.engine_process.keeper import EngineKeeper, EngineStartError
from penstock.pipeline.engine_process.leases import LeaseHolder
from penstock.pipeline.engine_process.messages import Start
from penstock.pipeline.health import Health, health
from penstock.pipeline.jobs import Intervals, Job, JobSettings, find_jobs
from penstock.pipeline.monitor import Monitor, count, counted, engine_figures, status_of
from penstock.pipeline.schedule import Outcome, Schedule, Stopping, Work
from penstock.pipeline.table_watch import TableWatch
from penstock.system.clock import SystemClock
from penstock.system.heard import swallowed_counts
from penstock.system.randomness import SystemRandom


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `penstock pipeline run`.

    Args:
        http: host and port of /metrics, /v1/status and /health; None: they aren't served.
        lag_alarm_s: a table that is longer behind makes /health say so.
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


def run_pipeline(
    settings: RunSettings,
    *,
    report: Callable[[Outcome], None],
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Run jobs until a signal says to end, or each once.

    Args:
        report: called at each run's end.
        say: called with a line for people.

    Returns:
        Whether all jobs had ended by themselves, and with `once` none had failed.

    Raises:
        EngineStartError: the engine can't be opened, now or ever.
    """
    clock, random = SystemClock(), SystemRandom()
    metrics = Metrics()
    watch = TableWatch(clock, registry=settings.jobs.registry)
    failed: set[str] = set()

    def find() -> Iterable[Work]:
        found = find_jobs((), settings.intervals)
        if settings.intervals.table_s:
            rows = client.tables()
            topics = client.topics()
            watch.look(topics, rows)
            found = find_jobs(topics.topics, settings.intervals)
        return [_EngineWork(job, interval_s, keeper) for job, interval_s in found]

    def note(outcome: Outcome) -> None:
        count(metrics, outcome)
        (failed.add if outcome.error else failed.discard)(outcome.name)
        report(outcome)

    def changed() -> None:
        if keeper.fatal:
            schedule.stop()
        schedule.wake()

    def state() -> Health:
        engine = keeper.status()
        problem = f" ({engine.problem})" if engine.problem and not keeper.is_ready else ""
        return health(
            is_ready=keeper.is_ready,
            engine=f"{engine.state}{problem}",
            oldest=watch.oldest(),
            silent_s=watch.silent_s() if settings.intervals.table_s else 0.0,
            alarm_s=settings.lag_alarm_s,
        )

    with PipelineClient(settings.api, tell=say) as client, ExitStack() as stack:
        keeper = EngineKeeper(
            Start(settings.engine, settings.api, settings.jobs),
            LeaseHolder(client),
            clock=clock,
            random=random,
            changed=changed,
            gives_up=settings.once,
        )
        schedule = Schedule(
            counted(find, metrics),
            clock=clock,
            random=random,
            report=note,
            parallel=settings.parallel,
            bulk_parallel=settings.bulk_parallel,
            may_start=lambda: keeper.is_ready,
        )
        metrics.share("penstock_swallowed_errors_total", _Sum(keeper.swallowed))
        metrics.on_scrape(lambda: engine_figures(keeper.status(), is_ready=keeper.is_ready))
        metrics.on_scrape_by_label(watch.figures)
        _on_signals(stack, schedule, keeper)
        if settings.http is not None:
            host, port = settings.http
            server = stack.enter_context(
                Monitor(
                    (host, port),
                    metrics,
                    lambda: status_of(schedule, keeper.status(), watch.lags()),
                    state,
                )
            )
            say(f"metrics on http://{host}:{server.port}/metrics")
        # Last in, first out: signals are heard, and health is answered, while it ends.
        stack.enter_context(keeper)
        drained = schedule.run(drain_s=settings.drain_s, once=settings.once)
    if keeper.fatal:
        raise EngineStartError(keeper.fatal)
    return drained and not keeper.was_killed and not (settings.once and failed)


def _on_signals(stack: ExitStack, schedule: Schedule, keeper: EngineKeeper) -> None:
    """Let the first SIGTERM or Ctrl-C end it in order, and the second at once."""
    asked = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            keeper.kill()
        asked = True
        schedule.stop()

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


__all__ = ["RunSettings", "run_pipeline"]
