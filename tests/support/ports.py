"""Ports for servers of tests: given out once, and to one process alone.

A port that the system has just called free may be given to another before the server listens
there, or while it is down between two starts. These lie below the range from which the system
gives ports to whoever asks for any (clients' ends of connections too). Each is locked by the
process that has it until that ends, and none is given out twice: a client that still looks for
its server meets no other.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

PORTS_FROM, PORTS_TO = 10_000, 32_000
"""The system's own range begins at 32,768 (`ip_local_port_range`)."""

_TAKEN = Path(tempfile.gettempdir()) / f"penstock-test-ports-{os.geteuid()}"
"""Byte N is locked while some process has port N."""


class NoPortError(Exception):
    """All ports are taken."""


class _Ports:
    """This process's share of them."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._next = PORTS_FROM + self._pid * 61 % (PORTS_TO - PORTS_FROM)
        self._file = os.open(_TAKEN, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._tried: set[int] = set()

    @property
    def is_own(self) -> bool:
        """Not a parent's, whose locks a fork doesn't have."""
        return self._pid == os.getpid()

    def take(self, count: int) -> int:
        """The first of `count` adjacent ports."""
        for _ in range(PORTS_TO - PORTS_FROM):
            if self._next + count > PORTS_TO:
                self._next = PORTS_FROM
            first = self._next
            ports = range(first, first + count)
            taken = next((port for port in ports if not self._take(port)), None)
            if taken is None:
                self._next = first + count
                return first
            self._next = taken + 1
        raise NoPortError(f"{count} adjacent ports of {PORTS_FROM} to {PORTS_TO}")

    def _take(self, port: int) -> bool:
        # A process's own lock is no obstacle to it.
        if port in self._tried:
            return False
        self._tried.add(port)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        return _is_free(port)


_ports: _Ports | None = None


def free_port() -> int:
    """A TCP port of loopback for one server of this process."""
    return adjacent_ports(1)


def adjacent_ports(count: int) -> int:
    """The first of `count` of them. Raises: NoPortError."""
    global _ports
    if _ports is None or not _ports.is_own:
        _ports = _Ports()
    return _ports.take(count)


def _is_free(port: int) -> bool:
    """Whether nobody who asks nothing of this module has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
