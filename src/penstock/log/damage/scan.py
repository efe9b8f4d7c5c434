"""Reading all that is stored once, at an operator's word: what `penstock repair --scan` asks for.

A scan is one pass of a scrubber of its own, at a rate of its own, over all objects that the state
names and all WALs of this host. What is damaged is noted like what a reader finds, so that the
repair which follows knows of it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.log.damage.scrub import Scrubber
from penstock.model.errors import RetryableError
from penstock.ports.clock import Clock
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

STEP_S: Final = 0.25
"""Between two looks at how much the rate allows."""
AWAY_S_MAX: Final = 60.0
"""How long a store that is away is waited for."""

Progress = Callable[[int, int], None]
"""Called with (bytes passed, bytes in all)."""


async def pause(seconds: float) -> None:
    """Wait; nothing comes before."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, over.set_result, None)
    try:
        await over
    finally:
        timer.cancel()


async def scan(
    scrubber: Scrubber,
    *,
    clock: Clock,
    total_bytes: int,
    progress: Progress,
    sleep: Callable[[float], Awaitable[None]] = pause,
) -> dict[str, Any]:
    """Let a new scrubber read everything once; what it came to.

    Args:
        total_bytes: of all runs.

    Raises:
        RetryableError: the store was away for `AWAY_S_MAX`.
    """
    away_since_s: float | None = None
    while not scrubber.pass_count and scrubber.has_partitions:
        before = scrubber.passed_bytes
        try:
            await scrubber.run_once()
        except RetryableError as error:
            heard(Cause.SCRUB, error, logger, "the scan waits")
            now_s = clock.monotonic_s()
            if away_since_s is None or scrubber.passed_bytes > before:
                away_since_s = now_s
            if now_s - away_since_s > AWAY_S_MAX:
                raise
        else:
            away_since_s = None
        # What was appended since the sum was made is read as well.
        progress(min(scrubber.passed_bytes, total_bytes), total_bytes)
        if not scrubber.pass_count:
            await sleep(STEP_S)
    return {
        "bytes": scrubber.read_bytes,
        "runs": scrubber.run_count,
        "damaged": scrubber.damaged_count,
    }
