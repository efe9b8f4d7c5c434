"""One end of the socket between the scheduler and its engine process."""

import socket
import threading
from contextlib import suppress
from typing import Final

from penstock.model.errors import RetryableError
from penstock.pipeline.engine_process.messages import (
    LENGTH_BYTES,
    Message,
    decode,
    encode,
    length_of,
)

_CHUNK_BYTES: Final = 1 << 20


class Link:
    """Sends from any thread, receives in one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """
        Raises:
            RetryableError: the other process is gone.
            InvalidRequestError: the message is too long.
        """
        data = encode(message)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise RetryableError("send", type(message).__name__, str(error)) from error

    def bound_silence(self, seconds: float) -> None:
        """Let a `receive` fail when nothing comes for that time."""
        self._socket.settimeout(seconds)

    def receive(self) -> Message | None:
        """Wait for the next message; None: the other process is gone, or this end was closed.

        Raises:
            InvalidRequestError: what came isn't a message.
            RetryableError: the other process is there, and has been silent for too long.
        """
        head = self._read(LENGTH_BYTES)
        if head is None:
            return None
        body = self._read(length_of(head))
        return None if body is None else decode(body)

    def close(self) -> None:
        """End both directions; a `receive` that waits returns."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                chunk = self._socket.recv(min(_CHUNK_BYTES, count - len(data)))
            except TimeoutError as error:
                silent_s = self._socket.gettimeout()
                raise RetryableError(
                    "hear from", "the other process", f"it said nothing for {silent_s} s"
                ) from error
            except OSError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)
