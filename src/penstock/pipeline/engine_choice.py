"""A command chooses its engine and opens it: Spark where it is installed, else threads."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

import msgspec

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.engine import Engine, LocalEngine
from penstock.pipeline.session import DEFAULT_MASTER, MASTER_VARIABLES, pools_conf, session, ui_conf
from penstock.pipeline.slots import Slots, bulk_slots

LOCAL: Final = "local"
SPARK: Final = "spark"


class EngineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An engine and its settings, which are sent to the process that opens it.

    Args:
        name: LOCAL or SPARK.
        master: Spark's master.
        memory: the memory of the JVM, where the JVM is a child of this process.
        workers: threads of the local engine; 0: as many as there are cores.
        ui_port: the port of Spark's web page; -1: there is none, 0: any free port.
        conf: further settings of Spark.
        nice: how much priority its process gives up, 0 to 19.
        reason: why the engine isn't Spark although the user didn't ask for threads.
    """

    name: str
    master: str = ""
    memory: str = "1g"
    workers: int = 0
    ui_port: int = -1
    conf: dict[str, str] = {}
    nice: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if self.name == SPARK:
            return f"engine {self.name}, master {self.master}"
        count = self.workers or os.cpu_count() or 1
        why = f" ({self.reason})" if self.reason else ""
        return f"engine {self.name}, {count} threads{why}"


def choose_engine(
    engine: str | None,
    master: str | None,
    *,
    memory: str = "1g",
    workers: int = 0,
    ui_port: int = -1,
    conf: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    has_spark: bool | None = None,
) -> EngineChoice:
    """Choose Spark where PySpark is installed, at the master that is given, else by the
    environment, else `local[*]`. Threads are chosen only by name, or without PySpark.

    Args:
        engine: LOCAL or SPARK; None: not said.
        environment: this process's.
        has_spark: whether PySpark is installed; None: found out.

    Raises:
        InvalidRequestError: a master for the local engine.
    """
    variables = os.environ if environment is None else environment
    installed = find_spec("pyspark") is not None if has_spark is None else has_spark
    if engine == LOCAL and master:
        raise InvalidRequestError(
            "open engine", LOCAL, f"it has no master {master}", "leave --engine out"
        )
    # A master without PySpark fails when it is opened, by an error that says what to install.
    if engine == LOCAL or (engine is None and not master and not installed):
        reason = "" if engine else "PySpark is not installed"
        return EngineChoice(name=LOCAL, workers=workers, reason=reason)
    given = (variables.get(name, "") for name in MASTER_VARIABLES)
    return EngineChoice(
        name=SPARK,
        master=master or next(filter(None, given), DEFAULT_MASTER),
        memory=memory,
        ui_port=ui_port,
        conf=dict(conf or {}),
    )


@contextmanager
def opened(choice: EngineChoice) -> Iterator[Engine]:
    """The engine that was chosen, stopped at the end.

    Raises:
        NotFoundError: what it needs is not installed.
        InvalidRequestError: the executors' Python or Penstock is another.
        RetryableError: Spark did not start, or can't be reached.
    """
    if choice.name == LOCAL:
        yield LocalEngine(choice.workers)
        return
    conf = {**pools_conf(), **ui_conf(choice.ui_port), **choice.conf}
    found = session(choice.master, memory=choice.memory, conf=conf)
    try:
        # On demand: it needs pyspark, whose absence `session` names.
        from penstock.pipeline.spark_engine import SparkEngine

        yield SparkEngine(found)
    finally:
        found.stop()


def lanes(engine: Engine) -> tuple[Engine, Engine]:
    """Return two engines for one: for jobs that can't wait, and for bulk jobs, which together
    leave places free, and come second where a place is wanted by both."""
    if isinstance(engine, LocalEngine):
        bulk = LocalEngine(bulk_slots(engine.parallelism))
        return engine, bulk
    from penstock.pipeline.spark_engine import BULK_POOL, TABLES_POOL, SparkEngine

    assert isinstance(engine, SparkEngine)
    slots = Slots(bulk_slots(engine.parallelism))
    return (
        SparkEngine(engine.session, pool=TABLES_POOL),
        SparkEngine(engine.session, pool=BULK_POOL, slots=slots),
    )
