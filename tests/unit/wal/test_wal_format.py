"""Headers are read back; whatever is not one gives only our error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError
from penstock.wal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    FileHeader,
    FrameHeader,
    align_frame,
    decode_file_header,
    decode_frame_header,
    encode_file_header,
    encode_frame_header,
    generation_of,
)

_U64 = st.integers(0, 2**64 - 1)
_U32 = st.integers(0, 2**32 - 1)


@given(generation=_U64, file_bytes=_U64)
def test_a_file_header_is_read_back(generation: int, file_bytes: int) -> None:
    page = encode_file_header(generation=generation, file_bytes=file_bytes)
    assert len(page) == PAGE_BYTES
    assert decode_file_header(page, subject="f") == FileHeader(generation, file_bytes)
    assert generation_of(page[:FILE_HEADER_BYTES]) == generation


@given(generation=_U64, number=_U64, length=_U32, payload_crc=_U32)
def test_a_frame_header_is_read_back(
    generation: int, number: int, length: int, payload_crc: int
) -> None:
    data = encode_frame_header(
        generation=generation, number=number, length=length, payload_crc=payload_crc
    )
    assert len(data) == FRAME_HEADER_BYTES == 40
    assert decode_frame_header(data, subject="f") == FrameHeader(
        generation, number, length, payload_crc
    )


def test_every_flipped_bit_of_a_header_is_found() -> None:
    page = encode_file_header(generation=3, file_bytes=1 << 26)
    frame = encode_frame_header(generation=3, number=4, length=5, payload_crc=6)
    for place in range(FILE_HEADER_BYTES * 8):
        damaged = bytearray(page)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(CorruptDataError, match="f"):
            decode_file_header(bytes(damaged), subject="f")
        assert generation_of(bytes(damaged)) is None
    for place in range(FRAME_HEADER_BYTES * 8):
        damaged = bytearray(frame)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(CorruptDataError, match="f"):
            decode_frame_header(bytes(damaged), subject="f")


def test_a_blank_page_is_a_file_that_was_never_used() -> None:
    assert decode_file_header(bytes(PAGE_BYTES), subject="f") == FileHeader(0, 0)
    assert generation_of(bytes(PAGE_BYTES)) is None


@given(st.binary(max_size=64))
def test_arbitrary_bytes_give_only_our_error(data: bytes) -> None:
    if any(data[:FILE_HEADER_BYTES]):
        with pytest.raises(CorruptDataError):
            decode_file_header(data, subject="f")
    with pytest.raises(CorruptDataError):
        decode_frame_header(data, subject="f")
    assert generation_of(data) is None


@given(st.integers(0, 2**40))
def test_alignment_is_the_next_sector(position: int) -> None:
    aligned = align_frame(position)
    assert aligned % 512 == 0
    assert 0 <= aligned - position < 512
