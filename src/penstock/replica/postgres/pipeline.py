"""Statements in flight on one connection, answered in order: libpq's pipeline mode on asyncio.

psycopg's own connections wait for each other's statements; here each is sent at once, with a sync
point behind it, so that each is a transaction by itself and the server carries them out one by
one in the order in which they were sent. Results come back in that order.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.replica.postgres.settings import KEEPALIVE
from penstock.replica.postgres.statements import Statement

_INT8: Final = struct.Struct("!q")
_BINARY: Final = 1
_WARNING: Final = "WARNING"

ResultRows = list[list[bytes]]
"""Values in PostgreSQL's binary format, by row and column."""


class StatementError(RetryableError):
    """A statement failed; `sqlstate` says how (five characters)."""

    def __init__(self, operation: str, subject: str, detail: str, *, sqlstate: str) -> None:
        super().__init__(operation, subject, detail)
        self.sqlstate = sqlstate


class _Request:
    """A statement whose result has not come."""

    __slots__ = ("deadline_s", "future", "name", "outcome")

    def __init__(self, name: str, deadline_s: float, future: "asyncio.Future[ResultRows]") -> None:
        self.name = name
        self.deadline_s = deadline_s
        self.future = future
        self.outcome: ResultRows | StatementError | None = None


class PipelinedConnection:
    """One connection. Event loop only. Once broken it stays so: `failure` says why."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        """Takes an ordinary connection over."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._fd = self._pgconn.socket
        self._pending: deque[_Request] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._writing = False
        self._warning = ""
        self._on_notify: Callable[[str], None] | None = None
        self.failure: RetryableError | None = None
        # A server that stops waiting for its standby says so by a warning, and then reports
        # success: what it calls committed can be lost in a failover.
        connection.add_notice_handler(self._take_notice)
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        self._loop.add_reader(self._fd, self._readable)

    async def prepare(self, statements: Sequence[Statement], *, timeout_s: float) -> None:
        """Prepare statements for `execute`."""
        pgconn = self._pgconn
        futures = [
            self._send(
                statement.name,
                timeout_s,
                partial(
                    pgconn.send_prepare,
                    statement.name.encode(),
                    statement.sql.encode(),
                    list(statement.types),
                ),
            )
            for statement in statements
        ]
        for future in futures:
            await future

    def execute(
        self, statement: Statement, parameters: Sequence[bytes] = (), *, timeout_s: float
    ) -> "asyncio.Future[ResultRows]":
        """Send a prepared statement now; its result, or StatementError, or RetryableError when
        the connection was lost."""
        send = partial(
            self._pgconn.send_query_prepared,
            statement.name.encode(),
            parameters,
            [_BINARY] * len(parameters),
            _BINARY,
        )
        return self._send(statement.name, timeout_s, send)

    def run(self, sql: str, *, timeout_s: float) -> "asyncio.Future[ResultRows]":
        """Send a statement that isn't prepared."""
        send = partial(self._pgconn.send_query_params, sql.encode(), None)
        return self._send(sql.split(maxsplit=1)[0], timeout_s, send)

    def listen(self, on_notify: Callable[[str], None]) -> None:
        """Call with the payload of each notification."""
        self._on_notify = on_notify

    def fail(self, detail: str) -> None:
        """Give the connection up; all that is in flight fails. Idempotent."""
        if self.failure is not None:
            return
        self.failure = _lost(detail)
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        if self._watch is not None:
            self._watch.cancel()
        pending, self._pending = self._pending, deque()
        for request in pending:
            _settle(request.future, self.failure)
        self._pgconn.finish()

    # -- inside ----------------------------------------------------------------------------------

    def _send(
        self, name: str, timeout_s: float, send: Callable[[], None]
    ) -> "asyncio.Future[ResultRows]":
        deadline_s = self._loop.time() + timeout_s
        request = _Request(name, deadline_s, self._loop.create_future())
        if self.failure is not None:
            _settle(request.future, self.failure)
            return request.future
        self._pending.append(request)
        if self._watch is None:
            self._watch = self._loop.call_at(deadline_s, self._check_deadline)
        try:
            send()
            self._pgconn.pipeline_sync()
            self._flush()
        except psycopg.Error as error:
            self.fail(str(error))
        return request.future

    def _flush(self) -> None:
        is_left = self._pgconn.flush() == 1
        if is_left and not self._writing:
            self._loop.add_writer(self._fd, self._writable)
        elif not is_left and self._writing:
            self._loop.remove_writer(self._fd)
        self._writing = is_left

    def _writable(self) -> None:
        try:
            self._flush()
        except psycopg.Error as error:
            self.fail(str(error))

    def _readable(self) -> None:
        try:
            self._pgconn.consume_input()
            self._take_results()
            while self.failure is None and (notify := self._pgconn.notifies()) is not None:
                if self._on_notify is not None:
                    self._on_notify(notify.extra.decode(errors="replace"))
            if self._writing and self.failure is None:
                self._flush()
        except psycopg.Error as error:
            self.fail(str(error))

    def _take_results(self) -> None:
        """Return per statement its result and nothing (its end), then the sync point's result."""
        pgconn = self._pgconn
        while self._pending and self.failure is None and not pgconn.is_busy():
            result = pgconn.get_result()
            if self._warning:
                self.fail(self._warning)
                return
            if pgconn.status == pq.ConnStatus.BAD:
                # Results of a lost connection say nothing about what was carried out.
                self.fail(pgconn.get_error_message())
                return
            if result is None:
                continue
            request = self._pending[0]
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._pending.popleft()
                assert request.outcome is not None, f"{request.name} without a result"
                _settle(request.future, request.outcome)
            elif request.outcome is None:
                request.outcome = _outcome(request.name, result)

    def _check_deadline(self) -> None:
        """Answers come in order, so the oldest one's deadline is the connection's."""
        self._watch = None
        if not self._pending:
            return
        oldest = self._pending[0]
        if oldest.deadline_s <= self._loop.time():
            self.fail(f"no answer to {oldest.name} in time")
        else:
            self._watch = self._loop.call_at(oldest.deadline_s, self._check_deadline)

    def _take_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == _WARNING:
            # Within libpq's own callback, and before the result that it is about.
            self._warning = f"the server warns: {notice.message_primary}"


async def connect(
    url: str, *, timeout_s: int, setup: Sequence[str] = ()
) -> psycopg.AsyncConnection:
    """An ordinary connection in autocommit mode, to a server that takes writes.

    Raises:
        RetryableError: not in time, or refused.
        InvalidRequestError: not a URL.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # What libpq says of it quotes it, and there may be a password in it.
        raise InvalidRequestError(
            "open journal",
            "its URL",
            "PostgreSQL's client library can't read it",
            "write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, special characters as %XX",
        ) from None
    defaults: dict[str, str | int] = {
        "connect_timeout": timeout_s,
        "application_name": "penstock",
        # Of several hosts, the one that isn't a standby.
        "target_session_attrs": "read-write",
        "tcp_user_timeout": timeout_s * 1000,
        **KEEPALIVE,
    }
    conninfo = make_conninfo(url, **{k: v for k, v in defaults.items() if k not in given})
    connection: psycopg.AsyncConnection | None = None
    try:
        async with asyncio.timeout(2 * timeout_s):
            connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
            for statement in setup:
                await connection.execute(statement.encode())
    except (TimeoutError, OSError, psycopg.Error) as error:
        if connection is not None:
            connection.pgconn.finish()
        raise_lost("connect", error)
    except BaseException:
        if connection is not None:
            connection.pgconn.finish()
        raise
    return connection


def raise_lost(operation: str, error: Exception) -> NoReturn:
    """Translate psycopg's errors. What they say has no password in it."""
    sqlstate = getattr(error, "sqlstate", None)
    detail = str(error).strip() or type(error).__name__
    if sqlstate:
        raise StatementError(operation, "journal database", detail, sqlstate=sqlstate) from error
    raise RetryableError(operation, "journal database", detail) from error


def int8(value: int) -> bytes:
    """A BIGINT parameter."""
    return _INT8.pack(value)


def read_int8(value: bytes) -> int:
    """A BIGINT of a result."""
    number: int = _INT8.unpack(value)[0]
    return number


def _outcome(name: str, result: pq.abc.PGresult) -> ResultRows | StatementError:
    if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        columns = range(result.nfields)
        return [
            [result.get_value(row, column) or b"" for column in columns]
            for row in range(result.ntuples)
        ]
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"failed"
    return StatementError(
        name, "journal database", message.decode(errors="replace"), sqlstate=sqlstate.decode()
    )


def _settle(future: "asyncio.Future[ResultRows]", outcome: ResultRows | RetryableError) -> None:
    if future.done():
        return
    if isinstance(outcome, RetryableError):
        future.set_exception(outcome)
        # The caller may have gone away meanwhile: the loop's handler needn't hear of the error.
        future.exception()
    else:
        future.set_result(outcome)


def _lost(detail: str) -> RetryableError:
    return RetryableError("use connection", "journal database", detail.strip())
