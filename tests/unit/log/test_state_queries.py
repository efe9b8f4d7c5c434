"""Threads that ask another worker's database, while that worker is away or this one ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from penstock.log import state_queries
from penstock.log.state_queries import SharedQueries
from penstock.model.errors import RetryableError
from penstock.state.read.queries import Queries

FOUND = cast("Queries", object())


def shared(answer: asyncio.Future[int], asked: threading.Event) -> SharedQueries:
    async def flush() -> int:
        asked.set()
        return await answer

    loop = asyncio.get_running_loop()
    return SharedQueries(lambda: FOUND, position=lambda: 7, flush=flush, loop=loop)


async def test_a_thread_finds_what_the_writer_has_committed() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    answer.set_result(7)
    queries = shared(answer, threading.Event())
    assert queries.is_behind
    assert await asyncio.to_thread(queries.caught_up) is FOUND
    assert not queries.is_behind


async def test_a_thread_hears_that_the_writer_is_away() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    answer.set_exception(RetryableError("ask", "journal", "away", ""))
    with pytest.raises(RetryableError, match="ask journal"):
        await asyncio.to_thread(shared(answer, threading.Event()).caught_up)


async def test_the_loop_can_wait_for_threads_that_wait_for_the_writer() -> None:
    """A server that ends closes its pool on the event loop, which then answers no thread."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asked = threading.Event()
    queries = shared(answer, asked)
    pool = ThreadPoolExecutor(1)
    waits = pool.submit(queries.caught_up)
    assert await asyncio.to_thread(asked.wait, 10)
    queries.close()
    later = pool.submit(queries.caught_up)
    pool.shutdown()  # the wait of ten seconds would fail the next line
    for call in (waits, later):
        error = call.exception(0)
        assert isinstance(error, RetryableError)
        assert "its writer is away" in str(error)


@pytest.mark.slow
async def test_the_error_of_a_flush_that_is_waited_for_no_longer_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rig of async tests fails if the loop is told of an exception that was not looked at."""
    monkeypatch.setattr(state_queries, "WAIT_MAX_S", 0.01)
    asked = threading.Event()
    loop = asyncio.get_running_loop()

    async def flush() -> int:
        asked.set()
        blocked.result()  # the loop runs again once the thread has given up
        raise RetryableError("ask", "journal", "away", "")

    queries = SharedQueries(lambda: FOUND, position=lambda: 7, flush=flush, loop=loop)
    pool = ThreadPoolExecutor(1)

    def given_up() -> Exception | None:
        with pytest.raises(RetryableError):
            queries.caught_up()
        return None

    blocked = pool.submit(given_up)
    await asyncio.to_thread(asked.wait, 10)
    for _ in range(5):
        await asyncio.sleep(0)
    pool.shutdown()
    gc.collect()  # an error that was not looked at is told when its task is gone
