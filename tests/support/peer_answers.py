"""Reads a peer's answer as a client over HTTP does, from bytes in memory."""

from collections.abc import Callable

from penstock.peers.receive import AnswerReader, Frame


def read_answer(
    data: bytes, on_frame: Callable[[Frame], None], payload_bytes_max: list[int]
) -> None:
    """Give a reader the frames of `data` as the only chunk of an answer.

    Raises: as `AnswerReader`.
    """
    reader = AnswerReader(on_frame, payload_bytes_max)
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(data),
        data,
    )
    while answer:
        room = reader.buffer()
        count = min(len(room), len(answer))
        room[:count] = answer[:count]
        answer = answer[count:]
        reader.received(room, count)
