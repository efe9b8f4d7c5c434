"""Ends what `asyncio.start_server` has started so that no socket outlives the loop.

A socket or transport that is collected later fails whichever test runs then.
"""

from __future__ import annotations

import asyncio

_ACCEPTING_TURNS = 5
"""Turns of the loop from a socket that was accepted to the first line of its handler."""


async def close_listener(server: asyncio.Server) -> None:
    """Accept no more, let what was accepted reach its handler, then close.

    A server of Python 3.11 that is closed while it accepts leaves the accepted socket open.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(_ACCEPTING_TURNS):
        await asyncio.sleep(0)
    server.close()


async def abort_transports() -> None:
    """Abort all connections of the running loop."""
    loop = asyncio.get_running_loop()
    for transport in list(loop._transports.values()):  # type: ignore[attr-defined]
        transport.abort()
    # The loop closes an aborted transport's socket in its next turn.
    await asyncio.sleep(0)
