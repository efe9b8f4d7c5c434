"""Requests of peers: what goes in comes out, and what asks for too much is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidRequestError
from penstock.peers.codec import (
    BlockRange,
    WalRange,
    decode_blocks,
    decode_wal,
    encode_blocks,
    encode_wal,
)

BLOCK = 4 << 20


@given(
    st.lists(
        st.builds(
            lambda key, number, length: BlockRange(key, number * BLOCK, number * BLOCK + length),
            st.text(max_size=50),
            st.integers(0, 1 << 20),
            st.integers(1, 1 << 20),
        ),
        max_size=16,
    )
)
def test_ranges_survive(ranges: list[BlockRange]) -> None:
    assert decode_blocks(encode_blocks(ranges), block_bytes=BLOCK) == ranges


def test_a_wal_range_survives() -> None:
    wanted = WalRange(3, 17, 4096, 100)
    assert decode_wal(encode_wal(wanted)) == wanted


@pytest.mark.parametrize(
    "ranges",
    [
        [BlockRange("k", 1, 2)],
        [BlockRange("k", 0, 0)],
        [BlockRange("k", 0, BLOCK + 1)],
        [BlockRange("k", -BLOCK, 0)],
        [BlockRange("k", 0, 1)] * 65,
        [BlockRange("k", 0, BLOCK)] * 17,
    ],
)
def test_too_much_is_refused(ranges: list[BlockRange]) -> None:
    with pytest.raises(InvalidRequestError):
        decode_blocks(encode_blocks(ranges), block_bytes=BLOCK)


@pytest.mark.parametrize(
    "wanted", [(-1, 1, 1, 1), (1, 1, -1, 1), (1, 1, 1, 0), (1, 1, 1, (128 << 20) + 1)]
)
def test_a_wal_range_out_of_bounds_is_refused(wanted: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidRequestError):
        decode_wal(encode_wal(WalRange(*wanted)))


@given(st.binary(max_size=60))
def test_garbage_is_refused_by_our_own_error(body: bytes) -> None:
    for decode in (lambda: decode_blocks(body, block_bytes=BLOCK), lambda: decode_wal(body)):
        try:
            decode()
        except InvalidRequestError:
            pass


def test_a_malformed_request_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        decode_blocks(msgspec.msgpack.encode({"a": 1}), block_bytes=BLOCK)
    with pytest.raises(InvalidRequestError):
        decode_wal(msgspec.msgpack.encode([1, 2]))
