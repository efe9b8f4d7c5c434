"""Notices that peers are gone whose sockets are not read from. Event loop only.

A transport whose reading is paused asks the kernel for nothing: that its peer has reset the
connection shows only when it is read from, or written to. Here the kernel is asked for the end
alone, by a queue of events of its own, which the event loop watches as it would a socket. It takes
no bytes, and works with any transport.

| system | asked for | source |
| --- | --- | --- |
| Linux | EPOLLRDHUP, EPOLLHUP and EPOLLERR, at each change | epoll_ctl(2) |
| macOS, BSD | EV_EOF of EVFILT_READ; NOTE_LOWAT keeps bytes from being events | kqueue(2) |
"""

import asyncio
import contextlib
import logging
import select
import sys
from typing import Any, Final, Protocol

from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

LOWAT_BYTES: Final = (1 << 31) - 1
"""More than a socket holds."""


class HasPeer(Protocol):
    """The owner of a socket."""

    def peer_ended(self, *, is_reset: bool) -> None:
        """The peer sends nothing more; `is_reset`: nor does it take anything, and what it sent is
        lost."""
        ...


def _new_queue() -> Any:
    if sys.platform == "linux":
        return select.epoll()
    return select.kqueue()


class PeerEnds:
    """The sockets of one event loop that are watched."""

    def __init__(self) -> None:
        self._watched: dict[int, HasPeer] = {}
        self._queue: Any = None
        """epoll or kqueue; made with the first socket."""

    def add(self, descriptor: int, owner: HasPeer) -> None:
        """Tell the owner of the peer's end from now on, once or more; also of one that was. Where
        the system has no descriptor or memory for that, the end shows when the socket is used."""
        try:
            self._add(descriptor, owner)
        except OSError as error:
            self._watched.pop(descriptor, None)
            heard(Cause.WATCH_PEER, error, logger, "a connection is not watched for its peer's end")

    def remove(self, descriptor: int, owner: HasPeer) -> None:
        """Tell the owner nothing more. Idempotent; the descriptor may be another's by now."""
        if self._watched.get(descriptor) is owner:
            self._forget(descriptor)

    def close(self) -> None:
        """Watch no sockets any more. Idempotent."""
        self._watched.clear()
        queue, self._queue = self._queue, None
        if queue is not None:
            asyncio.get_running_loop().remove_reader(queue.fileno())
            queue.close()

    def _add(self, descriptor: int, owner: HasPeer) -> None:
        if self._queue is None:
            self._queue = _new_queue()
            asyncio.get_running_loop().add_reader(self._queue.fileno(), self._look)
        if descriptor in self._watched:  # of a socket that was closed
            self._forget(descriptor)
        self._watched[descriptor] = owner
        if sys.platform == "linux":
            self._queue.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
        else:
            self._change(descriptor, select.KQ_EV_ADD | select.KQ_EV_CLEAR)

    def _forget(self, descriptor: int) -> None:
        del self._watched[descriptor]
        # A socket that is closed has left the queue by itself.
        with contextlib.suppress(OSError):
            if sys.platform == "linux":
                self._queue.unregister(descriptor)
            else:
                self._change(descriptor, select.KQ_EV_DELETE)

    def _look(self) -> None:
        for descriptor, is_reset in self._ended():
            owner = self._watched.get(descriptor)
            if owner is not None:
                owner.peer_ended(is_reset=is_reset)

    def _ended(self) -> list[tuple[int, bool]]:
        if sys.platform == "linux":
            gone = select.EPOLLERR | select.EPOLLHUP
            return [(descriptor, bool(events & gone)) for descriptor, events in self._queue.poll(0)]
        # Its flags say the error that the socket ended with.
        return [
            (event.ident, event.fflags != 0)
            for event in self._queue.control(None, 100, 0)
            if event.flags & select.KQ_EV_EOF
        ]

    if sys.platform != "linux":

        def _change(self, descriptor: int, flags: int) -> None:
            event = select.kevent(
                descriptor,
                filter=select.KQ_FILTER_READ,
                flags=flags,
                fflags=select.KQ_NOTE_LOWAT,
                data=LOWAT_BYTES,
            )
            self._queue.control([event], 0)
