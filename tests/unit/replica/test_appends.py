"""Appends on a connection that fails as its own errors do not say: callers hear of all."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.model.errors import FatalStorageError, RetryableError
from penstock.replica.postgres.appends import Appends
from penstock.replica.postgres.pipeline import ResultRows, int8
from penstock.replica.postgres.statements import Statement, Statements

APPEND = Statements("test").append


class FakeConnection:
    """Answers with rows, or raises."""

    def __init__(self, answer: ResultRows | Exception) -> None:
        self.answer = answer
        self.failures: list[str] = []

    def execute(
        self, statement: Statement, parameters: Sequence[bytes], *, timeout_s: float
    ) -> "asyncio.Future[ResultRows]":
        if isinstance(self.answer, Exception):
            raise self.answer
        future: asyncio.Future[ResultRows] = asyncio.get_running_loop().create_future()
        future.set_result(self.answer)
        return future

    def fail(self, detail: str) -> None:
        self.failures.append(detail)


class FakeLane:
    """Gives what the test lists, one per attempt; exceptions are raised."""

    def __init__(self, *attempts: Any) -> None:
        self.attempts = list(attempts)
        self.connection: FakeConnection | None = None

    async def connected(self) -> FakeConnection:
        await asyncio.sleep(0)
        found = self.attempts.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


def _appends(lane: FakeLane) -> Appends:
    return Appends(lane, APPEND, timeout_s=1, on_appended=lambda _: None)  # type: ignore[arg-type]


async def _failed(appends: Appends) -> BaseException:
    """What an append ends with, which must not hang."""
    done, _ = await asyncio.wait([asyncio.ensure_future(appends.append(b"body"))], timeout=5)
    assert done, "the append hangs"
    (task,) = done
    assert not task.cancelled()
    error = task.exception()
    assert error is not None
    return error


async def test_a_connection_attempt_that_ends_unforeseen_fails_all_and_the_next_connects() -> None:
    lane = FakeLane(ValueError("a bug"), FakeConnection([[int8(7)]]))
    appends = _appends(lane)
    both = await asyncio.gather(_failed(appends), _failed(appends))
    assert [type(error) for error in both] == [ValueError, ValueError]
    assert await asyncio.wait_for(appends.append(b"body"), 5) == 7


async def test_a_connection_attempt_that_is_cancelled_fails_what_waits_retriably() -> None:
    appends = _appends(FakeLane(asyncio.CancelledError(), FakeConnection([[int8(7)]])))
    assert type(await _failed(appends)) is RetryableError
    assert await asyncio.wait_for(appends.append(b"body"), 5) == 7


async def test_a_statement_that_cannot_be_sent_fails_the_append_and_the_connection() -> None:
    connection = FakeConnection(TypeError("not bytes"))
    assert type(await _failed(_appends(FakeLane(connection)))) is TypeError
    assert connection.failures == ["not bytes"]


@pytest.mark.parametrize("rows", [[], [[b""]], [[b"1234"]]], ids=["no row", "empty", "short"])
async def test_an_answer_without_a_position_fails_the_append_and_the_connection(
    rows: ResultRows,
) -> None:
    connection = FakeConnection(rows)
    assert type(await _failed(_appends(FakeLane(connection)))) is FatalStorageError
    assert len(connection.failures) == 1
