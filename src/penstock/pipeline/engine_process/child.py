"""The engine process: opens the engine, does jobs, and ends with whichever of both ends first."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, Final, NoReturn

from penstock.model.errors import InvalidRequestError, NotFoundError, PenstockError
from penstock.observability.logs import configure_logs
from penstock.pipeline.engine import Engine
from penstock.pipeline.engine_choice import lanes, opened
from penstock.pipeline.engine_process.leases import ScheduledClient
from penstock.pipeline.engine_process.link import Link
from penstock.pipeline.engine_process.messages import (
    PERMANENT,
    RETRY,
    Alive,
    Done,
    EngineLost,
    Failed,
    FailedStart,
    FromEngine,
    Lease,
    LeaseLost,
    LeaseRefused,
    Ready,
    Run,
    Start,
    Stop,
    StopJob,
)
from penstock.pipeline.engine_process.watch import Watch, watch_of
from penstock.pipeline.jobs import Job
from penstock.pipeline.schedule import Stopping
from penstock.system.clock import SystemClock
from penstock.system.heard import swallowed_counts

logger = logging.getLogger(__name__)

ALIVE_S: Final = 2.0
LOST_STATUS: Final = 3
ORPHAN_STATUS: Final = 4
START_STATUS: Final = 5
LINK_STATUS: Final = 6


def main(descriptor: int) -> None:
    """Do what the scheduler at the other end of a socket says, and end when it says so, or is gone.

    Args:
        descriptor: of the socket, inherited.
    """
    configure_logs("warning")
    # The scheduler is asked by the person, and says when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=descriptor)
    # Java inherits nothing of it: the scheduler waits for the end of this process alone.
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - the standard library's signature
    link = Link(end)
    start = link.receive()
    if not isinstance(start, Start):
        _leave(ORPHAN_STATUS)
    os.nice(start.engine.nice)
    _Child(link, start).run()


class _Child:
    def __init__(self, link: Link, start: Start) -> None:
        self._link = link
        self._start = start
        self._client = ScheduledClient(start.api, link)
        self._stop = threading.Event()
        self._work: _Jobs | None = None
        self._orders: SimpleQueue[Run | StopJob] = SimpleQueue()

    def run(self) -> None:
        # Before the engine is opened, which takes seconds: the scheduler may end meanwhile.
        threading.Thread(target=self._listen, name="scheduler", daemon=True).start()
        with ExitStack() as stack:
            try:
                engine = stack.enter_context(opened(self._start.engine))
                watch = watch_of(engine, self._start.engine.master, SystemClock())
                jobs = _Jobs(self._link, self._start, self._client, engine, watch)
            except Exception as error:
                is_permanent = isinstance(error, NotFoundError | InvalidRequestError)
                if not isinstance(error, PenstockError):
                    logger.exception("the engine can't be opened")
                text = str(error) or type(error).__name__
                _say(self._link, FailedStart(PERMANENT if is_permanent else RETRY, text))
                # Not by the interpreter's end, which would wait for a Java that may hang.
                _leave(START_STATUS)
            self._work = jobs
            java = [] if watch.java is None else [watch.java.pid]
            _say(self._link, Ready(str(self._start.engine), [os.getpid(), *java]))
            threading.Thread(target=self._obey, name="jobs", daemon=True).start()
            if watch.java is not None:
                threading.Thread(target=jobs.await_java, name="java", daemon=True).start()
            while not self._stop.wait(ALIVE_S):
                jobs.look()
                _say(self._link, Alive(dict(swallowed_counts())))
        self._client.close()
        _leave(0)

    def _listen(self) -> None:
        while True:
            message = self._link.receive()
            match message:
                case None:
                    _leave(ORPHAN_STATUS)
                case Run() | StopJob():
                    self._orders.put(message)
                case Lease() | LeaseRefused() | LeaseLost():
                    self._client.take(message)
                case Stop():
                    self._stop.set()
                case _:
                    logger.error("%s isn't for an engine process", type(message).__name__)
                    _leave(LINK_STATUS)

    def _obey(self) -> None:
        assert self._work is not None
        while True:
            order = self._orders.get()
            if isinstance(order, Run):
                self._work.begin(order.token, order.job)
            else:
                self._work.stop(order.token)


class _Jobs:
    """Jobs of this process, a thread each."""

    def __init__(
        self, link: Link, start: Start, client: ScheduledClient, engine: Engine, watch: Watch
    ) -> None:
        # What a job needs takes seconds to load, which the first one shouldn't have to wait for.
        try:
            from penstock.pipeline.compaction.incremental import Memory
            from penstock.pipeline.job_runs import run_job
        except ImportError as error:
            # The scheduler imports none of it, so that this process is the first to miss it.
            raise NotFoundError(
                "run jobs",
                error.name or "a package",
                f"it can't be imported: {error}",
                "pip install 'penstock[spark]'",
            ) from error

        memory = Memory()
        first, bulk = lanes(engine)
        self._do: Callable[[Job, Stopping], Mapping[str, Any]] = lambda job, stopping: run_job(
            job, client, bulk if job.is_bulk else first, start.settings, stopping, memory
        )
        self._link = link
        self._watch = watch
        self._looking = threading.Lock()
        self._lock = threading.Lock()
        self._stopping: dict[int, threading.Event] = {}

    def begin(self, token: int, job: Job) -> None:
        """Do a job."""
        stopping = threading.Event()
        with self._lock:
            self._stopping[token] = stopping
        thread = threading.Thread(
            target=self._run, args=(token, job, stopping), name=f"job {job.name}", daemon=True
        )
        thread.start()

    def stop(self, token: int) -> None:
        """Let a job end early."""
        with self._lock:
            stopping = self._stopping.get(token)
        if stopping is not None:
            stopping.set()

    def look(self) -> None:
        """Look at the engine. This process ends if it is lost."""
        with self._looking:
            problem = self._watch.problem(has_jobs=bool(self._stopping))
            if problem:
                self._lose(problem)

    def await_java(self) -> None:
        """Wait for Java's end, which this process's follows at once."""
        status = self._watch.java.wait()
        self._lose(f"Java ended with status {status}")

    def _lose(self, problem: str) -> None:
        _say(self._link, EngineLost(problem))
        _leave(LOST_STATUS)

    def _run(self, token: int, job: Job, stopping: threading.Event) -> None:
        answer: FromEngine
        try:
            answer = Done(token, dict(self._do(job, stopping)))
        except Exception as error:
            # First: a job that fails because the engine is gone says nothing of the job.
            self.look()
            if not isinstance(error, PenstockError):
                # A bug, or an error of a library that has no translation: its place is of interest.
                logger.exception("job %s failed", job.name)
            answer = Failed(token, str(error) or type(error).__name__)
        with self._lock:
            del self._stopping[token]
        _say(self._link, answer)


def _say(link: Link, message: FromEngine) -> None:
    try:
        link.send(message)
    except InvalidRequestError as error:
        # A summary that is too long: its job is through all the same.
        assert isinstance(message, Done)
        link.send(Failed(message.token, str(error)))
    except PenstockError:
        _leave(ORPHAN_STATUS)


def _leave(status: int) -> NoReturn:
    # At once: the interpreter's own end calls Spark's, which would wait for a Java that is gone.
    logging.shutdown()
    os._exit(status)
