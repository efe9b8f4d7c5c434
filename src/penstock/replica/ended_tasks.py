"""Ends tasks that work together, where one has failed or their caller was cancelled."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)


async def end_tasks(
    tasks: "Sequence[asyncio.Task[Any]]", cause: Cause, *, raised: BaseException | None
) -> None:
    """Cancel tasks and wait for their ends.

    Their errors are heard, also if this call is cancelled before they have ended, save the one that
    the caller raises.

    Args:
        cause: what the tasks could not do.
        raised: the caller's own error; None: it has none.
    """
    for task in tasks:
        task.cancel()
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            if task.done():
                _hear(cause, raised, task)
            else:
                task.add_done_callback(partial(_hear, cause, raised))


def _hear(cause: Cause, raised: BaseException | None, task: "asyncio.Task[Any]") -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and error is not raised:
        heard(cause, error, logger, "failed while it was being ended")
