"""A start waits a while for a journal that doesn't answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.model.errors import RetryableError
from penstock.system.waiting import wait

T = TypeVar("T")

logger = logging.getLogger(__name__)

JOURNAL_WAIT_S: Final = 60.0
"""A start waits this long for a journal that doesn't answer."""
_RETRY_S: Final = 0.5


async def until_answered(work: Callable[[], Awaitable[T]]) -> T:
    """Try again while the journal doesn't answer, for `JOURNAL_WAIT_S`.

    Raises:
        RetryableError: it has not answered.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + JOURNAL_WAIT_S
    said = ""
    while True:
        try:
            return await work()
        except RetryableError as error:
            if loop.time() > until_s:
                raise
            if str(error) != said:
                said = str(error)
                logger.warning("waiting for the journal: %s", error)
            await wait(_RETRY_S)
