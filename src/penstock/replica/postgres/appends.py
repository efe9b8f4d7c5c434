"""Appends in flight on one connection, in the order of the calls."""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from functools import partial

from penstock.model.errors import FatalStorageError, RetryableError
from penstock.replica.postgres.lane import Lane
from penstock.replica.postgres.pipeline import (
    PipelinedConnection,
    ResultRows,
    StatementError,
    read_int8,
)
from penstock.replica.postgres.statements import Statement
from penstock.system import background

_UNIQUE_VIOLATION = "23505"


class _Append:
    """One call. `attempt` counts its copies: only the last one's answer counts."""

    __slots__ = ("attempt", "body", "future")

    def __init__(self, body: bytes, future: "asyncio.Future[int]") -> None:
        self.body = body
        self.future = future
        self.attempt = 0


class Appends:
    """Sends appends; a failed one fails all behind it, so that none overtakes it."""

    def __init__(
        self,
        lane: Lane,
        statement: Statement,
        *,
        timeout_s: float,
        on_appended: Callable[[int], None],
    ) -> None:
        self._lane = lane
        self._statement = statement
        self._timeout_s = timeout_s
        self._on_appended = on_appended
        self._unanswered: deque[_Append] = deque()
        self._connecting: asyncio.Task[None] | None = None

    async def append(self, body: bytes) -> int:
        """See `penstock.ports.journal.Journal`."""
        call = _Append(body, asyncio.get_running_loop().create_future())
        self._unanswered.append(call)
        connection = self._lane.connection
        if self._connecting is None:
            if connection is not None:
                self._send(connection, call)
            else:
                self._connecting = background.start(background.JOURNAL_CONNECTION, self._connect)
        return await call.future

    def close(self) -> None:
        """Fail what is in flight. The lane is closed by its owner."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._fail(RetryableError("append", "journal", "it is closed"))

    async def _connect(self) -> None:
        # Nothing awaits this task: whatever ends it has to reach those whose appends wait for it,
        # and those that come later must find that no attempt is under way.
        try:
            connection = await self._lane.connected()
        except asyncio.CancelledError:
            self._connecting = None
            self._fail(RetryableError("append", "journal", "it is closed"))
            raise
        except Exception as error:  # noqa: BLE001 - handed to the callers
            self._connecting = None
            self._fail(error)
            return
        self._connecting = None
        for call in list(self._unanswered):
            self._send(connection, call)

    def _send(self, connection: PipelinedConnection, call: _Append) -> None:
        call.attempt += 1
        try:
            answer = connection.execute(self._statement, [call.body], timeout_s=self._timeout_s)
        except Exception as error:  # noqa: BLE001 - handed to the callers
            connection.fail(str(error))
            self._fail(error)
            return
        answer.add_done_callback(partial(self._take_answer, connection, call, call.attempt))

    def _take_answer(
        self,
        connection: PipelinedConnection,
        call: _Append,
        attempt: int,
        answer: "asyncio.Future[ResultRows]",
    ) -> None:
        error = answer.exception()
        if attempt != call.attempt or not self._unanswered or self._unanswered[0] is not call:
            return  # of an earlier copy, or after a failure
        position = None if error is not None else _position(answer.result())
        if position is not None:
            self._unanswered.popleft()
            if not call.future.done():
                call.future.set_result(position)
            self._on_appended(position)
        elif isinstance(error, StatementError) and error.sqlstate == _UNIQUE_VIOLATION:
            # Its position was sealed while it was on its way; the next try takes another. Those
            # behind it have been appended by now, ahead of it: they are sent again behind it, and
            # applying refuses their first copies.
            for late in list(self._unanswered):
                self._send(connection, late)
        else:
            error = error or FatalStorageError(
                "append",
                "journal",
                "the database answered an INSERT without the row's position",
                "is there a rule or a trigger on the journal's table?",
            )
            connection.fail(str(error))
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        calls, self._unanswered = self._unanswered, deque()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)
                # Who called may have gone away meanwhile.
                call.future.exception()


def _position(rows: ResultRows) -> int | None:
    """Return the position that the statement returned; None: none."""
    try:
        return read_int8(rows[0][0])
    except (IndexError, struct.error):
        return None
