"""The scheduler's side of its engine process: starts it, gives it jobs, and starts another when it
has ended."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from queue import Empty, SimpleQueue
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from penstock.model.errors import PenstockError, RetryableError
from penstock.pipeline.engine_process.leases import LeaseHolder
from penstock.pipeline.engine_process.link import Link
from penstock.pipeline.engine_process.messages import (
    PERMANENT,
    Alive,
    CloseLease,
    Done,
    EngineLost,
    Failed,
    FailedStart,
    OpenLease,
    Ready,
    Run,
    Start,
    Stop,
    StopJob,
)
from penstock.pipeline.jobs import Job
from penstock.pipeline.schedule import Stopping
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system.backoff import Backoff
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

REST: Final = Backoff(first_s=1.0, most_s=60.0)
"""Before an engine process that ended is followed by another."""
START_S: Final = 300.0
"""Executors of a cluster may be slow to come, and are asked for their versions."""
SILENCE_S: Final = 60.0
"""Without a message it hangs, and is killed."""
END_S: Final = 10.0
"""From `stop` to its end."""
GROUP_S: Final = 5.0
"""Java's, once its process is gone, from SIGTERM to SIGKILL."""
_LOOK_S: Final = 0.2
_COMMAND: Final = (sys.executable, "-P", "-m", "penstock.pipeline.engine_process")


class EngineState(StrEnum):
    """The states that docs/formats/engine-process.md has."""

    STARTING = "starting"
    READY = "ready"
    RESTING = "resting"
    STOPPED = "stopped"


class _ToldError(PenstockError):
    """An error of the engine process, whose text says all."""

    def __init__(self, text: str) -> None:
        super().__init__("run", "engine process", text)

    def __str__(self) -> str:
        return self.detail


class JobFailedError(_ToldError):
    """A job's own error."""


class EngineStartError(_ToldError):
    """The engine can't be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Says what is known of the engine.

    `shown`: what runs; `problem`: why it last ended; `pids`: of the process and its Java.
    """

    state: EngineState
    shown: str
    problem: str
    starts: int
    since_s: float
    pids: list[int]


class EngineKeeper:
    """Keeps one engine process; a context manager. Any thread.

    Args:
        start: the first message to it.
        leases: of the jobs that it does.
        changed: called when its state is another.
        gives_up: whether any failed start is the last.
        command: starts it, less the descriptor.
        environment: variables of it that this process doesn't have.
    """

    def __init__(
        self,
        start: Start,
        leases: LeaseHolder,
        *,
        clock: Clock,
        random: Random,
        changed: Callable[[], None],
        gives_up: bool = False,
        command: Sequence[str] = _COMMAND,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._start = start
        self._leases = leases
        self._clock = clock
        self._random = random
        self._changed = changed
        self._gives_up = gives_up
        self._command = tuple(command)
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._state = EngineState.STARTING
        self._problem = ""
        self._since_s = clock.monotonic_s()
        self._starts = self._failures = self._tokens = 0
        self._swallowed_before: dict[str, int] = {}
        self._swallowed: dict[str, int] = {}
        self._pids: list[int] = []
        self._waiting: dict[int, SimpleQueue[Done | Failed | None]] = {}
        self._link: Link | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="engine keeper", daemon=True)
        self.has_been_ready = self.was_killed = False
        self.fatal = ""
        """Why it can never start: another try would give the same."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- what is known ---------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether jobs may come."""
        return self._state is EngineState.READY

    def status(self) -> EngineStatus:
        """Return what is known of it."""
        with self._lock:
            return EngineStatus(
                state=self._state,
                shown=str(self._start.engine),
                problem=self._problem,
                starts=self._starts,
                since_s=self._since_s,
                pids=list(self._pids),
            )

    def swallowed(self) -> dict[str, int]:
        """Errors by cause that all engine processes went on after."""
        with self._lock:
            before, now = self._swallowed_before, self._swallowed
            return {cause: before.get(cause, 0) + now.get(cause, 0) for cause in {*before, *now}}

    # -- jobs ------------------------------------------------------------------------------------

    def run(self, job: Job, stopping: Stopping) -> Mapping[str, Any]:
        """Have a job done, and wait for it.

        Args:
            stopping: when it is set, the job is asked to end early.

        Raises:
            RetryableError: the engine is away, or ended meanwhile.
            JobFailedError: the job's own error.
        """
        answer: SimpleQueue[Done | Failed | None] = SimpleQueue()
        with self._lock:
            link = self._link
            if link is None or self._state is not EngineState.READY:
                raise RetryableError("run", job.name, f"the engine is {self._state}")
            self._tokens += 1
            token = self._tokens
            self._waiting[token] = answer
        try:
            link.send(Run(token, job))
            is_asked = False
            while True:
                try:
                    found = answer.get(timeout=_LOOK_S)
                except Empty:
                    if stopping.is_set() and not is_asked:
                        is_asked = True
                        _ask_to_stop(link, token)
                    continue
                break
        finally:
            with self._lock:
                self._waiting.pop(token, None)
        if found is None:
            raise RetryableError("run", job.name, f"its engine ended: {self._problem}")
        if isinstance(found, Failed):
            raise JobFailedError(found.text)
        with self._lock:
            self._failures = 0
        return found.summary

    # -- its end ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """End it at once; from a signal's handler, too."""
        self.was_killed = True
        self._stopping.set()
        process = self._process
        if process is not None:
            _signal(process, signal.SIGKILL)

    def close(self) -> None:
        """Let it end, and wait for that: jobs that still run are lost."""
        self._stopping.set()
        link, process = self._link, self._process
        if link is not None:
            try:
                link.send(Stop())
            except RetryableError as error:
                heard(Cause.END_WORKER, error, logger, "an engine process ends by itself")
        if process is not None:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired as error:
                heard(Cause.END_WORKER, error, logger, "an engine process that hangs is killed")
                _signal(process, signal.SIGKILL)
        self._thread.join()

    # -- its thread ------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._stopping.is_set():
            process, link = self._spawn()
            if self._stopping.is_set():
                # Asked between the two; `close` may have met neither.
                _signal(process, signal.SIGKILL)
            problem = self._serve(link)
            # First, so that no job is sent into a link that is closed.
            with self._lock:
                self._problem = problem or "the process ended"
            self._become(EngineState.RESTING)
            if self._stopping.is_set():
                # Asked to end: it has its time, which `close` bounds.
                self._await(process)
            link.close()
            self._bury(process)
            self._over(problem or f"the process ended with status {process.returncode}")
            if self._stopping.is_set():
                break
            if self._gives_up and not self.has_been_ready:
                self.fatal = self.fatal or self._problem
            if self.fatal:
                break
            rest_s = REST.jittered(self._failures, self._random, least=0.5)
            logger.warning(
                "the engine process (pid %d) ended: %s; another one in %.1f s",
                process.pid,
                self._problem,
                rest_s,
            )
            self._stopping.wait(rest_s)
        self._become(EngineState.STOPPED)

    def _spawn(self) -> tuple[subprocess.Popen[bytes], Link]:
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C reaches the scheduler alone.
            process = subprocess.Popen(  # noqa: S603 - this Python, with its own module
                [*self._command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        finally:
            theirs.close()
        ours.settimeout(START_S)
        link = Link(ours)
        with self._lock:
            self._process, self._link = process, link
            self._starts += 1
        self._become(EngineState.STARTING)
        try:
            link.send(self._start)
        except RetryableError as error:
            heard(Cause.END_WORKER, error, logger, "an engine process ended at its start")
        return process, link

    def _serve(self, link: Link) -> str:
        """Take messages to the process's end. Returns: why it ended, as far as it is known."""
        problem = ""
        while True:
            try:
                message = link.receive()
            except PenstockError as error:
                return str(error)
            match message:
                case None:
                    return problem
                case FailedStart(kind=kind, text=problem):
                    if self._gives_up or (kind == PERMANENT and not self.has_been_ready):
                        self.fatal = problem
                case EngineLost(text=problem):
                    # Its end follows: Java's may take a moment.
                    pass
                case Ready(pids=pids):
                    link.bound_silence(SILENCE_S)
                    with self._lock:
                        self._pids = pids
                    self.has_been_ready = True
                    self._become(EngineState.READY)
                case _:
                    self._take(message, link)

    def _take(self, message: object, link: Link) -> None:
        match message:
            case Done() | Failed():
                with self._lock:
                    waiting = self._waiting.get(message.token)
                if waiting is not None:
                    waiting.put(message)
            case OpenLease():
                self._leases.open(message, link)
            case CloseLease():
                self._leases.close(message.job)
            case Alive():
                with self._lock:
                    self._swallowed = message.swallowed
            case _:
                logger.error("%s isn't for a scheduler", type(message).__name__)

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired as error:
            heard(Cause.END_WORKER, error, logger, "an engine process that hangs is killed")

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """End what is left of it: Java, mostly."""
        if _signal(process, signal.SIGTERM):
            waited_s = 0.0
            while waited_s < GROUP_S and _signal(process, 0):
                # It counts as one of the group until it was waited for.
                process.poll()
                threading.Event().wait(_LOOK_S)
                waited_s += _LOOK_S
            _signal(process, signal.SIGKILL)
        process.wait()

    def _over(self, problem: str) -> None:
        with self._lock:
            self._problem = problem
            self._failures += 1
            self._link, self._process, self._pids = None, None, []
            waiting = list(self._waiting.values())
            for cause, count in self._swallowed.items():
                self._swallowed_before[cause] = self._swallowed_before.get(cause, 0) + count
            self._swallowed = {}
        for answer in waiting:
            answer.put(None)
        self._leases.close_all()

    def _become(self, state: EngineState) -> None:
        with self._lock:
            self._state = state
            self._since_s = self._clock.monotonic_s()
        self._changed()


def _ask_to_stop(link: Link, token: int) -> None:
    try:
        link.send(StopJob(token))
    except RetryableError as error:
        # Its job hears of the engine's end.
        heard(Cause.END_WORKER, error, logger, "a job's engine process ends by itself")


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal the process's group. Returns: whether there is one."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
