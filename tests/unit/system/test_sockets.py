"""Accepted sockets inherit what ends half-open connections; what waits in a socket is counted."""

import socket
import sys

import pytest

from penstock.system.sockets import give_up_unreachable_peers, readable_bytes
from support.waiting import eventually


@pytest.mark.skipif(sys.platform != "linux", reason="what is inherited differs elsewhere")
def test_an_accepted_socket_probes_its_peer_and_gives_it_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        give_up_unreachable_peers(listener, 60_000)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                idle_s = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                probe_s = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
                probes = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
                assert idle_s == 30
                assert idle_s < idle_s + probes * probe_s <= 60
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


def test_readable_bytes_are_those_that_were_not_received() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert readable_bytes(ours.fileno()) == 0
        theirs.sendall(b"x" * 1000)
        eventually(lambda: readable_bytes(ours.fileno()), lambda count: count == 1000)
        ours.recv(400)
        assert readable_bytes(ours.fileno()) == 600
    assert readable_bytes(-1) == 0
