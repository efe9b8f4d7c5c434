"""However an answer is cut into reads and chunks, the same frames come out; garbage is an error."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import RetryableError
from penstock.peers.codec import FRAME_HEADER, FrameKind
from penstock.peers.receive import AnswerReader, Frame

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: x\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMIT = 200_000

frames_strategy = st.lists(
    st.tuples(
        st.sampled_from([FrameKind.DATA, FrameKind.REFUSED, FrameKind.BEAT]),
        st.integers(0, 3),
        st.one_of(st.binary(max_size=40), st.just(b"z" * 100_000)),
    ),
    max_size=8,
)


def _feed(reader: AnswerReader, data: bytes, sizes: list[int]) -> None:
    """As a transport does: at most what the buffer holds at once, often less."""
    at, turn = 0, 0
    while at < len(data):
        view = reader.buffer()
        size = min(len(view), len(data) - at, sizes[turn % len(sizes)] if sizes else len(data))
        turn += 1
        view[:size] = data[at : at + size]
        reader.received(view, size)
        at += size


def _chunked(body: bytes, cuts: list[int]) -> bytes:
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    wire = b""
    for start, end in itertools.pairwise(places):
        wire += b"%x\r\n%b\r\n" % (end - start, body[start:end])
    return wire + b"0\r\n\r\n"


@given(
    frames=frames_strategy,
    cuts=st.lists(st.integers(0, 1 << 20), max_size=10),
    sizes=st.lists(st.integers(1, 70_000), max_size=5),
)
def test_any_chunking_gives_the_same_frames(
    frames: list[tuple[FrameKind, int, bytes]], cuts: list[int], sizes: list[int]
) -> None:
    frames = [
        (kind, index, payload[:4000] if kind is FrameKind.REFUSED else payload)
        for kind, index, payload in frames
        if kind is not FrameKind.BEAT or not payload
    ]
    body = b"".join(
        FRAME_HEADER.pack(kind, index, len(payload)) + payload for kind, index, payload in frames
    )
    found: list[Frame] = []
    reader = AnswerReader(found.append, [LIMIT] * 4)
    _feed(reader, HEAD + _chunked(body, cuts), sizes)
    assert reader.done
    assert reader.keep_alive
    assert [(frame.kind, frame.index, bytes(frame.payload)) for frame in found] == [
        frame for frame in frames if frame[0] is not FrameKind.BEAT
    ]


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 401 Unauthorized\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\ncontent-length: 3\r\n\r\nno\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        HEAD + b"xyz\r\n",
        HEAD + b"9\r\n" + FRAME_HEADER.pack(FrameKind.DATA, 0, LIMIT + 1) + b"\r\n",
        HEAD + b"9\r\n" + FRAME_HEADER.pack(FrameKind.DATA, 7, 1) + b"\r\n",
        HEAD + b"9\r\n" + FRAME_HEADER.pack(FrameKind.REFUSED, 0, 1 << 30) + b"\r\n",
        HEAD + b"9\r\n" + FRAME_HEADER.pack(FrameKind.DATA, 0, 5) + b"\r\n0\r\n\r\n",
        HEAD + b"0\r\n\r\nmore",
        HEAD + b"0\r\ntrailer: x\r\n" + b"y" * 100,
        b"x" * 40_000,
        HEAD + b"1" * 200,
    ],
)
def test_what_is_no_answer_is_a_retriable_error(wire: bytes) -> None:
    reader = AnswerReader(lambda _: None, [LIMIT])
    with pytest.raises(RetryableError):
        _feed(reader, wire, [])


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=4))
def test_garbage_raises_only_our_errors(garbage: bytes, sizes: list[int]) -> None:
    for wire in (garbage, HEAD + garbage, HEAD + b"%x\r\n" % len(garbage) + garbage):
        reader = AnswerReader(lambda _: None, [100])
        try:
            _feed(reader, wire, sizes)
        except RetryableError:
            pass


def test_a_payload_is_received_where_it_stays() -> None:
    """The body of a block goes from the socket into its buffer, not through the scratch."""
    found: list[Frame] = []
    reader = AnswerReader(found.append, [LIMIT])
    header = FRAME_HEADER.pack(FrameKind.DATA, 0, 100_000)
    _feed(reader, HEAD + b"%x\r\n" % (len(header) + 100_000) + header, [])
    assert len(reader.buffer()) == 100_000
    _feed(reader, b"a" * 100_000 + b"\r\n0\r\n\r\n", [])
    assert reader.done
    assert bytes(found[0].payload) == b"a" * 100_000
