"""Headers are read back; whatever is not one gives only our error."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError
from penstock.wal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    FileHeader,
    FrameHeader,
    OtherWalVersionError,
    align_frame,
    decode_file_header,
    decode_frame_header,
    encode_file_header,
    encode_frame_header,
    generation_of,
)

_U64 = st.integers(0, 2**64 - 1)
_U32 = st.integers(0, 2**32 - 1)


@given(generation=_U64, file_bytes=_U64, first_position=_U64)
def test_a_file_header_is_read_back(generation: int, file_bytes: int, first_position: int) -> None:
    page = encode_file_header(
        generation=generation, file_bytes=file_bytes, first_position=first_position
    )
    assert len(page) == PAGE_BYTES
    assert decode_file_header(page, subject="f") == FileHeader(
        generation, file_bytes, first_position
    )
    assert generation_of(page[:FILE_HEADER_BYTES]) == generation


@given(
    generation=_U64,
    number=_U64,
    lengths=st.tuples(_U32, _U32).map(sorted),
    payload_crc=_U32,
    position=_U64,
    time_ms=_U64,
)
def test_a_frame_header_is_read_back(
    generation: int, number: int, lengths: list[int], payload_crc: int, position: int, time_ms: int
) -> None:
    entry_length, length = lengths
    data = encode_frame_header(
        generation=generation,
        number=number,
        length=length,
        payload_crc=payload_crc,
        entry_length=entry_length,
        position=position,
        time_ms=time_ms,
    )
    assert len(data) == FRAME_HEADER_BYTES == 56
    assert decode_frame_header(data, subject="f") == FrameHeader(
        generation, number, length, payload_crc, entry_length, position, time_ms
    )


def test_headers_of_version_1_are_refused_by_their_number() -> None:
    page = b"PWAL\1\0\0\0" + (7).to_bytes(8, "big") + (1 << 26).to_bytes(8, "big")
    page += crc32c(page).to_bytes(4, "big")
    with pytest.raises(OtherWalVersionError, match=r"version 1, .* version 2 \(.*consume"):
        decode_file_header(page.ljust(PAGE_BYTES, b"\0"), subject="f")
    assert generation_of(page.ljust(PAGE_BYTES, b"\0")) == 7
    frame = b"PFRM\1\0\0\0" + (7).to_bytes(8, "big") + (3).to_bytes(8, "big")
    frame += (500).to_bytes(4, "big") + (9).to_bytes(4, "big") + bytes(4)
    frame += crc32c(frame).to_bytes(4, "big")
    with pytest.raises(OtherWalVersionError, match=r"version 1, .* version 2 \(.*consume"):
        decode_frame_header(frame.ljust(512, b"\1"), subject="f")


def test_an_entry_longer_than_its_frame_is_refused() -> None:
    data = encode_frame_header(generation=1, number=0, length=5, payload_crc=0, entry_length=6)
    with pytest.raises(CorruptDataError, match="6 B in 5 B"):
        decode_frame_header(data, subject="f")


def test_every_flipped_bit_of_a_header_is_found() -> None:
    page = encode_file_header(generation=3, file_bytes=1 << 26, first_position=5)
    frame = encode_frame_header(
        generation=3, number=4, length=5, payload_crc=6, entry_length=2, position=8, time_ms=9
    )
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
