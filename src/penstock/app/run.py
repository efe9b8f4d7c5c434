"""Runs a server in the foreground until it is told to end."""

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from penstock.app.banner import banner
from penstock.app.descriptors import fit_open_files
from penstock.app.server import Server
from penstock.config.settings import ServerSettings
from penstock.observability.logs import configure_logs
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom

logger = logging.getLogger(__name__)

INTERRUPTED_EXIT_STATUS = 130


def run(settings: ServerSettings) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends the process at once.

    Raises:
        PenstockError: the server could not start.
    """
    configure_logs(settings.log_level)
    _runner()(_serve(fit_open_files(settings)))


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        import uvloop
    except ImportError:  # there is no wheel for every platform; it is faster, not otherwise
        return asyncio.run
    return uvloop.run


async def _serve(settings: ServerSettings) -> None:
    server = Server(settings, clock=SystemClock(), random=SystemRandom())
    stopping = asyncio.Event()
    _on_signals(stopping)
    await server.start()
    _tune_interpreter()
    try:
        _greet(server)
        await stopping.wait()
        logger.info("draining; a second signal ends at once")
    finally:
        await server.stop()
    logger.info("stopped")


def _tune_interpreter() -> None:
    """Settings of the interpreter that a server's work asks for; each was measured."""
    # What is loaded by now stays: looking through it again and again finds no garbage. The rest
    # is freed by counting references, and cycles are few, so they are looked for seldom.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    # The commit lane comes back from a sync and wants the lock that the event loop holds: 5 ms,
    # the default, is many times what a commit takes.
    sys.setswitchinterval(0.0005)


def _on_signals(stopping: asyncio.Event) -> None:
    def on_signal() -> None:
        if stopping.is_set():
            os._exit(INTERRUPTED_EXIT_STATUS)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


def _greet(server: Server) -> None:
    broker = server.parts.broker
    text = banner(
        command=_command(),
        kafka=server.advertised,
        http=server.http_address,
        data=str(server.parts.layout.root),
        cluster_id=broker.cluster_id,
        node_id=broker.node_id,
    )
    # Whoever started the server may have closed its output, which is no reason to end.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()


def _command() -> str:
    """How the reader calls the console script: by name where the shell finds this very one."""
    started_as = Path(sys.argv[0])
    if started_as.name != "penstock":
        return f"{sys.executable} -m penstock"
    found = shutil.which("penstock")
    if found is not None and Path(found).resolve() == started_as.resolve():
        return "penstock"
    return str(started_as)
