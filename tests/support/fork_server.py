"""The parent of forked processes: run as a program by `support.forked`, with a socket as argument.

It imports what most processes of tests need once, and forks each process from there: half a second
of the processor for each start of a server is saved. It has one thread, since a fork has no other.
Each message asks for one process; the descriptors that come with it are the process's standard
input, output and errors, and the end of a pipe that gets its exit status.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

MESSAGE_BYTES_MAX: Final = 1 << 17
PID: Final = struct.Struct("<i")
PACKAGES: Final = ("app", "cli", "kafka")
"""Below `penstock`, with all of their modules; what they import comes with them."""
LIBRARIES: Final = ("confluent_kafka", "obstore.store", "psycopg", "psycopg_binary", "uvloop",
                    "uvicorn.protocols.http.h11_impl")  # fmt: skip
"""Libraries that the product imports on first use."""


class _Forked(Exception):
    """Unwinds the loop in a new process, which goes on with a module."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module


def preload() -> None:
    """Import what most processes import, or import on first use."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for package in PACKAGES:
        found = importlib.import_module(f"penstock.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            importlib.import_module(module.name)


def serve(channel: socket.socket) -> None:
    """Fork until the other end is closed.

    Raises:
        _Forked: in each new process.
    """
    waiting: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is channel:
                    message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 4)
                    if not message:
                        return
                    *streams, status = descriptors
                    pid = os.fork()
                    if pid == 0:
                        raise _become(json.loads(message), streams)
                    for stream in streams:
                        os.close(stream)
                    watched = os.pidfd_open(pid)
                    waiting[watched] = (pid, status)
                    selector.register(watched, selectors.EVENT_READ)
                    channel.send(PID.pack(pid))
                else:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    pid, status = waiting.pop(key.fd)
                    _, ended = os.waitpid(pid, 0)
                    # Who started it may be gone.
                    with contextlib.suppress(BrokenPipeError):
                        os.write(status, PID.pack(os.waitstatus_to_exitcode(ended)))
                    os.close(status)


def _become(request: dict[str, Any], streams: list[int]) -> _Forked:
    """Make this process what a new interpreter would be, in a session of its own."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for opened in list(Path("/proc/self/fd").iterdir()):
        if int(opened.name) > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(opened.name))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment: dict[str, str] = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in given if path and path not in sys.path]
    arguments: list[str] = request["arguments"]
    sys.argv[1:] = arguments
    sys.orig_argv[:] = [sys.executable, "-m", request["module"], *arguments]
    if environment.get("PYTHONUNBUFFERED"):
        for output in (sys.stdout, sys.stderr):
            output.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return _Forked(request["module"])


def main() -> None:
    """Serve the socket that the first argument numbers."""
    # An interrupt of the test run is its own to handle; processes get the usual handler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    preload()
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: a module that was imported has started some"
    # What was imported is shared for good: a collection in a process would copy its pages.
    gc.collect()
    gc.freeze()
    module = ""
    try:
        serve(channel)
    except _Forked as forked:
        module = forked.module
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
