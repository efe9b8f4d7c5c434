"""What compaction by key sees of batches equals what the plain twin sees, and keeps the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.keys import KeyChunk, key_chunks, retain
from penstock.model.errors import CorruptDataError
from penstock.records.batch import CONTROL, LOG_APPEND_TIME, crc_is_right, stored_header
from penstock.records.decode import CODECS, Record, decode_batch
from penstock.records.encode import encode_batch
from support.examples import examples
from support.twins import keyed as twin

HASH_KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)

records = st.builds(
    Record,
    offset_delta=st.just(0),
    timestamp=st.integers(-1, 1 << 48),
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(
        st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2
    ).map(tuple),
)


@st.composite
def regions(draw: st.DrawFn) -> bytes:
    out, offset = b"", draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 4))):
        some = draw(st.lists(records, min_size=1, max_size=6))
        deltas = sorted(draw(st.sets(st.integers(0, 40), min_size=len(some), max_size=len(some))))
        out += encode_batch(
            [
                Record(
                    offset_delta=delta,
                    timestamp=record.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
                for delta, record in zip(deltas, some, strict=True)
            ],
            codec=draw(st.sampled_from(CODECS)),
            base_offset=offset,
            producer_id=draw(st.integers(-1, 9)),
            producer_epoch=3,
            base_sequence=7,
            attributes=draw(st.sampled_from((0, LOG_APPEND_TIME))),
        )
        offset += deltas[-1] + 1 + draw(st.integers(0, 9))
    return out


def key_index(region: bytes, hash_key: tuple[int, int]) -> KeyChunk | None:
    """All of a region in one chunk; None if it has no batch."""
    return next(key_chunks(region, hash_key, chunk_bytes=1 << 62, subject="batches"), None)


def batches_of(region: bytes) -> list[memoryview]:
    out, position = [], 0
    while position < len(region):
        length = stored_header(region, position).length
        out.append(memoryview(region)[position : position + length])
        position += length
    return out


@pytest.mark.slow
@given(regions(), st.randoms(use_true_random=False), st.sampled_from((1, 1 << 40)))
def test_index_and_retained_batches_equal_the_twins(region, chance, chunk_bytes) -> None:
    twins = [twin.index_batch(batch, HASH_KEY) for batch in batches_of(region)]
    expected, given_parts = [], []
    number = 0
    for chunk in key_chunks(region, HASH_KEY, chunk_bytes=chunk_bytes):
        assert chunk.first == number
        number = chunk.last
        mine = twins[chunk.first : chunk.last]
        seen = [record for batch in mine for record in batch.records]
        assert chunk.offsets.tolist() == [record.offset for record in seen]
        assert chunk.timestamps.tolist() == [record.timestamp for record in seen]
        assert chunk.is_tombstone.tolist() == [record.is_tombstone for record in seen]
        assert [
            tuple(pair) if has_key else None
            for pair, has_key in zip(chunk.hashes.tolist(), chunk.has_key.tolist(), strict=True)
        ] == [record.key_hash for record in seen]
        keep = [chance.random() < 0.6 for _ in seen]
        empties = [chance.random() < 0.5 for _ in mine]
        horizons = [chance.choice([-1, -1, 1 << 41]) for _ in mine]
        given_parts += retain(
            chunk,
            np.array(keep, dtype=bool),
            keep_empty=np.array(empties),
            delete_horizons=np.array(horizons),
        )
        at = 0
        for batch, empty, horizon in zip(mine, empties, horizons, strict=True):
            wanted = keep[at : at + len(batch.records)]
            at += len(wanted)
            expected.append(
                twin.retain(batch, wanted, keep_empty=empty, delete_horizon_ms=horizon) or b""
            )
    assert number == len(twins)
    assert b"".join(given_parts) == b"".join(expected)
    for batch in batches_of(b"".join(given_parts)):
        assert crc_is_right(batch)


@given(regions())
def test_a_batch_that_keeps_all_is_copied_byte_for_byte(region: bytes) -> None:
    chunk = key_index(region, HASH_KEY)
    assert chunk is not None
    kept = retain(chunk, np.ones(chunk.record_count, dtype=bool), keep_empty=False)
    assert b"".join(kept) == region
    assert len(kept) == 1


@pytest.mark.slow
@given(regions())
def test_a_retained_batch_keeps_timestamps_under_a_horizon(region: bytes) -> None:
    chunk = key_index(region, HASH_KEY)
    assert chunk is not None
    out = retain(
        chunk,
        np.ones(chunk.record_count, dtype=bool),
        keep_empty=False,
        delete_horizons=np.full(chunk.last, 10**12),
    )
    before = [record for batch in batches_of(region) for record in decode_batch(batch)]
    after = [record for batch in batches_of(b"".join(out)) for record in decode_batch(batch)]
    assert after == before
    assert all(stored_header(part, 0).attributes & 0x40 for part in out)


def test_control_batches_have_no_keys_and_stay() -> None:
    marker = encode_batch(
        [Record(offset_delta=0, timestamp=5, key=b"\0\0\0\1", value=b"x", headers=())],
        attributes=CONTROL,
    )
    chunk = key_index(bytes(marker), HASH_KEY)
    assert chunk is not None
    assert chunk.record_count == 0
    assert b"".join(retain(chunk, np.zeros(0), keep_empty=False)) == bytes(marker)


def test_a_region_without_batches_has_no_chunk() -> None:
    assert key_index(b"", HASH_KEY) is None


@pytest.mark.slow
@settings(max_examples=examples(3))
@given(regions(), st.data())
def test_hostile_bytes_give_our_error_alone(region: bytes, data: st.DataObject) -> None:
    damaged = bytearray(region)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(region) - 1))] = data.draw(st.integers(0, 255))
    for batch in recrced(damaged):
        try:
            for chunk in key_chunks(batch, HASH_KEY):
                retain(chunk, np.zeros(chunk.record_count), keep_empty=True)
        except CorruptDataError:
            pass


def recrced(damaged: bytearray) -> list[bytes]:
    """As it is, and with CRCs made right, so that what is behind them is reached."""
    from crc32c import crc32c

    right = bytearray(damaged)
    position = 0
    while len(right) - position >= 61:
        size = 12 + int.from_bytes(right[position + 8 : position + 12], "big", signed=True)
        if not 61 <= size <= len(right) - position:
            break
        crc = crc32c(bytes(right[position + 21 : position + size]))
        right[position + 17 : position + 21] = crc.to_bytes(4, "big")
        position += size
    return [bytes(damaged), bytes(right)]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
    ],
)
def test_the_hash_is_siphash_2_4_with_128_bits(length: int, expected: str) -> None:
    """Source: the first vectors of the reference code's 128-bit variant."""
    key = bytes(range(length))
    batch = encode_batch([Record(offset_delta=0, timestamp=0, key=key, value=b"", headers=())])
    chunk = key_index(bytes(batch), HASH_KEY)
    assert chunk is not None
    high, low = chunk.hashes[0].tolist()
    assert (low.to_bytes(8, "little") + high.to_bytes(8, "little")).hex() == expected
