"""The frame splitter, by properties."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.wire.framing import (
    ADVANCE_BYTES,
    ADVANCES_MAX,
    STAGING_BYTES,
    START_BYTES,
    Advances,
    Framer,
)

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
    framer = Framer(staging(staging_bytes), LIMIT, Advances())
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
    framer = Framer(staging(), 1000, Advances())
    data = framed(*payloads) + hostile.to_bytes(4, "big", signed=True)
    assert feed(framer, data, chunk_sizes) == payloads
    assert framer.failure is not None
    assert str(hostile) in str(framer.failure)


def test_two_framers_share_one_staging_buffer() -> None:
    shared = staging()
    first, second = Framer(shared, LIMIT, Advances()), Framer(shared, LIMIT, Advances())
    one, two = framed(b"a" * 50, b"b" * 3), framed(b"c" * 40, b"d")
    got: list[list[bytes]] = [[], []]
    for index in range(max(len(one), len(two))):
        for which, (framer, data) in enumerate(((first, one), (second, two))):
            if index < len(data):
                framer.get_buffer()[0] = data[index]
                got[which].extend(bytes(frame) for frame in framer.buffer_updated(1))
    assert got == [[b"a" * 50, b"b" * 3], [b"c" * 40, b"d"]]


def test_each_frame_can_be_written_into_and_owns_its_bytes() -> None:
    framer = Framer(staging(), LIMIT, Advances())
    data = framed(b"one", b"two")
    framer.get_buffer()[: len(data)] = data
    first, second = framer.buffer_updated(len(data))
    first[:] = b"xxx"
    assert bytes(second) == b"two"
    assert first.obj is not second.obj


def test_a_large_frame_is_received_into_its_own_buffer() -> None:
    framer = Framer(memoryview(bytearray(STAGING_BYTES)), LIMIT, Advances())
    size = 3 * ADVANCE_BYTES + 17
    head = size.to_bytes(4, "big") + b"h" * 10
    framer.get_buffer()[: len(head)] = head
    assert framer.buffer_updated(len(head)) == []
    received, frames = 10, []
    while not frames:
        buffer = framer.get_buffer()
        # No more than what belongs to this frame, and never more than doubling what came.
        assert len(buffer) + received <= max(ADVANCE_BYTES, 2 * received)
        assert len(buffer) <= size - received
        count = min(len(buffer), 200_000)
        buffer[:count] = b"x" * count
        received += count
        frames = framer.buffer_updated(count)
    (frame,) = frames
    assert len(frame) == size
    assert bytes(frame[:12]) == b"h" * 10 + b"xx"


def test_announced_sizes_cost_little_however_many_announce_one() -> None:
    advances = Advances()
    framers = [Framer(staging(), LIMIT, advances) for _ in range(100)]
    for framer in framers:
        framer.get_buffer()[:5] = LIMIT.to_bytes(4, "big") + b"x"
        assert framer.buffer_updated(5) == []
    lengths = [1 + len(framer.get_buffer()) for framer in framers]
    few = [ADVANCE_BYTES] * ADVANCES_MAX
    assert lengths == few + [START_BYTES] * (100 - ADVANCES_MAX)


@pytest.mark.parametrize("ending", ["whole", "grown", "gone"])
def test_memory_in_advance_is_for_the_next_once_it_is_not_needed(ending: str) -> None:
    advances = Advances(1)
    framer = Framer(staging(), LIMIT, advances)
    size = ADVANCE_BYTES + 5
    framer.get_buffer()[:4] = size.to_bytes(4, "big")
    framer.buffer_updated(4)
    assert not advances.left
    if ending == "gone":
        framer.close()
    else:
        assert framer.buffer_updated(len(framer.get_buffer())) == []
        assert not advances.left
        framer.get_buffer()
    assert advances.left == 1
    if ending == "whole":
        assert len(framer.buffer_updated(5)) == 1
        assert advances.left == 1
    framer.close()
    assert advances.left == 1


def test_pending_bytes_are_those_received() -> None:
    framer = Framer(staging(), LIMIT, Advances())
    framer.get_buffer()[:7] = (100).to_bytes(4, "big") + b"abc"
    framer.buffer_updated(7)
    assert framer.pending_bytes == 3


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_split_size_prefix_is_kept(cut: int) -> None:
    framer = Framer(staging(), LIMIT, Advances())
    data = framed(b"hello")
    assert feed(framer, data, [cut, len(data)]) == [b"hello"]


def test_one_that_is_closed_holds_nothing_of_a_frame() -> None:
    framer = Framer(memoryview(bytearray(STAGING_BYTES)), 1 << 20, Advances())
    framer.get_buffer()[:8] = struct.pack(">i", 1 << 20) + b"some"
    assert framer.buffer_updated(8) == []
    assert framer.pending_bytes == 4
    framer.close()
    assert framer.pending_bytes == 0
