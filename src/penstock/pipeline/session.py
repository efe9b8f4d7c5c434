"""A Spark session: in this process with the wheel's Java, or on whatever Spark the user has.

    with_spark = session()                              # local[*], no Java to install
    with_spark = session("spark://head:7077")           # a cluster, by its master URL
    with_spark = session("sc://head:15002")             # Spark Connect

The connector is registered in it, so that `spark.read.format("penstock")` works, and filters are
handed to it. A local session listens on the loopback alone, has no web page and logs errors only.
Executors are asked for their versions first: a Penstock that is missing there, or another one,
would fail late and with a traceback of something else.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors import InvalidRequestError, NotFoundError, RetryableError
from penstock.pipeline.java import java_home
from penstock.pipeline.spark_slots import slots_of
from penstock.pipeline.worker_python import worker_python
from penstock.version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
DEFAULT_MEMORY: Final = "1g"
MASTER_VARIABLES: Final = ("SPARK_REMOTE", "SPARK_MASTER")
"""Variables of Spark; the first that is set names the master."""
CONNECT_PREFIX: Final = "sc://"

_LOGGING: Final = Path(__file__).parent / "log4j2.properties"
_CHECKED_TASKS_MAX: Final = 64

_LOCAL_CONF: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
_DRIVERS: Final = ("spark.scheduler.", "spark.ui.")
"""A Connect server decides these for itself."""
_CONF: Final = {
    "spark.ui.showConsoleProgress": "false",
    # False by default; without it our reader gets no filters.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def session(
    master: str | None = None,
    *,
    memory: str = DEFAULT_MEMORY,
    name: str = "penstock",
    conf: Mapping[str, str] | None = None,
    checks_executors: bool | None = None,
) -> "SparkSession":
    """Start or find a Spark session, with the connector in it.

    Args:
        master: `local[N]`, a cluster's URL, `sc://...` for Spark Connect; None: what SPARK_REMOTE
            or SPARK_MASTER name, else local with all cores.
        memory: of the JVM, where it is this process's child: Spark's notation, "1g".
        conf: further settings, over ours.
        checks_executors: whether to ask the executors for their versions; None: where they may
            have others, so not where they are this process's children.

    Raises:
        NotFoundError: pyspark or a Java is missing.
        InvalidRequestError: the executors' Python or Penstock is another.
        RetryableError: Spark did not start, or can't be reached.
    """
    given = (os.environ.get(name, "") for name in MASTER_VARIABLES)
    target = master or next(filter(None, given), DEFAULT_MASTER)
    with _environment(target):
        spark = _start(target, memory=memory, name=name, conf=conf or {})
    _register(spark)
    if not is_local(target) if checks_executors is None else checks_executors:
        check_executors(spark)
    return spark


def ui_conf(port: int) -> dict[str, str]:
    """Settings that give a session Spark's web page. A local session has it on the loopback.

    Args:
        port: 0: any free one; -1: no page.
    """
    return {} if port < 0 else {"spark.ui.enabled": "true", "spark.ui.port": str(port)}


def pools_conf() -> dict[str, str]:
    """Settings that let a session have the pools of fairscheduler.xml."""
    return {
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": (Path(__file__).parent / "fairscheduler.xml").as_uri(),
    }


def is_local(master: str) -> bool:
    """Whether the executors are threads of the driver's JVM and children of it."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _start(target: str, *, memory: str, name: str, conf: Mapping[str, str]) -> "SparkSession":
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotFoundError(
            "start Spark", "pyspark", str(error), "pip install 'penstock[spark]'"
        ) from error
    builder: Any = SparkSession.builder
    settings = dict(_CONF)
    if target.startswith(CONNECT_PREFIX):
        builder = builder.remote(target)
        # Settings of the server's own don't concern its clients.
        settings = {key: value for key, value in settings.items() if key.startswith("spark.sql.")}
        conf = {key: value for key, value in conf.items() if not key.startswith(_DRIVERS)}
    else:
        builder = builder.master(target).appName(name)
        settings["spark.driver.memory"] = memory
        if is_local(target):
            settings |= _LOCAL_CONF
        if "SPARK_HOME" not in os.environ:
            settings |= _quiet_conf()
    for key, value in (settings | dict(conf)).items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except (PySparkException, OSError, ImportError) as error:
        raise RetryableError("start Spark", target, _first_line(error)) from error
    except Exception as error:
        # py4j and gRPC have errors of their own, which can only be named where they're installed.
        if type(error).__module__.split(".")[0] not in {"py4j", "grpc"}:
            raise
        raise RetryableError("start Spark", target, _first_line(error)) from error
    return spark


def _quiet_conf() -> dict[str, str]:
    """For the Spark of the wheel, which would warn of what is as it must be, and leaves a folder
    where it was started. A Spark that the user set up logs as the user wants."""
    return {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "penstock-spark-warehouse"),
    }


@contextmanager
def _environment(target: str) -> Iterator[None]:
    """Set the environment that the launcher reads, while it starts."""
    if target.startswith(CONNECT_PREFIX):
        yield
        return
    changed: dict[str, str] = {}
    has_own_spark = "SPARK_HOME" not in os.environ
    if has_own_spark:
        changed["JAVA_HOME"] = str(java_home())
    if is_local(target):
        changed["PYSPARK_PYTHON"] = worker_python() if has_own_spark else sys.executable
        changed["PYSPARK_DRIVER_PYTHON"] = sys.executable
        changed["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _register(spark: "SparkSession") -> None:
    # On demand: it needs pyspark, whose absence `_start` names.
    from penstock.pipeline.connector import register

    register(spark)


# -- the executors' versions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """An executor's description of itself. Versions are "" where the package is missing."""

    host: str
    python: str
    penstock: str
    pyarrow: str
    numba: str


def check_executors(spark: "SparkSession") -> list[Executor]:
    """Ask the executors for their versions, by a task on each core, up to some.

    Raises:
        InvalidRequestError: Python or Penstock is missing there, or is another.
        RetryableError: the tasks failed otherwise.
    """
    try:
        rows = _ask(spark)
    except Exception as error:
        text = str(error)
        if "PYTHON_VERSION_MISMATCH" in text or "different version" in text:
            raise InvalidRequestError(
                "check executors",
                "Python",
                _python_mismatch(text),
                "set PYSPARK_PYTHON to a Python of the driver's version on every executor",
            ) from error
        raise RetryableError("check executors", "Spark", _first_line(error)) from error
    executors = sorted({Executor(**json.loads(row)) for row in rows}, key=lambda one: one.host)
    problem = executors_problem(executors, python=_python_version(), penstock=VERSION)
    if problem:
        raise InvalidRequestError(
            "check executors",
            "Penstock",
            problem,
            f"pip install 'penstock[spark]=={VERSION}' on every executor, or ship an environment"
            " with spark.archives",
        )
    return executors


def executors_problem(executors: Sequence[Executor], *, python: str, penstock: str) -> str:
    """Say why jobs can't run on executors, naming hosts; "": they can. Pure.

    Args:
        python: the driver's version, "3.11".
        penstock: the driver's version.
    """
    for one in executors:
        if one.python != python:
            return f"{one.host} runs Python {one.python}, the driver {python}"
        if not one.penstock:
            return f"{one.host} has no Penstock (the driver has {penstock})"
        if one.penstock != penstock:
            return f"{one.host} has Penstock {one.penstock}, the driver {penstock}"
        for package in ("pyarrow", "numba"):
            if not getattr(one, package):
                return f"{one.host} has no {package}"
    return ""


def _ask(spark: "SparkSession") -> list[str]:
    tasks = min(_CHECKED_TASKS_MAX, slots_of(spark))
    frame = spark.range(0, tasks, 1, tasks).mapInArrow(_teller(), "answer string")
    return [row.answer for row in frame.collect()]


def _teller() -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    # A function inside of a function is sent by value: one of a module would be sent by its name,
    # and fail to load where there is no Penstock, before it can say so.
    def tell(batches: Any) -> Any:
        import importlib.metadata
        import json
        import socket
        import sys

        import pyarrow as pa

        def version_of(package: str) -> str:
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                return ""

        try:
            import penstock.version

            ours = penstock.version.VERSION
        except ImportError:
            ours = ""
        for batch in batches:
            if not batch.num_rows:
                continue
            told = json.dumps(
                {
                    "host": socket.gethostname(),
                    "python": ".".join(map(str, sys.version_info[:2])),
                    "penstock": ours,
                    "pyarrow": version_of("pyarrow"),
                    "numba": version_of("numba"),
                }
            )
            yield pa.RecordBatch.from_pydict({"answer": [told]})

    return tell


def _python_version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def _python_mismatch(text: str) -> str:
    found = re.search(r"worker (?:has (?:a )?different version:? )?(\d+\.\d+)", text)
    if found is None:
        found = re.search(r"worker_version[^\d]*(\d+\.\d+)", text)
    theirs = f"run Python {found[1]}" if found else "run another Python"
    return f"the executors {theirs}, the driver {_python_version()}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
