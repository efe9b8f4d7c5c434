"""The ends of peers whose sockets are not read from."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from penstock.system import peer_ends
from penstock.system.peer_ends import PeerEnds

Test = Callable[[PeerEnds, socket.socket, socket.socket, "Owner"], Any]
Watching = Callable[[Test], None]


class Owner:
    def __init__(self) -> None:
        self.ends: list[bool] = []
        self.is_told = asyncio.Event()

    def peer_ended(self, *, is_reset: bool) -> None:
        self.ends.append(is_reset)
        self.is_told.set()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection, of which the first is watched."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    return ours, peer


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def watching(request: pytest.FixtureRequest) -> Watching:
    """Run a test with the two ends of a connection, on either loop."""

    def run(test: Test) -> None:
        async def bounded() -> None:
            ends, (ours, peer) = PeerEnds(), pair()
            try:
                async with asyncio.timeout(30):
                    await test(ends, ours, peer, Owner())
            finally:
                ends.close()
                ours.close()
                peer.close()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return run


@pytest.mark.parametrize("unread", [b"", b"unread"])
@pytest.mark.parametrize("is_reset", [True, False])
def test_an_end_is_told_though_nothing_is_read(
    watching: Watching, unread: bytes, is_reset: bool
) -> None:
    async def test(ends: PeerEnds, ours: socket.socket, peer: socket.socket, owner: Owner) -> None:
        ends.add(ours.fileno(), owner)
        peer.sendall(unread)
        if is_reset:
            reset(peer)
        else:
            peer.close()
        await owner.is_told.wait()
        assert owner.ends == [is_reset]

    watching(test)


def test_an_end_that_was_before_is_told_and_bytes_are_not(watching: Watching) -> None:
    async def test(ends: PeerEnds, ours: socket.socket, peer: socket.socket, owner: Owner) -> None:
        other, its_peer = pair()
        reset(its_peer)
        ends.add(ours.fileno(), owner)
        peer.sendall(b"bytes")
        gone = Owner()
        ends.add(other.fileno(), gone)
        await gone.is_told.wait()
        assert not owner.ends
        other.close()

    watching(test)


def test_one_that_is_removed_is_told_nothing(watching: Watching) -> None:
    async def test(ends: PeerEnds, ours: socket.socket, peer: socket.socket, owner: Owner) -> None:
        last, its_peer = pair()
        told = Owner()
        ends.add(ours.fileno(), owner)
        ends.add(last.fileno(), told)
        ends.remove(ours.fileno(), told)
        ends.remove(ours.fileno(), owner)
        ends.remove(ours.fileno(), owner)
        reset(peer)
        reset(its_peer)
        await told.is_told.wait()
        assert not owner.ends
        last.close()

    watching(test)


def test_a_descriptor_that_is_used_again_is_its_new_owner_s(watching: Watching) -> None:
    async def test(ends: PeerEnds, ours: socket.socket, peer: socket.socket, owner: Owner) -> None:
        number = ours.fileno()
        ends.add(number, owner)
        ours.close()
        other, its_peer = pair()
        os.dup2(other.fileno(), number)
        other.close()
        again = socket.socket(fileno=number)
        new = Owner()
        ends.add(number, new)
        ends.remove(number, owner)
        reset(its_peer)
        await new.is_told.wait()
        assert not owner.ends
        again.close()

    watching(test)


def test_a_socket_that_cannot_be_watched_is_used_without(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process has no descriptor left for the queue."""

    def refuse() -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async def test(ends: PeerEnds, ours: socket.socket, peer: socket.socket, owner: Owner) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(peer_ends, "_new_queue", refuse)
            ends.add(ours.fileno(), owner)
        ends.remove(ours.fileno(), owner)
        ends.add(ours.fileno(), owner)
        reset(peer)
        await owner.is_told.wait()

    watching(test)
