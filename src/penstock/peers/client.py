"""Calls to peers over pooled connections, given up after a silence. Event loop only."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.peers.receive import AnswerReader, Frame
from penstock.peers.secret import ClusterSecret
from penstock.peers.silence import Silence

IDLE_S: Final = 15.0
"""An idle connection is closed before the other side does (30 s), so that few calls meet it."""
_POOLED_MAX: Final = 4


class PeerAwayError(RetryableError):
    """The peer was not reached, or fell silent: it should be left alone for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTimeouts:
    """`silence_s`: without any byte, from the call on; `deadline_s`: for the call whole."""

    silence_s: float = 0.25
    deadline_s: float = 5.0


class PeerClient:
    """Makes calls. Close it at the end."""

    def __init__(self, secret: ClusterSecret, timeouts: PeerTimeouts) -> None:
        self._secret = secret
        self._timeouts = timeouts
        self._idle: dict[str, list[_Connection]] = {}
        self._closed = False

    async def call(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        on_frame: Callable[[Frame], None],
        payload_bytes_max: list[int],
    ) -> None:
        """Make one call and hand over its frames as they come.

        Args:
            address: HOST:PORT of the peer's HTTP port.
            payload_bytes_max: by index of the range asked for.

        Raises:
            PeerAwayError: not reached, or silent for too long.
            RetryableError: it answered with an error, or not in all before the deadline.
        """
        try:
            async with asyncio.timeout(self._timeouts.deadline_s):
                connection, reused = await self._connection(address)
                reader = AnswerReader(on_frame, payload_bytes_max)
                try:
                    await self._exchange(connection, address, path, body, reader)
                except PeerAwayError:
                    # A connection that was idle may have been closed by the other side just now:
                    # that says nothing of the peer. Nothing of the answer had come.
                    if not (reused and connection.ended and not reader.status):
                        raise
                    connection = await self._connect(address)
                    reader = AnswerReader(on_frame, payload_bytes_max)
                    await self._exchange(connection, address, path, body, reader)
        except TimeoutError as error:
            raise RetryableError(
                "ask peer", address, f"no whole answer within {self._timeouts.deadline_s:g} s"
            ) from error

    def close(self) -> None:
        """Close idle connections; calls under way end as they may."""
        self._closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _exchange(
        self, connection: "_Connection", address: str, path: str, body: bytes, reader: AnswerReader
    ) -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: {self._secret.header}\r\n"
            f"content-type: application/x-msgpack\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        try:
            await connection.exchange(head.encode("latin-1") + body, reader)
        except BaseException:
            connection.close()
            raise
        if reader.keep_alive and not connection.ended and not self._closed:
            self._put_back(address, connection)
        else:
            connection.close()

    async def _connection(self, address: str) -> "tuple[_Connection, bool]":
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            connection.stop_idling()
            if not connection.ended:
                return connection, True
        return await self._connect(address), False

    async def _connect(self, address: str) -> "_Connection":
        loop = asyncio.get_running_loop()
        host, port = _host_and_port(address)
        silence_s = self._timeouts.silence_s
        try:
            async with asyncio.timeout(None) as limit:
                silence = Silence(loop, silence_s, lambda: limit.reschedule(loop.time()))
                try:
                    _, connection = await loop.create_connection(
                        lambda: _Connection(address, silence_s), host, port
                    )
                finally:
                    silence.stop()
        except TimeoutError as error:
            raise PeerAwayError(
                "ask peer", address, f"no connection within {silence_s:g} s"
            ) from error
        except OSError as error:
            raise PeerAwayError("ask peer", address, error.strerror or str(error)) from error
        return connection

    def _put_back(self, address: str, connection: "_Connection") -> None:
        idle = self._idle.setdefault(address, [])
        if len(idle) >= _POOLED_MAX:
            connection.close()
            return
        idle.append(connection)
        connection.idle(IDLE_S)


class _Connection(asyncio.BufferedProtocol):
    """One connection; one call at a time."""

    def __init__(self, address: str, silence_s: float) -> None:
        self._address = address
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._view = memoryview(b"")
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silence: Silence | None = None
        self.ended = False

    async def exchange(self, request: bytes, reader: AnswerReader) -> None:
        """Send a request and receive its answer whole.

        Raises:
            PeerAwayError: the connection ended or nothing was heard for too long.
            RetryableError: the bytes weren't an answer, or were one with an error.
        """
        loop = asyncio.get_running_loop()
        self._reader = reader
        self._waiter = loop.create_future()
        self._silence = Silence(loop, self._silence_s, self._fell_silent)
        assert self._transport is not None
        self._transport.write(request)
        try:
            await self._waiter
        finally:
            self._silence.stop()
            self._silence = self._waiter = self._reader = None

    def idle(self, seconds: float) -> None:
        """Close by itself after `seconds`."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def stop_idling(self) -> None:
        """Keep the connection: it is to be used again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Close at once; idempotent."""
        self.stop_idling()
        self.ended = True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.BufferedProtocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        # A cast, since uvloop's transports only look like asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """See asyncio."""
        self._view = memoryview(bytearray(1)) if self._reader is None else self._reader.buffer()
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._reader is None:
            self.close()  # bytes that no request asked for
            return
        if self._silence is not None:
            self._silence.heard()
        try:
            self._reader.received(self._view, nbytes)
        except RetryableError as error:
            self._end(error)
            return
        if self._reader.done:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """See asyncio."""
        self.ended = True
        self._end(PeerAwayError("ask peer", self._address, "the connection ended"))

    def _fell_silent(self) -> None:
        self._end(PeerAwayError("ask peer", self._address, f"silent for {self._silence_s:g} s"))

    def _end(self, error: RetryableError | None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidRequestError("ask peer", repr(address), "it is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
