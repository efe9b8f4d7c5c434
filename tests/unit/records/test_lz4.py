"""Frames are those of LZ4, with blocks that Kafka's Java client takes."""

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.lz4 import BLOCK_BYTES, compress_lz4, find_blocks

bodies = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(0, 40_000)).map(lambda p: p[0] * p[1]),
)


@given(bodies)
def test_another_decoder_reads_them(body: bytes) -> None:
    assert bytes(cramjam.lz4.decompress(compress_lz4(body))) == body


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_blocks_that_do_not_shrink_are_kept_as_they_are(size: int) -> None:
    from random import Random

    body = Random(size).randbytes(size)
    frame = compress_lz4(body)
    assert bytes(cramjam.lz4.decompress(frame)) == body
    found = find_blocks(memoryview(frame))
    assert found is not None
    blocks, bytes_max = found
    assert bytes_max == BLOCK_BYTES
    assert b"".join(frame[start:end] for start, end, packed in blocks) == body
    assert not any(packed for _, _, packed in blocks)


@given(bodies)
def test_blocks_are_independent_and_found(body: bytes) -> None:
    frame = compress_lz4(body)
    assert frame[4] & 0x20  # or Kafka's Java client refuses it
    found = find_blocks(memoryview(frame))
    assert found is not None
    parts = [
        unpacked(frame[start:end]) if packed else frame[start:end]
        for start, end, packed in found[0]
    ]
    assert b"".join(parts) == body


def unpacked(block: bytes) -> bytes:
    room = bytearray(BLOCK_BYTES)
    return bytes(room[: cramjam.lz4.decompress_block_into(block, room, output_len=BLOCK_BYTES)])


@given(bodies, st.data())
def test_what_is_not_one_whole_frame_is_left_to_others(body: bytes, data: st.DataObject) -> None:
    frame = compress_lz4(body)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert find_blocks(memoryview(frame[:cut])) is None
    assert find_blocks(memoryview(frame + b"x")) is None
    assert find_blocks(memoryview(bytes(cramjam.lz4.compress(body)))) is None  # linked blocks


def test_frames_with_checksums_are_read_too() -> None:
    body = b"some bytes " * 9000
    compressor = cramjam.lz4.Compressor(level=0, block_linked=False)
    compressor.compress(body)
    frame = bytes(compressor.finish())
    assert frame[4] & 0x14
    found = find_blocks(memoryview(frame))
    assert found is not None
    assert len(found[0]) == 2
