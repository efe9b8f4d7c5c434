"""Runs a server in the foreground until a signal ends it."""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from penstock.app.banner import Introduction, banner
from penstock.app.descriptors import fit_open_files
from penstock.app.host.supervisor import ParentLink, Supervisor, on_signals, own_command
from penstock.app.host.workers import WorkerPlace, worker_settings
from penstock.app.process import (
    INTERRUPTED_EXIT_STATUS,
    hear,
    runner,
    say,
    tune_interpreter,
)
from penstock.app.server import Server
from penstock.config.settings import ServerSettings
from penstock.observability.logs import configure_logs
from penstock.system.clock import SystemClock, elapsed_s
from penstock.system.randomness import SystemRandom

logger = logging.getLogger(__name__)


def run(settings: ServerSettings, *, worker: WorkerPlace | None = None) -> None:
    """Serve until SIGINT or SIGTERM, then drain. A second signal ends the process at once.

    Args:
        worker: this process is one of `settings.workers`, started by their parent.

    Raises:
        PenstockError: the server could not start.
    """
    configure_logs(settings.log_level)
    if worker is not None:
        mine = fit_open_files(worker_settings(settings, worker.index))
        runner()(_serve(mine, worker=worker))
    elif settings.workers > 1:
        asyncio.run(_supervise(settings))
    else:
        runner()(_serve(fit_open_files(settings)))


async def _serve(settings: ServerSettings, *, worker: WorkerPlace | None = None) -> None:
    server = Server(
        settings,
        clock=SystemClock(),
        elapsed_s=elapsed_s,
        random=SystemRandom(),
        worker=worker.index if worker is not None else None,
    )
    stopping = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(hear)
    on_signals(stopping.set, at_once=lambda: os._exit(INTERRUPTED_EXIT_STATUS))
    link = ParentLink(worker.descriptor) if worker is not None else None
    if link is not None:
        link.watch(stopping.set)
    try:
        if not await _unless(stopping, server.start()):
            return
        tune_interpreter()
        if link is not None:
            link.say_ready(server.introduction())
        else:
            say(banner(server.introduction(), command=_command()))
        await stopping.wait()
        logger.info("draining; a second signal ends the process at once")
    finally:
        await server.stop(after_others=link is not None and link.is_parent_gone)
    logger.info("stopped")


async def _supervise(settings: ServerSettings) -> None:
    def all_ready(introductions: list[Introduction]) -> None:
        say(banner(*introductions, command=_command()))

    supervisor = Supervisor(
        settings.workers,
        command=own_command(),
        clock=SystemClock(),
        drain_timeout_s=settings.drain_timeout_ms / 1000,
        on_ready=all_ready,
    )
    stopping = asyncio.Event()

    def at_once() -> None:
        supervisor.kill()
        os._exit(INTERRUPTED_EXIT_STATUS)

    on_signals(stopping.set, at_once=at_once)
    if await _unless(stopping, supervisor.start()):
        await stopping.wait()
    logger.info("draining %d workers; a second signal ends them at once", settings.workers)
    await supervisor.stop()
    logger.info("stopped")


async def _unless(stopping: asyncio.Event, starting: Coroutine[Any, Any, None]) -> bool:
    """Start, unless `stopping` is set first: a database that the start waits for may be away for
    long. Return whether the start has finished."""
    started = asyncio.ensure_future(starting)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([started, stopped], return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            started.result()
            return True
        logger.info("stopped by a signal before clients were served")
        started.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await started
        return False
    finally:
        stopped.cancel()


def _command() -> str:
    """Return the call of the console script: its name where the shell finds this installation's,
    else the interpreter with `-m penstock`."""
    started_as = Path(sys.argv[0])
    if started_as.name != "penstock":
        return f"{sys.executable} -m penstock"
    found = shutil.which("penstock")
    if found is not None and Path(found).resolve() == started_as.resolve():
        return "penstock"
    return str(started_as)
