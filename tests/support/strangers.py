"""Raw sockets of peers that stay, send a part of a request, or read nothing."""

from __future__ import annotations

import contextlib
import socket

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
"""A request without its end."""
PATIENCE_S = 60.0


class Strangers:
    """Raw sockets, closed at the end."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Strangers:  # noqa: PYI034 - no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        for stranger in self.sockets:
            stranger.close()

    def connect(self, port: int, data: bytes = b"", *, receive_bytes: int = 0) -> socket.socket:
        stranger = socket.socket()
        if receive_bytes:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        stranger.settimeout(PATIENCE_S)
        stranger.connect(("127.0.0.1", port))
        self.sockets.append(stranger)
        # As much as the server takes.
        stranger.settimeout(1)
        with contextlib.suppress(OSError):
            stranger.sendall(data)
        stranger.settimeout(PATIENCE_S)
        return stranger
