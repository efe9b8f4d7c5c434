"""Calls to the kernel about sockets that asyncio doesn't offer."""

import fcntl
import socket
import struct
import termios
from typing import Final

PROBES: Final = 4


def give_up_unreachable_peers(listener: socket.socket, after_ms: int) -> None:
    """Let the kernel end connections whose peer no longer answers it.

    A host that lost power or its network sends no FIN, so its connection would stay for ever.
    Probes begin after half the time without a segment; bytes that are sent and not acknowledged
    are given up after all of it (else after about 15 minutes).

    Args:
        listener: accepted sockets inherit its options (Linux).
        after_ms: how long a peer may be unreachable; 4,000 at least, since probes come in whole
            seconds.

    Source: tcp(7), TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle_s = max(1, after_ms // 2000)
    options = (
        # macOS calls the first one TCP_KEEPALIVE.
        ("TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE", idle_s),
        ("TCP_KEEPINTVL", max(1, idle_s // PROBES)),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", after_ms),
    )
    for name, value in options:
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def readable_bytes(descriptor: int) -> int:
    """Return how many bytes wait in a socket to be received; 0 where it is closed.

    Source: tcp(7), SIOCINQ, which is FIONREAD.
    """
    try:
        answer = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
    except (OSError, ValueError):
        return 0
    (count,) = struct.unpack("i", answer)
    return int(count)
