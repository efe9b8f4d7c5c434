"""Runs the authorization service in the foreground until a signal ends it."""

import asyncio
import logging
import os

from penstock.app.authz.server import AuthzServer, AuthzSettings, within
from penstock.app.descriptors import raise_limit
from penstock.app.host.supervisor import on_signals
from penstock.app.process import (
    INTERRUPTED_EXIT_STATUS,
    hear,
    runner,
    say,
    tune_interpreter,
)
from penstock.authz.service.service import DEFAULT_ENVIRONMENT
from penstock.observability.logs import configure_logs
from penstock.system.clock import SystemClock
from penstock.system.randomness import SystemRandom
from penstock.version import VERSION

logger = logging.getLogger(__name__)


def run(settings: AuthzSettings, *, log_level: str) -> None:
    """Serve until SIGINT or SIGTERM. A second signal ends the process at once.

    Raises:
        PenstockError: it could not start, or nothing could be written any more.
    """
    configure_logs(log_level)
    runner()(_serve(within(settings, raise_limit())))


async def _serve(settings: AuthzSettings) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(hear)
    on_signals(stopping.set, at_once=lambda: os._exit(INTERRUPTED_EXIT_STATUS))
    server = AuthzServer(settings, clock=SystemClock(), random=SystemRandom())
    try:
        await server.start()
        tune_interpreter()
        say(_introduction(server))
        failed = server.service.failed
        failed.add_done_callback(lambda _: stopping.set())
        await stopping.wait()
        if failed.done():
            failed.result()
    finally:
        await server.stop()
    logger.info("stopped")


def _introduction(server: AuthzServer) -> str:
    return (
        f"Penstock {VERSION} authorizes at http://{server.address}, environment "
        f"{DEFAULT_ENVIRONMENT}, key {server.key_place}\n"
    )
