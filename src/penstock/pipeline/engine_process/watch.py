"""Finds out whether an engine still works: its Java, its master, its Connect server."""

import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.pipeline.engine import Engine
from penstock.ports.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 5.0
"""Between two looks over the network."""
MISSES_MAX: Final = 3
"""Looks in vain, one after the other, at a master or server that then counts as gone."""
CONNECT_S: Final = 3.0
STARVED_S: Final = 120.0
"""A job may wait for its first executor until then."""


class Watch(Protocol):
    """Looks at one engine; in one thread at a time."""

    @property
    def java(self) -> Any:
        """The process of its Java, as a `subprocess.Popen`; None: it isn't a child of this one."""
        ...

    def problem(self, *, has_jobs: bool) -> str:
        """Return why the engine is lost, or "". It may block for as long as the engine hangs.

        Args:
            has_jobs: whether jobs run, which need executors.
        """
        ...


def watch_of(engine: Engine, master: str, clock: Clock) -> Watch:
    """The watch for an engine.

    Args:
        master: that it was opened with; "" for the local engine.
    """
    session = getattr(engine, "session", None)
    if session is None:
        return _Threads()
    if master.startswith("sc://"):
        return _Server(session, master, clock)
    return _Driver(session, master, clock)


def addresses(master: str) -> list[tuple[str, int]]:
    """The addresses that a master's URL names: spark://HOST:PORT,HOST:PORT or sc://HOST:PORT/;...
    Pure. None: it names none, as `local[2]`, `yarn`, `k8s://...` (asked through Spark)."""
    found = re.match(r"(spark|sc)://([^/;]+)", master)
    if found is None:
        return []
    default = 7077 if found[1] == "spark" else 15002
    places = []
    for part in found[2].split(","):
        host, _, port = part.rpartition(":") if re.search(r":\d+$", part) else (part, "", "")
        places.append((host.strip("[]"), int(port) if port else default))
    return places


class Reach:
    """Counts how often in a row no address could be connected to.

    Args:
        connects: whether an address answers.
    """

    def __init__(
        self,
        places: list[tuple[str, int]],
        clock: Clock,
        connects: Callable[[tuple[str, int]], bool] | None = None,
    ) -> None:
        self._places = places
        self._clock = clock
        self._connects = connects or answers
        self._due_s = 0.0
        self._misses = 0

    def problem(self) -> str:
        """Look, if it is time to. Returns: "" where one answers, or it isn't sure yet."""
        now_s = self._clock.monotonic_s()
        if not self._places or now_s < self._due_s:
            return ""
        self._due_s = now_s + LOOK_S
        if any(self._connects(place) for place in self._places):
            self._misses = 0
            return ""
        self._misses += 1
        if self._misses < MISSES_MAX:
            return ""
        shown = ", ".join(f"{host}:{port}" for host, port in self._places)
        return f"{shown}: no connection, {self._misses} times in a row"


def answers(place: tuple[str, int]) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection(place, CONNECT_S).close()
    except OSError:
        return False
    return True


class Starved:
    """Says when jobs have waited too long for a first executor."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = None

    def problem(self, executors: int, *, has_jobs: bool) -> str:
        """
        Args:
            executors: how many there are now.
        """
        now_s = self._clock.monotonic_s()
        if executors or not has_jobs:
            self._since_s = None
            return ""
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        return f"no executor for {waited_s:.0f} s" if waited_s >= STARVED_S else ""


class _Threads:
    java = None

    def problem(self, *, has_jobs: bool) -> str:  # noqa: ARG002 - the protocol's
        return ""


class _Driver:
    """A session whose driver is a Java of this process, on this machine or on a cluster."""

    def __init__(self, session: "SparkSession", master: str, clock: Clock) -> None:
        context = session.sparkContext
        self.java: Any = getattr(context._gateway, "proc", None)  # noqa: SLF001 - see below
        # PySpark says of none of these whether they live.
        self._context: Any = context._jsc.sc()  # noqa: SLF001
        self._has_executors = not master.startswith("local")
        self._reach = Reach(addresses(master), clock)
        self._starved = Starved(clock)

    def problem(self, *, has_jobs: bool) -> str:
        if self.java is not None and (status := self.java.poll()) is not None:
            return f"Java ended with status {status}"
        try:
            if self._context.isStopped():
                return "Spark has stopped"
            executors = 1
            if self._has_executors:
                # One of them is the driver.
                executors = self._context.getExecutorMemoryStatus().size() - 1
        except Exception as error:  # noqa: BLE001 - py4j's errors; any of them says the same
            return f"Java doesn't answer: {type(error).__name__}"
        return self._reach.problem() or self._starved.problem(executors, has_jobs=has_jobs)


class _Server:
    """A session of a Connect server."""

    java = None

    def __init__(self, session: "SparkSession", master: str, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._reach = Reach(addresses(master), clock)
        self._due_s = 0.0

    def problem(self, *, has_jobs: bool) -> str:  # noqa: ARG002 - the server's executors are its own
        # First: a call to a server that isn't there is tried again by its client for minutes.
        if missing := self._reach.problem():
            return missing
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return ""
        self._due_s = now_s + LOOK_S
        try:
            _ = self._session.range(1).schema
        except Exception as error:  # noqa: BLE001 - gRPC's and Spark's; any of them says the same
            return f"the server doesn't know the session any more: {_line(error)}"
        return ""


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
