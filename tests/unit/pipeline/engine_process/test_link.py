"""One end of the socket between scheduler and engine process."""

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.model.errors import RetryableError
from penstock.pipeline.engine_process.link import Link
from penstock.pipeline.engine_process.messages import Done, Stop, StopJob, encode


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_come_one_by_one_in_any_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    link = Link(ends[0])
    sent = [StopJob(1), Done(2, {"text": "x" * 300_000}), Stop()]
    data = b"".join(map(encode, sent))

    def drip() -> None:
        for start in range(0, len(data), 7001):
            ends[1].sendall(data[start : start + 7001])
        ends[1].close()

    thread = threading.Thread(target=drip)
    thread.start()
    assert [link.receive() for _ in range(3)] == sent
    assert link.receive() is None
    thread.join()


def test_many_threads_may_send(ends: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = map(Link, ends)
    threads = [
        threading.Thread(target=lambda n=n: sender.send(Done(n, {"x": "y" * 70_000})))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    got = [receiver.receive() for _ in threads]
    assert sorted(one.token for one in got if isinstance(one, Done)) == list(range(16))
    for thread in threads:
        thread.join()


def test_an_end_that_is_gone_is_retriable_to_send_to(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ends[1].close()
    with pytest.raises(RetryableError, match="send Stop"):
        Link(ends[0]).send(Stop())


def test_silence_has_a_bound_also_in_the_middle_of_a_message(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    link = Link(ends[0])
    link.bound_silence(0.01)
    ends[1].sendall(encode(Stop())[:3])
    with pytest.raises(RetryableError, match=r"said nothing for 0\.01 s"):
        link.receive()


def test_closing_it_lets_a_receive_return(ends: tuple[socket.socket, socket.socket]) -> None:
    link = Link(ends[0])
    found: list[object] = [Stop()]
    thread = threading.Thread(target=lambda: found.append(link.receive()))
    thread.start()
    link.close()
    thread.join(60)
    assert found == [Stop(), None]
