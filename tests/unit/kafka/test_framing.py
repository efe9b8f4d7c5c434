"""The frame splitter, by properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.framing import GROWTH_START, STAGING_BYTES, Framer

LIMIT = 100 << 20


def feed(framer: Framer, data: bytes, chunk_sizes: list[int]) -> list[bytes]:
    """Give `data` in chunks of the given sizes (repeated), as a socket would."""
    frames: list[bytes] = []
    position = index = 0
    while position < len(data) and framer.failure is None:
        buffer = framer.get_buffer()
        assert len(buffer) > 0
        count = min(chunk_sizes[index % len(chunk_sizes)], len(buffer), len(data) - position)
        buffer[:count] = data[position : position + count]
        frames.extend(bytes(frame) for frame in framer.buffer_updated(count))
        position += count
        index += 1
    return frames


def framed(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def staging(length: int = 64) -> memoryview:
    return memoryview(bytearray(length))


@given(
    payloads=st.lists(st.binary(max_size=300), max_size=8),
    chunk_sizes=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    staging_bytes=st.integers(8, 300),
)
def test_any_chunking_gives_the_same_frames(
    payloads: list[bytes], chunk_sizes: list[int], staging_bytes: int
) -> None:
    framer = Framer(staging(staging_bytes), LIMIT)
    assert feed(framer, framed(*payloads), chunk_sizes) == payloads
    assert framer.pending_bytes == 0


@given(
    payloads=st.lists(st.binary(max_size=60), max_size=4),
    hostile=st.one_of(st.integers(-(1 << 31), -1), st.integers(1001, (1 << 31) - 1)),
    chunk_sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4),
)
def test_a_hostile_length_fails_at_once_after_the_frames_before_it(
    payloads: list[bytes], hostile: int, chunk_sizes: list[int]
) -> None:
    framer = Framer(staging(), 1000)
    data = framed(*payloads) + hostile.to_bytes(4, "big", signed=True)
    assert feed(framer, data, chunk_sizes) == payloads
    assert framer.failure is not None
    assert str(hostile) in str(framer.failure)


def test_two_framers_share_one_staging_buffer() -> None:
    shared = staging()
    first, second = Framer(shared, LIMIT), Framer(shared, LIMIT)
    one, two = framed(b"a" * 50, b"b" * 3), framed(b"c" * 40, b"d")
    got: list[list[bytes]] = [[], []]
    for index in range(max(len(one), len(two))):
        for which, (framer, data) in enumerate(((first, one), (second, two))):
            if index < len(data):
                framer.get_buffer()[0] = data[index]
                got[which].extend(bytes(frame) for frame in framer.buffer_updated(1))
    assert got == [[b"a" * 50, b"b" * 3], [b"c" * 40, b"d"]]


def test_each_frame_can_be_written_into_and_owns_its_bytes() -> None:
    framer = Framer(staging(), LIMIT)
    data = framed(b"one", b"two")
    framer.get_buffer()[: len(data)] = data
    first, second = framer.buffer_updated(len(data))
    first[:] = b"xxx"
    assert bytes(second) == b"two"
    assert first.obj is not second.obj


def test_a_large_frame_is_received_into_its_own_buffer() -> None:
    framer = Framer(memoryview(bytearray(STAGING_BYTES)), LIMIT)
    size = 3 * GROWTH_START + 17
    head = size.to_bytes(4, "big") + b"h" * 10
    framer.get_buffer()[: len(head)] = head
    assert framer.buffer_updated(len(head)) == []
    received, frames = 10, []
    while not frames:
        buffer = framer.get_buffer()
        # No more than what belongs to this frame, and never more than doubling what came.
        assert len(buffer) + received <= max(GROWTH_START, 2 * received)
        assert len(buffer) <= size - received
        count = min(len(buffer), 200_000)
        buffer[:count] = b"x" * count
        received += count
        frames = framer.buffer_updated(count)
    (frame,) = frames
    assert len(frame) == size
    assert bytes(frame[:12]) == b"h" * 10 + b"xx"


def test_an_announced_size_costs_no_more_than_the_first_step() -> None:
    framer = Framer(staging(), LIMIT)
    framer.get_buffer()[:4] = LIMIT.to_bytes(4, "big")
    assert framer.buffer_updated(4) == []
    assert len(framer.get_buffer()) == GROWTH_START


def test_pending_bytes_are_those_received() -> None:
    framer = Framer(staging(), LIMIT)
    framer.get_buffer()[:7] = (100).to_bytes(4, "big") + b"abc"
    framer.buffer_updated(7)
    assert framer.pending_bytes == 3


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_split_size_prefix_is_kept(cut: int) -> None:
    framer = Framer(staging(), LIMIT)
    data = framed(b"hello")
    assert feed(framer, data, [cut, len(data)]) == [b"hello"]
