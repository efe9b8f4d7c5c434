"""One kind of calls on one connection, which is made again when it was lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import psycopg

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.replica.postgres.pipeline import (
    PipelinedConnection,
    ResultRows,
    connect,
    raise_lost,
)
from penstock.replica.postgres.settings import PostgresSettings
from penstock.replica.postgres.statements import Statement

Check = Callable[[psycopg.AsyncConnection], Awaitable[None]]


class Lane:
    """Event loop only; calls may overlap, and are carried out in order."""

    def __init__(
        self,
        url: str,
        *,
        settings: PostgresSettings,
        statements: Sequence[Statement],
        setup: Sequence[str] = (),
        check: Check | None = None,
        tells_loss: bool = False,
    ) -> None:
        """
        Args:
            statements: prepared on each connection.
            setup: run on each before.
            check: of each connection, before it is used.
            tells_loss: a call fails after each loss, also of a connection that was idle.
        """
        self._url = url
        self._settings = settings
        self._statements = statements
        self._setup = setup
        self._check = check
        self._tells_loss = tells_loss
        self._connection: PipelinedConnection | None = None
        self._connecting: asyncio.Task[PipelinedConnection] | None = None
        self._failures = 0
        self._not_before_s = 0.0
        self._failure: RetryableError | None = None
        self._closed = False

    @property
    def connection(self) -> PipelinedConnection | None:
        """The one in use, if it works."""
        connection = self._connection
        return connection if connection is not None and connection.failure is None else None

    async def call(self, statement: Statement, parameters: Sequence[bytes] = ()) -> ResultRows:
        """Execute a statement.

        Raises:
            RetryableError: the database doesn't answer; `StatementError`: it refused.
        """
        connection = self.connection or await self.connected()
        return await connection.execute(
            statement, parameters, timeout_s=self._settings.call_timeout_s
        )

    async def connected(self) -> PipelinedConnection:
        """A connection that works; callers share one attempt.

        Raises:
            RetryableError: there is none, or the next attempt isn't due yet.
        """
        if self._closed:
            raise RetryableError("connect", "journal database", "it is closed")
        if self.connection is not None:
            return self.connection
        if self._connection is not None:
            failure = self._connection.failure
            self._connection = None
            if self._tells_loss and failure is not None:
                raise failure
        loop = asyncio.get_running_loop()
        if self._connecting is None:
            if self._failure is not None and loop.time() < self._not_before_s:
                raise self._failure
            self._connecting = loop.create_task(self._connect())
            self._connecting.add_done_callback(self._note_attempt)
        return await asyncio.shield(self._connecting)

    def close(self) -> None:
        """Close; calls in flight fail. Idempotent."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.fail("it is closed")

    async def _connect(self) -> PipelinedConnection:
        timeout_s = self._settings.connect_timeout_s
        raw = await connect(self._url, timeout_s=timeout_s, setup=self._setup)
        try:
            if self._check is not None:
                async with asyncio.timeout(self._settings.call_timeout_s):
                    await self._check(raw)
            connection = PipelinedConnection(raw)
        except (psycopg.Error, TimeoutError) as error:
            raw.pgconn.finish()
            raise_lost("check connection", error)
        except InvalidRequestError as error:
            # It was right when the journal was opened: another server answers now.
            raw.pgconn.finish()
            raise RetryableError("connect", error.subject, error.detail, error.hint) from error
        except BaseException:
            raw.pgconn.finish()
            raise
        try:
            await connection.prepare(self._statements, timeout_s=self._settings.call_timeout_s)
        except BaseException:
            connection.fail("statements can't be prepared")
            raise
        return connection

    def _note_attempt(self, attempt: "asyncio.Task[PipelinedConnection]") -> None:
        self._connecting = None
        if attempt.cancelled():
            return
        error = attempt.exception()
        if error is None:
            self._connection = attempt.result()
            self._failure = None
            self._failures = 0
            if self._closed:
                self._connection.fail("it is closed")
        elif isinstance(error, RetryableError):
            self._failure = error
            self._failures += 1
            rest_s = self._settings.backoff.after(self._failures)
            self._not_before_s = asyncio.get_running_loop().time() + rest_s
