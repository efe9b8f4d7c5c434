"""A batch that keeps some of its records is one that any consumer reads as before, but for them."""

import gzip

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.batch import (
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    BatchError,
    BatchFault,
    BatchLimits,
    check_batch,
    crc_is_right,
    stored_header,
)
from penstock.records.decode import CODECS, Record, decode_batch
from penstock.records.encode import compress, encode_batch
from support.twins.keyed import index_batch, retain, siphash

HASH_KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
KEYS = st.none() | st.binary(max_size=12)
RECORDS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(-(10**6), 10**6),
        KEYS,
        st.none() | st.binary(max_size=30),
        st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=2),
    ),
    min_size=1,
    max_size=8,
)


def records_of(
    rows: list[tuple[int, int, bytes | None, bytes | None, list[object]]],
) -> list[Record]:
    found, delta = [], -1
    for step, shift, key, value, headers in rows:
        delta += step
        found.append(
            Record(
                offset_delta=delta,
                timestamp=1_790_000_000_000 + shift,
                key=key,
                value=value,
                headers=tuple(headers),  # type: ignore[arg-type]
            )
        )
    return found


def vectors() -> list[str]:
    """Of the reference code's `vectors_sip128`: keys 00 to 0f, data 00 01 02 ... of n bytes."""
    return [
        "a3817f04ba25a8e66df67214c7550293",
        "da87c1d86b99af44347659119b22fc45",
        "8177228da4a45dc7fca38bdef60affe4",
        "9c70b60c5267a94e5f33b6b02985ed51",
        "f88164c12d9c8faf7d0f6e7c7bcd5579",
        "1368875980776f8854527a07690e9627",
        "14eeca338b208613485ea0308fd7a15e",
        "a1f1ebbed8dbc153c0b84aa61ff08239",
        "3b62a9ba6258f5610f83e264f31497b4",
        "264499060ad9baabc47f8b02bb6d71ed",
    ]


def test_hashes_are_those_of_the_reference_code() -> None:
    for size, expected in enumerate(vectors()):
        high, low = siphash(bytes(range(size)), HASH_KEY)
        assert (low.to_bytes(8, "little") + high.to_bytes(8, "little")).hex() == expected


@given(
    RECORDS,
    st.sampled_from(CODECS),
    st.sampled_from((0, LOG_APPEND_TIME)),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.sampled_from((-1, 0, 1_800_000_000_000)),
    st.booleans(),
)
def test_kept_records_are_as_they_were(
    rows: list[tuple[int, int, bytes | None, bytes | None, list[object]]],
    codec: str,
    attributes: int,
    choice: list[bool],
    horizon: int,
    keep_empty: bool,
) -> None:
    records = records_of(rows)
    batch = memoryview(
        encode_batch(
            records,
            codec=codec,
            base_offset=1000,
            attributes=attributes,
            producer_id=7,
            producer_epoch=2,
            base_sequence=40,
        )
    )
    before = list(decode_batch(batch))
    keep = choice[: len(records)]
    indexed = index_batch(batch, HASH_KEY)
    assert [record.offset for record in indexed.records] == [
        1000 + record.offset_delta for record in before
    ]
    assert [record.timestamp for record in indexed.records] == [r.timestamp for r in before]
    assert [record.is_tombstone for record in indexed.records] == [r.value is None for r in before]
    assert [record.key_hash for record in indexed.records] == [
        None if record.key is None else siphash(record.key, HASH_KEY) for record in before
    ]
    after = retain(indexed, keep, keep_empty=keep_empty, delete_horizon_ms=horizon)
    expected = [record for record, kept in zip(before, keep, strict=True) if kept]
    if all(keep) and horizon < 0:
        assert after == bytes(batch)
    if not expected and not keep_empty:
        assert after is None
        return
    assert after is not None
    view = memoryview(after)
    assert crc_is_right(view)
    old, new = HEADER.unpack_from(batch), HEADER.unpack_from(view)
    assert stored_header(view, 0).length == len(after)
    # Base offset, leader epoch, magic, last offset delta, producer id, epoch and sequence.
    assert [new[i] for i in (0, 2, 3, 6, 9, 10, 11)] == [old[i] for i in (0, 2, 3, 6, 9, 10, 11)]
    assert new[12] == len(expected)
    assert list(decode_batch(view)) == expected
    if expected:
        assert bool(new[5] & DELETE_HORIZON) == (horizon >= 0)
        assert new[5] & ~DELETE_HORIZON == old[5]
        if horizon >= 0:
            assert new[7] == horizon
        if not attributes:
            assert new[8] == max(record.timestamp for record in expected)
    else:
        assert len(after) == 61
        assert new[8] == old[8]
        assert new[5] == old[5] & LOG_APPEND_TIME
    again = index_batch(view, HASH_KEY)
    assert [(r.offset, r.key_hash, r.timestamp) for r in again.records] == [
        (r.offset, r.key_hash, r.timestamp)
        for r, kept in zip(indexed.records, keep, strict=True)
        if kept
    ]


def test_what_is_no_batch_is_refused() -> None:
    records = records_of([(1, 0, b"k", b"v", [])])
    for codec in CODECS:
        batch = encode_batch(records, codec=codec)
        for position in range(61, len(batch)):
            damaged = bytearray(batch)
            damaged[position] ^= 0x81
            try:
                index_batch(memoryview(damaged), HASH_KEY)
            except BatchError as error:
                assert error.fault in (BatchFault.INVALID, BatchFault.TOO_LARGE)
    cut = bytearray(encode_batch(records))
    with pytest.raises(BatchError):
        index_batch(memoryview(cut[:-3]), HASH_KEY)


def test_lz4_blocks_are_independent() -> None:
    """Kafka's own reader refuses frames without the flag, 0x20 of the frame's descriptor."""
    data = bytes(range(256)) * 1000
    frame = compress("lz4", data)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20
    assert bytes(cramjam.lz4.decompress(frame)) == data
    assert gzip.decompress(compress("gzip", data)) == data


def test_a_client_cannot_set_a_delete_horizon() -> None:
    """Its tombstones would vanish at a time of its choosing, before others have seen them."""
    batch = encode_batch(records_of([(1, 0, b"k", None, [])]), attributes=DELETE_HORIZON)
    limits = BatchLimits(
        message_bytes_max=1 << 20,
        timestamp_before_max_ms=2**63 - 1,
        timestamp_after_max_ms=2**63 - 1,
        log_append_time=False,
        compacts=True,
    )
    with pytest.raises(BatchError) as caught:
        check_batch(memoryview(batch), limits, 1_790_000_000_000)
    assert caught.value.fault is BatchFault.INVALID
