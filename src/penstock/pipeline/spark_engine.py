"""The engine on Spark: one partition per item, in one job.

A job's `collect` gives nothing before its last task ends. So results come by an accumulator, whose
updates reach the driver with each task that succeeds, once per task also where Spark runs a twin.
Spark Connect has no accumulators: there items go in waves, through `mapInArrow`.
"""

import pickle
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pyspark.accumulators import AccumulatorParam, _accumulatorRegistry
from pyspark.errors import PySparkException

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.engine import Attempts, lost_worker
from penstock.ports.random import Random
from penstock.system.randomness import SystemRandom
from penstock.version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

WAVES_PER_PARALLELISM: Final = 4
_STOP_STEP_S: Final = 0.5
_STOP_TRIES: Final = 60


class SparkEngine:
    """Runs items as tasks of a Spark session, which the caller opens and stops.

    Args:
        session: a classic session or one of Spark Connect.
        frames: use DataFrames, which Connect needs; None: with Connect alone.
    """

    name: Final = "spark"

    def __init__(
        self, session: "SparkSession", *, frames: bool | None = None, random: Random | None = None
    ) -> None:
        self.session = session
        self._frames = _is_connect(session) if frames is None else frames
        self._random = random or SystemRandom()
        self.parallelism = _parallelism(session)

    def run(
        self, task: Callable[[T], R], items: Iterable[T], *, attempts: int = 3
    ) -> Generator[tuple[int, R], None, None]:
        """See `penstock.pipeline.engine.Engine.run`."""
        guarded = _Guarded(Attempts(task, attempts))
        numbered = enumerate(items)
        if not self._frames:
            yield from self._all(guarded, dict(numbered), attempts)
            return
        while wave := dict(islice(numbered, WAVES_PER_PARALLELISM * self.parallelism)):
            yield from self._all(guarded, wave, attempts)

    def _all(
        self, guarded: "_Guarded[T, R]", waiting: dict[int, T], attempts: int
    ) -> Generator[tuple[int, R], None, None]:
        """Run jobs until all items of `waiting` have a result: Spark gives a job up whose executor
        died too often, in local mode at once."""
        jobs = 0
        while waiting:
            jobs += 1
            try:
                with closing(self._job(guarded, list(waiting.items()))) as outcomes:
                    for index, outcome in outcomes:
                        if waiting.pop(index, None) is None:
                            continue  # a twin's
                        if isinstance(outcome, _Failure):
                            raise outcome.error
                        yield index, outcome.value
            except _JobError as error:
                if jobs >= attempts:
                    raise lost_worker(f"{len(waiting)} items", str(error)) from error

    def _job(
        self, guarded: "_Guarded[T, R]", items: Sequence[tuple[int, T]]
    ) -> Generator[tuple[int, "_Value[R] | _Failure"], None, None]:
        found: SimpleQueue[_Told] = SimpleQueue()
        run = _frame_job if self._frames else _job
        group = f"penstock-{self._random.token_bytes(8).hex()}"
        thread = Thread(
            target=run,
            args=(self.session, group, guarded, items, found),
            name="spark-job",
            daemon=True,
        )
        thread.start()
        ended = False
        try:
            while True:
                told = found.get()
                if isinstance(told, _Ended):
                    ended = True
                    if told.error is not None:
                        raise _JobError(str(told.error)) from told.error
                    return
                yield told
        finally:
            for _ in range(_STOP_TRIES):
                if not ended:
                    # Again: the first time its job may not have begun.
                    self._cancel(group)
                thread.join(_STOP_STEP_S)
                if not thread.is_alive():
                    break

    def _cancel(self, group: str) -> None:
        with suppress(Exception):  # it may be that the session itself is gone
            if _is_connect(self.session):
                self.session.interruptTag(group)
            else:
                self.session.sparkContext.cancelJobGroup(group)


@dataclass(frozen=True, slots=True)
class _Value(Generic[R]):
    value: R


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception


@dataclass(frozen=True, slots=True)
class _Ended:
    """The job's end; `error`: Spark gave it up."""

    error: Exception | None


_Told = tuple[int, "_Value[Any] | _Failure"] | _Ended


class _JobError(Exception):
    """Spark failed, not the task."""


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

    def __init__(self, found: "SimpleQueue[_Told] | None" = None) -> None:
        self._found = found

    def __reduce__(self) -> tuple[type["_Telling"], tuple[()]]:
        return _Telling, ()

    def zero(self, value: list[Any]) -> list[Any]:  # noqa: ARG002 - pyspark's signature
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
        if self._found is None:
            return value1 + value2
        for told in value2:
            self._found.put(told)
        return value1


def _job(
    session: "SparkSession",
    group: str,
    guarded: _Guarded[T, R],
    items: Sequence[tuple[int, T]],
    found: "SimpleQueue[_Told]",
) -> None:
    try:
        context = session.sparkContext
        # This thread's alone: PySpark pins each Python thread to one of the JVM.
        context.setJobGroup(group, "penstock", interruptOnCancel=True)
        results = context.accumulator([], _Telling(found))

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
        found.put(_Ended(error))
    else:
        found.put(_Ended(None))


# -- Connect: frames ------------------------------------------------------------------------------


def _frame_job(
    session: "SparkSession",
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
        session.addTag(group)
        frame = session.range(0, len(items), 1, len(items))
        for row in frame.mapInArrow(work, "number long, outcome binary").collect():
            found.put((items[row.number][0], pickle.loads(row.outcome)))  # noqa: S301
    except Exception as error:  # noqa: BLE001 - raised again where results are awaited
        found.put(_Ended(error))
    else:
        found.put(_Ended(None))


def _is_connect(session: "SparkSession") -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def _parallelism(session: "SparkSession") -> int:
    if not _is_connect(session):
        context: SparkContext = session.sparkContext
        return max(1, context.defaultParallelism)
    with suppress(PySparkException, ValueError):
        return max(1, int(session.conf.get("spark.default.parallelism") or 1))
    # Only the server knows its executors; a few waves of more than they can take do no harm.
    return 16
