"""The engine on Spark: one partition per item, in one job.

A job's `collect` gives nothing before its last task ends. So results come by an accumulator, whose
updates reach the driver with each task that succeeds, once per task also where Spark runs a twin.
Spark Connect has no accumulators: there items go in waves, through `mapInArrow`.
"""

import pickle
import socket
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pyspark.accumulators import AccumulatorParam, _accumulatorRegistry

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.engine import Attempts, lost_worker
from penstock.pipeline.slots import Slots
from penstock.pipeline.spark_slots import is_connect, slots_of
from penstock.ports.random import Random
from penstock.system.randomness import SystemRandom
from penstock.version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

TABLES_POOL: Final = "tables"
BULK_POOL: Final = "bulk"
"""Pools of fairscheduler.xml."""
WAVES_PER_PARALLELISM: Final = 4
_STOP_STEP_S: Final = 0.5
_STOP_TRIES: Final = 60


class SparkEngine:
    """Runs items as tasks of a Spark session that is opened and stopped elsewhere.

    Args:
        session: classic or Connect.
        frames: go by DataFrames, as with Connect; None: with Connect alone.
        pool: of Spark's fair scheduler; "": the session's own.
        slots: what bounds how many tasks run, together with other engines that have it.
    """

    name: Final = "spark"

    def __init__(
        self,
        session: "SparkSession",
        *,
        frames: bool | None = None,
        random: Random | None = None,
        pool: str = "",
        slots: Slots | None = None,
    ) -> None:
        self.session = session
        self.pool = pool
        self.slots = slots
        self.frames = is_connect(session) if frames is None else frames
        self.random = random or SystemRandom()
        self.all_slots = slots_of(session)
        self.parallelism = self.all_slots if slots is None else slots.count

    def run(
        self, task: Callable[[T], R], items: Iterable[T], *, attempts: int = 3
    ) -> Generator[tuple[int, R], None, None]:
        """See `penstock.pipeline.engine.Engine.run`."""
        guarded = _Guarded(Attempts(task, attempts))
        yield from _Run(self, guarded, list(enumerate(items)), attempts).results()

    def cancel(self, group: str) -> None:
        """Cancel the Spark job of a group, if there is one."""
        with suppress(Exception):  # it may be that the session itself is gone
            if is_connect(self.session):
                self.session.interruptTag(group)
            else:
                self.session.sparkContext.cancelJobGroup(group)


class _SparkJob(Generic[T]):
    """A Spark job under way, and those of its items that have no result yet."""

    def __init__(self, group: str, items: Sequence[tuple[int, T]], thread: Thread) -> None:
        self.group = group
        self.left = dict(items)
        self.thread = thread


class _Run(Generic[T, R]):
    """One call of `SparkEngine.run`.

    Without slots all items go in one Spark job. With slots each Spark job has as many items as
    slots were free, so that a long list never has more tasks than that in Spark's queue.
    """

    def __init__(
        self,
        engine: SparkEngine,
        guarded: "_Guarded[T, R]",
        items: list[tuple[int, T]],
        attempts: int,
    ) -> None:
        self._engine = engine
        self._guarded = guarded
        self._waiting = deque(items)
        self._attempts = attempts
        self._lost: Counter[int] = Counter()
        self._jobs: dict[str, _SparkJob[T]] = {}
        self._found: SimpleQueue[_Told] = SimpleQueue()

    def results(self) -> Generator[tuple[int, R], None, None]:
        """Run jobs until all items have a result: Spark gives a job up whose executor died too
        often, in local mode at once."""
        try:
            while self._waiting or self._jobs:
                self._start()
                told = self._found.get()
                job = self._jobs[told.group]
                if isinstance(told, _Ended):
                    self._end(job, told.error)
                    continue
                if job.left.pop(told.index, None) is None:
                    continue  # a twin's
                self._release(1)
                if isinstance(told.outcome, _Failure):
                    raise told.outcome.error
                yield told.index, told.outcome.value
        finally:
            self._stop()

    def _start(self) -> None:
        """Start a Spark job with what there is room for."""
        engine = self._engine
        if not self._waiting or (engine.slots is None and self._jobs):
            return
        count = len(self._waiting)
        if engine.slots is not None:
            count = engine.slots.take(count, waits=not self._jobs)
            if not count:
                return
        elif engine.frames:
            # Its results come at its end.
            count = min(count, WAVES_PER_PARALLELISM * engine.parallelism)
        items = [self._waiting.popleft() for _ in range(count)]
        group = f"penstock-{engine.random.token_bytes(8).hex()}"
        thread = Thread(
            target=_frame_job if engine.frames else _job,
            args=(engine, group, self._guarded, items, self._found),
            name="spark-job",
            daemon=True,
        )
        self._jobs[group] = _SparkJob(group, items, thread)
        thread.start()

    def _end(self, job: _SparkJob[T], error: Exception | None) -> None:
        """Take a Spark job's end. Raises: RetryableError: it lost an item too often."""
        del self._jobs[job.group]
        self._release(len(job.left))
        for index, item in job.left.items():
            self._lost[index] += 1
            if self._lost[index] >= self._attempts:
                raise lost_worker(f"{len(job.left)} items", str(error)) from error
            self._waiting.append((index, item))

    def _stop(self) -> None:
        """Cancel what runs, and wait for it for a while."""
        for _ in range(_STOP_TRIES):
            for job in self._jobs.values():
                # Again: the first time its job may not have begun.
                if job.left:
                    self._engine.cancel(job.group)
            for job in self._jobs.values():
                job.thread.join(_STOP_STEP_S)
            if not any(job.thread.is_alive() for job in self._jobs.values()):
                break
        for job in self._jobs.values():
            self._release(len(job.left))

    def _release(self, count: int) -> None:
        if self._engine.slots is not None:
            self._engine.slots.release(count)


@dataclass(frozen=True, slots=True)
class _Value(Generic[R]):
    value: R


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of an item of a group's job."""

    group: str
    index: int
    outcome: "_Value[Any] | _Failure"


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of a group's job; `error`: Spark gave it up."""

    group: str
    error: Exception | None


_Told = _Outcome | _Ended


class _Guarded(Generic[T, R]):
    """A task whose errors are values: Spark would only pass on their text, after further tries."""

    def __init__(self, task: Callable[[T], R]) -> None:
        self._task = task
        self._version = VERSION

    def __call__(self, item: T) -> "_Value[R] | _Failure":
        if self._version != VERSION:
            # An executor that came after all were asked for their versions.
            return _Failure(
                InvalidRequestError(
                    "run an item",
                    socket.gethostname(),
                    f"it has Penstock {VERSION}, the driver {self._version}",
                    f"pip install 'penstock[spark]=={self._version}' on every executor",
                )
            )
        try:
            return _Value(self._task(item))
        except Exception as error:  # noqa: BLE001 - raised again by the driver
            return _Failure(_picklable(error))


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own, just made
    except Exception:  # noqa: BLE001 - an error that can't be pickled still has its text
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# -- classic: an accumulator ----------------------------------------------------------------------


class _Telling(AccumulatorParam[list[Any]]):
    """Puts what tasks add into a queue of the driver. On executors it only gathers."""

    def __init__(self, group: str = "", found: "SimpleQueue[_Told] | None" = None) -> None:
        self._group = group
        self._found = found

    def __reduce__(self) -> tuple[type["_Telling"], tuple[()]]:
        return _Telling, ()

    def zero(self, value: list[Any]) -> list[Any]:  # noqa: ARG002 - pyspark's signature
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
        if self._found is None:
            return value1 + value2
        for index, outcome in value2:
            self._found.put(_Outcome(self._group, index, outcome))
        return value1


def _job(
    engine: SparkEngine,
    group: str,
    guarded: _Guarded[T, R],
    items: Sequence[tuple[int, T]],
    found: "SimpleQueue[_Told]",
) -> None:
    try:
        context = engine.session.sparkContext
        # This thread's alone: PySpark pins each Python thread to one of the JVM.
        context.setJobGroup(group, "penstock", interruptOnCancel=True)
        if engine.pool:
            context.setLocalProperty("spark.scheduler.pool", engine.pool)
        results = context.accumulator([], _Telling(group, found))

        def work(partition: Iterable[tuple[int, T]]) -> Iterator[None]:
            for index, item in partition:
                results.add([(index, guarded(item))])
            return iter(())

        try:
            context.parallelize(items, len(items)).mapPartitions(work).count()
        finally:
            # PySpark keeps each for ever, and a schedule runs jobs for weeks.
            _accumulatorRegistry.pop(results.aid, None)
    except Exception as error:  # noqa: BLE001 - raised again where results are awaited
        found.put(_Ended(group, error))
    else:
        found.put(_Ended(group, None))


# -- Connect: frames ------------------------------------------------------------------------------


def _frame_job(
    engine: SparkEngine,
    group: str,
    guarded: _Guarded[T, R],
    items: Sequence[tuple[int, T]],
    found: "SimpleQueue[_Told]",
) -> None:
    bodies = [pickle.dumps(item) for _, item in items]

    def work(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome = guarded(pickle.loads(bodies[number]))  # noqa: S301 - the driver's
                yield pa.record_batch(
                    [pa.array([number]), pa.array([pickle.dumps(outcome)], pa.binary())],
                    ["number", "outcome"],
                )

    try:
        session = engine.session
        session.addTag(group)
        frame = session.range(0, len(items), 1, len(items))
        for row in frame.mapInArrow(work, "number long, outcome binary").collect():
            outcome = pickle.loads(row.outcome)  # noqa: S301 - our own
            found.put(_Outcome(group, items[row.number][0], outcome))
    except Exception as error:  # noqa: BLE001 - raised again where results are awaited
        found.put(_Ended(group, error))
    else:
        found.put(_Ended(group, None))
