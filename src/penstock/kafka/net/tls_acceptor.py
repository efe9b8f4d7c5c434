"""Accepts connections of a listener of TLS, and has them shake hands.

asyncio's own servers make any number of handshakes at a time, with a context that never changes,
and say of none that it failed. Here each gets the newest context, they are bounded and counted, and
one that makes no progress makes room: while all places are taken, the oldest handshake ends of the
address that has the most.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from penstock.kafka.net.connection import KafkaConnection
from penstock.kafka.net.host import ConnectionHost
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

HANDSHAKES_MAX: Final = 256
ACCEPTS_PER_TURN: Final = 16
"""A handshake takes about a millisecond of the event loop."""
PAUSE_S: Final = 1.0
"""Before connections are accepted again, after no descriptor was left for one."""
SHUTDOWN_S: Final = 2.0
"""How long a peer may take to answer the end of TLS."""
_NO_DESCRIPTOR: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class TlsAcceptor:
    """One listener's. Event loop only; callers call `start`, then `close`.

    Args:
        bound: holds the address.
        context: returns the newest context.
        new_connection: makes the protocol of a connection.
    """

    def __init__(
        self,
        bound: socket.socket,
        host: ConnectionHost,
        *,
        context: Callable[[], ssl.SSLContext],
        new_connection: Callable[[], KafkaConnection],
    ) -> None:
        self._bound = bound
        self._host = host
        self._context = context
        self._new_connection = new_connection
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], tuple[str, socket.socket]] = {}
        self._by_address: Counter[str] = Counter()
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self, backlog: int) -> None:
        """Accept from now on."""
        self._bound.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._bound.listen(backlog)
        self._loop.add_reader(self._bound, self._accept)

    def close(self) -> None:
        """Accept nothing more; handshakes under way end. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        else:
            self._loop.remove_reader(self._bound)
        self._bound.close()
        for _, accepted in self._handshakes.values():
            _cut(accepted)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, peer = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                heard(Cause.TLS_HANDSHAKE, error, logger, f"accepting again in {PAUSE_S:g} s")
                self._loop.remove_reader(self._bound)
                self._pause = self._loop.call_later(PAUSE_S, self._go_on)
                return
            accepted.setblocking(False)  # noqa: FBT003
            self._begin(accepted, str(peer[0]).removeprefix("::ffff:"))

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._bound, self._accept)

    def _begin(self, accepted: socket.socket, address: str) -> None:
        if len(self._handshakes) >= HANDSHAKES_MAX:
            self._make_room()
        task = self._loop.create_task(self._shake_hands(accepted, address), name="TLS handshake")
        self._handshakes[task] = (address, accepted)
        self._by_address[address] += 1
        task.add_done_callback(self._is_over)

    async def _shake_hands(self, accepted: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._new_connection,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=self._host.broker.settings.authentication_timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:  # of TLS, too; a peer that is gone; a handshake that is late
            self._host.broker.instruments.count("failed_tls_handshakes")
            count = self._host.seldom.due(f"TLS {address}")
            if count and not self._closed:
                logger.warning(
                    "closed %s: no handshake of TLS: %s (%d since the last such line)",
                    address,
                    _reason(error),
                    count,
                )

    def _make_room(self) -> None:
        most, _ = self._by_address.most_common(1)[0]
        for task, (address, accepted) in self._handshakes.items():
            if address == most:
                self._host.broker.instruments.count("refused:tls_handshakes")
                self._forget(task)
                _cut(accepted)
                return

    def _is_over(self, task: asyncio.Task[None]) -> None:
        self._forget(task)
        if not task.cancelled():
            task.result()

    def _forget(self, task: asyncio.Task[None]) -> None:
        known = self._handshakes.pop(task, None)
        if known is None:
            return
        address, _ = known
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def _cut(accepted: socket.socket) -> None:
    """End a connection whose descriptor a transport owns."""
    try:
        accepted.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the peer was faster


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return error.strerror or str(error) or type(error).__name__
