"""Letting time pass on whichever event loop runs, real or simulated."""

import asyncio
import time


async def wait(seconds: float) -> None:
    """Let `seconds` pass on the event loop's clock."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    handle = loop.call_later(seconds, _settle, done)
    try:
        await done
    finally:
        handle.cancel()


def _settle(done: "asyncio.Future[None]") -> None:
    # A caller may have been cancelled in the same turn.
    if not done.done():
        done.set_result(None)


def pause(seconds: float) -> None:
    """Let `seconds` pass on the calling thread, where there is no event loop."""
    time.sleep(seconds)
