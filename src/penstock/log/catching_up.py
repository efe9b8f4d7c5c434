"""Queries of a database that another process writes, and that may lack what was applied here."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Final

from penstock.log.fetch.reader import Behind
from penstock.model.errors import RetryableError
from penstock.state.read.queries import Queries

WAIT_MAX_S: Final = 10.0
"""A process that ends must not wait for a thread that waits for another process."""


def caught_up(
    queries: Callable[[], Queries], behind: Behind, loop: asyncio.AbstractEventLoop
) -> Callable[[], Queries]:
    """The calling thread's queries, which find all that was applied before the call.

    What decides by them which bytes of a WAL are still needed has to find every run: one that it
    misses would be written over. To be called on pool threads, never on the event loop.

    Raises (by what is returned):
        RetryableError: the writer is away.
    """

    def find() -> Queries:
        if behind.is_behind:
            flushed = asyncio.run_coroutine_threadsafe(behind.flush(), loop)
            try:
                flushed.result(WAIT_MAX_S)
            except (TimeoutError, concurrent.futures.CancelledError) as error:
                flushed.cancel()
                raise RetryableError("query", "metadata", "its writer is away") from error
        return queries()

    return find
