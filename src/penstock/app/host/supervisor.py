"""The supervisor is the parent of a host's workers: it starts, restarts and drains them.

The supervisor serves no client and holds no data. If it is killed, the workers see the end of their
sockets to it and drain by themselves.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence

import msgspec

from penstock.app.banner import Introduction
from penstock.app.host.workers import JOURNAL_WRITER, RestartDelays, WorkerPlace
from penstock.model.errors import ConflictError
from penstock.ports.clock import Clock
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 60.0


class Worker:
    """One worker process, and the parent's end of the socket to it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.delays = RestartDelays()
        self.process: Process | None = None
        self.started_s = 0.0
        self.ready: Introduction | None = None
        self._link: socket.socket | None = None

    async def start(self, command: Sequence[str], *, now_s: float) -> None:
        """Start the process. `command` starts a server; the worker's option is added to it."""
        self.close_link()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - the standard library's signature
        place = WorkerPlace(self.index, theirs.fileno())
        try:
            # The worker gets a session of its own, so that Ctrl-C reaches the parent alone, which
            # drains the workers in order.
            self.process = await asyncio.create_subprocess_exec(
                *command,
                "--worker",
                str(place),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._link = ours
        self.started_s = now_s
        self.ready = None

    async def wait_ready(self) -> Introduction | None:
        """Wait for the worker's introduction, sent once it serves; None: the worker ended
        before."""
        assert self._link is not None
        loop = asyncio.get_running_loop()
        data = b""
        while not data.endswith(b"\n"):
            with contextlib.suppress(ConnectionResetError):
                chunk = await loop.sock_recv(self._link, 65536)
                data += chunk
                if chunk:
                    continue
            return None
        self.ready = msgspec.json.decode(data, type=Introduction)
        return self.ready

    def terminate(self) -> None:
        """Ask the worker to drain and end."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()

    def kill(self) -> None:
        """End the worker at once."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    def close_link(self) -> None:
        """Close the parent's end of the socket."""
        if self._link is not None:
            self._link.close()
            self._link = None


class Supervisor:
    """Runs workers until `stop`. Event loop only."""

    def __init__(
        self,
        count: int,
        *,
        command: Sequence[str],
        clock: Clock,
        drain_timeout_s: float,
        on_ready: Callable[[list[Introduction]], None],
    ) -> None:
        """
        Args:
            command: starts a server with the settings of this one.
            on_ready: called once all workers serve, with the introduction of each.
        """
        self._command = command
        self._clock = clock
        self._drain_timeout_s = drain_timeout_s
        self._on_ready = on_ready
        self._workers = [Worker(index) for index in range(count)]
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all workers and wait until they serve.

        Raises:
            ConflictError: a worker ended before it served.
        """
        # Worker 0 writes the journal and starts first, since the other workers begin by asking it.
        for worker in self._workers:
            await worker.start(self._command, now_s=self._clock.monotonic_s())
            try:
                ready = await asyncio.wait_for(worker.wait_ready(), READY_TIMEOUT_S)
            except TimeoutError:
                ready = None
            if ready is None:
                await self.stop()
                raise ConflictError(
                    "start worker", str(worker.index), "it ended before it served", "see its log"
                )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep(worker), name=f"worker {worker.index}")
            for worker in self._workers
        ]
        self._on_ready([worker.ready for worker in self._workers if worker.ready is not None])

    async def stop(self) -> None:
        """Drain all workers; worker 0 comes last, since the others need its journal to drain."""
        self._stopping = True
        others = [worker for worker in self._workers if worker.index != JOURNAL_WRITER]
        await self._end(others)
        await self._end([worker for worker in self._workers if worker.index == JOURNAL_WRITER])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers:
            worker.close_link()

    def kill(self) -> None:
        """End all workers at once."""
        self._stopping = True
        for worker in self._workers:
            worker.kill()

    async def _end(self, workers: list[Worker]) -> None:
        processes = [worker.process for worker in workers if worker.process is not None]
        for worker in workers:
            worker.terminate()
        try:
            await asyncio.wait_for(
                asyncio.gather(*(process.wait() for process in processes)),
                # Workers bound their draining themselves. This longer bound is for one that hangs.
                self._drain_timeout_s * 2 + 5,
            )
        except TimeoutError as error:
            heard(Cause.END_WORKER, error, logger, "killing the workers that did not end")
            for worker in workers:
                worker.kill()
            await asyncio.gather(*(process.wait() for process in processes))

    async def _keep(self, worker: Worker) -> None:
        while True:
            assert worker.process is not None
            status = await worker.process.wait()
            if self._stopping:
                return
            ran_s = self._clock.monotonic_s() - worker.started_s
            delay_s = worker.delays.next_delay_s(ran_s=ran_s)
            logger.warning(
                "worker %d (pid %d) ended with status %d after %.1f s; starting it again in %g s",
                worker.index,
                worker.process.pid,
                status,
                ran_s,
                delay_s,
            )
            await wait(delay_s)
            if self._stopping:
                return
            await worker.start(self._command, now_s=self._clock.monotonic_s())
            if await worker.wait_ready() is not None:
                logger.info("worker %d serves again, pid %d", worker.index, worker.process.pid)


class ParentLink:
    """A worker's end of the socket to its parent. Event loop only."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's signature
        os.set_inheritable(descriptor, False)  # noqa: FBT003
        self.is_parent_gone = False

    def watch(self, on_parent_gone: Callable[[], None]) -> None:
        """Call `on_parent_gone` once the parent has ended."""

        def readable() -> None:
            with contextlib.suppress(BlockingIOError):
                try:
                    data = self._socket.recv(1)
                except OSError:
                    data = b""
                if not data:
                    loop.remove_reader(self._socket)
                    self.is_parent_gone = True
                    on_parent_gone()

        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, readable)

    def say_ready(self, about: Introduction) -> None:
        """Send the parent this worker's introduction: clients are served now."""
        self._socket.send(msgspec.json.encode(about) + b"\n")


def own_command() -> list[str]:
    """Return the command that starts another process like this one."""
    return [sys.executable, "-m", "penstock", *sys.argv[1:]]


def on_signals(stop: Callable[[], None], *, at_once: Callable[[], None]) -> None:
    """Call `stop` at the first SIGINT or SIGTERM, `at_once` at each further one."""
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            at_once()
        asked = True
        stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
