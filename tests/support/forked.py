"""Processes of `python -m MODULE` that a fork server starts: `start`, and `run` which waits.

They are processes like others, with pid, session, environment, arguments and descriptors of their
own; what they import most has been imported once by `support.fork_server`, their parent. Where a
process's start is itself what is tested, a test starts an interpreter.

The fork server needs Linux (pidfd_open, /proc). Elsewhere each process is an interpreter,
and so it is in benchmarks: they measure starts as users have them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from support.fork_server import MESSAGE_BYTES_MAX, PID

_TESTS = Path(__file__).resolve().parents[1]
_SOURCES = _TESTS.parent / "src"
POLL_S = 3600.0
FORKS = sys.platform == "linux" and "pytest" in sys.modules
"""Whether `start` forks."""
_INTERPRETER = """
import runpy, signal, sys
# A shell that runs the tests in the background lets them, and so their children, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class ForkServerError(Exception):
    """The fork server has ended."""


class _ForkServer:
    """The one of this process, started at the first use."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.fork_server", str(theirs.fileno())],
                env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")},
                    "PYTHONPATH": f"{_SOURCES}{os.pathsep}{_TESTS}",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=_TESTS,
            )
        self._channel = ours
        self._lock = threading.Lock()
        atexit.register(self._end)

    def fork(self, message: bytes, streams: Sequence[int]) -> tuple[int, int]:
        """Return a new process's pid, and what its exit status will be read from."""
        assert len(message) < MESSAGE_BYTES_MAX, f"{len(message)} bytes of environment"
        status, theirs = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._channel, [message], [*streams, theirs])
                answer = self._channel.recv(PID.size)
        except OSError as error:
            os.close(status)
            raise ForkServerError(str(error)) from error
        finally:
            os.close(theirs)
        if not answer:
            os.close(status)
            raise ForkServerError(f"it ended with {self._process.wait()}")
        (pid,) = PID.unpack(answer)
        return pid, status

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()


_servers: dict[int, _ForkServer] = {}
_starting = threading.Lock()


def _server() -> _ForkServer:
    with _starting:
        # A process that was forked from this one has no share in its server.
        pid = os.getpid()
        if pid not in _servers:
            _servers[pid] = _ForkServer()
        return _servers[pid]


class Forked:
    """One process, with as much of `subprocess.Popen`'s face as tests use.

    Args:
        module: what is run as `__main__`.
        environment: all of it.
        folder: the working directory.
        stdin, stdout, stderr: descriptors or files; the caller closes its own.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
    ) -> None:
        self.args = ["python", "-m", module, *arguments]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
        }
        streams = [s if isinstance(s, int) else s.fileno() for s in (stdin, stdout, stderr)]
        self.pid, self._status = _server().fork(json.dumps(request).encode(), streams)

    def poll(self) -> int | None:
        """Return the exit status once it has ended."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = POLL_S if until is None else max(until - time.monotonic(), 0)
            if (status := self._look(left)) is not None:
                return status
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)

    def _look(self, seconds: float) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
            # Others may look meanwhile: when one has read the status, the end wakes the rest.
            if waiting.poll(seconds * 1000):
                with self._lock:
                    if self.returncode is None:
                        answer = os.read(self._status, PID.size)
                        # Nothing says how a process ended whose parent was killed.
                        self.returncode = PID.unpack(answer)[0] if answer else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never forked
            os.close(self._status)


Process = Forked | subprocess.Popen[bytes]


def start(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
) -> Process:
    """Start a process in a session of its own; the arguments are those of `Forked`."""
    if FORKS:
        return Forked(
            module,
            arguments,
            environment=environment,
            folder=folder,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
    return subprocess.Popen(
        [sys.executable, "-c", _INTERPRETER, module, *arguments],
        cwd=folder,
        env=dict(environment),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def run(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout_s: float,
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, with no input.

    Raises:
        subprocess.TimeoutExpired: it took longer, and was killed.
    """
    with (
        Path(os.devnull).open("rb") as nothing,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        process = start(
            module,
            arguments,
            environment=environment,
            folder=Path.cwd(),
            stdin=nothing,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = []
        for output in (stdout, stderr):
            output.seek(0)
            texts.append(output.read().decode())
    return subprocess.CompletedProcess(process.args, status, *texts)
