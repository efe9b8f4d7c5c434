"""The walk over a batch's records: what is refused, with which words, and that it costs a bound."""

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records import walk as walk_module
from penstock.records.batch import (
    BatchError,
    BatchFault,
    BatchLimits,
    check_batch,
    crc_is_right,
    stored_header,
)
from penstock.records.walk import RECORD_ERRORS_MAX, RecordWalk
from support.batches import check_records
from support.raw_batches import LIMITS, NOW, PACKERS, batch, field, good, record, uneven, varint
from support.record_rows import BROKEN, HEADER_OF_ONE, PARTS, RIGHT_PARTS


def check(whole: bytearray, **changes: Any) -> BatchError | None:
    """What the border makes of it."""
    limits = replace(LIMITS, **changes)
    try:
        check_records(check_batch(memoryview(whole), limits, NOW), limits, NOW)
    except BatchError as error:
        return error
    return None


def refused(whole: bytearray, **changes: Any) -> BatchError:
    error = check(whole, **changes)
    assert error is not None
    return error


@pytest.mark.parametrize("codec", list(PACKERS))
@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_records_are_refused_and_named(name: str, codec: str) -> None:
    block, count, words = BROKEN[name]
    error = refused(batch(block, count, codec=codec))
    assert error.fault is (BatchFault.TOO_LARGE if "2^31" in name else BatchFault.INVALID)
    assert words in error.detail


@pytest.mark.parametrize("codec", ["gzip", "snappy", "xerial", "lz4", "zstd"])
@pytest.mark.parametrize("keep", [0, 0.5, 0.9])
def test_garbage_inside_a_compressed_batch_is_refused(codec: str, keep: float) -> None:
    """Its CRC is right: librdkafka delivers nothing more of such a partition, and says nothing."""
    packed = PACKERS[codec](good(2000))
    kept = int(len(packed) * keep)
    block = packed[:kept] + b"garbage" * 30
    error = refused(batch(block, 2000, codec=codec, packed=True))
    assert error.fault is BatchFault.INVALID


@pytest.mark.parametrize("codec", list(PACKERS))
def test_what_clients_send_is_taken(codec: str) -> None:
    block = (
        record(0, key=field(b"k" * 70), value=field(b"v" * 9000), headers=HEADER_OF_ONE)
        + record(1, key=varint(-1), value=varint(-1), time_delta=varint(-5))
        + record(2, headers=varint(2) + (field(b"") + varint(-1)) * 2)
        + record(3, key=varint(0), value=varint(0), time_delta=varint(70_000))
    )
    whole = batch(block, 4, codec=codec, max_timestamp=NOW + 70_000)
    before = bytes(whole)
    assert check(whole) is None
    assert whole == before


def test_three_million_empty_records_in_two_kilobytes_are_refused_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = b"".join(record(delta, value=varint(0))[:7] for delta in (0,)) * 3_000_000
    whole = batch(block, 3_000_000, codec="zstd")
    assert len(whole) < 4000
    monkeypatch.setattr(walk_module, "open_stream", None)
    error = refused(whole)
    assert error.fault is BatchFault.TOO_LARGE
    assert "3000000 records in one batch; batch_records_max is 1000000" in error.detail


def test_more_records_than_the_header_says_are_not_walked() -> None:
    whole = batch(good(1) * 3_000_000, 1, codec="zstd")
    limits = LIMITS
    walk = RecordWalk(memoryview(whole), limits, NOW)
    with pytest.raises(BatchError, match="after the last of 1"):
        walk.advance()
    assert walk.decoded_bytes <= 2 * (64 << 10)


def test_no_more_is_decompressed_than_the_limit() -> None:
    whole = batch(record(0, value=field(bytes(10 << 20))), 1, codec="zstd")
    assert check(whole) is None
    error = refused(whole, decoded_bytes_max=1 << 20)
    assert error.fault is BatchFault.TOO_LARGE
    assert "batch_decoded_bytes_max" in error.detail
    walk = RecordWalk(memoryview(whole), replace(LIMITS, decoded_bytes_max=1 << 20), NOW)
    with pytest.raises(BatchError):
        walk.advance()
    assert walk.decoded_bytes <= (1 << 20) + (64 << 10)


@pytest.mark.parametrize("value_bytes", [0, 100_000])
def test_headers_count_against_the_limit_of_records(value_bytes: int) -> None:
    headers = varint(300) + (field(b"") + varint(-1)) * 300
    block = b"".join(
        record(delta, headers=headers, value=field(bytes(value_bytes))) for delta in range(4)
    )
    assert check(batch(block, 4), records_max=1200) is None
    error = refused(batch(block, 4), records_max=1199)
    assert error.fault is BatchFault.TOO_LARGE
    assert "record 3" in error.detail


def test_a_false_greatest_timestamp_is_set_right_with_a_new_crc() -> None:
    """As in Kafka: the header's decides retention and look-ups."""
    block = record(0, time_delta=varint(-7)) + record(1, time_delta=varint(-9))
    for false in (NOW, NOW + 10**9, 0, -1, -5, 2**63 - 1, -(2**63)):
        whole = batch(block, 2, max_timestamp=false)
        limits = LIMITS
        new = check_batch(memoryview(whole), limits, NOW)
        check_records(new, limits, NOW)
        assert new.max_timestamp == stored_header(whole, 0).max_timestamp == NOW - 7
        assert crc_is_right(memoryview(whole))
        assert new.crc == stored_header(whole, 0).crc
        again = check_batch(memoryview(whole), limits, NOW)
        assert again.crc == new.crc


def test_records_without_timestamps_are_taken() -> None:
    whole = batch(good(2), 2, base_timestamp=-1, max_timestamp=-1)
    assert check(whole, timestamp_before_max_ms=5) is None
    assert stored_header(whole, 0).max_timestamp == -1


def test_the_time_of_arrival_is_not_replaced_by_the_records() -> None:
    whole = batch(record(0, time_delta=varint(2**62)), 1, base_timestamp=2**62)
    limits = replace(LIMITS, log_append_time=True)
    new = check_batch(memoryview(whole), limits, NOW)
    check_records(new, limits, NOW)
    assert new.max_timestamp == stored_header(whole, 0).max_timestamp == NOW
    assert crc_is_right(memoryview(whole))


@pytest.mark.parametrize(
    ("delta", "limits", "words"),
    [
        (3_600_001, {}, "message.timestamp.after.max.ms is 3600000"),
        (-11, {"timestamp_before_max_ms": 10}, "message.timestamp.before.max.ms is 10"),
        (-NOW - 2, {}, "before 1970"),
        (2**63 - 1, {"timestamp_after_max_ms": 2**63 - 1}, "63 bits"),
    ],
)
def test_each_record_s_timestamp_is_compared_with_the_topic_s_limits(
    delta: int, limits: dict[str, int], words: str
) -> None:
    block = record(0) + record(1, time_delta=varint(delta)) + record(2)
    error = refused(batch(block, 3), **limits)
    assert error.fault is BatchFault.TIMESTAMP
    assert [at for at, _ in error.record_errors] == [1]
    assert words in error.record_errors[0].message


def test_null_keys_of_a_compacted_topic_are_named_record_by_record() -> None:
    """KIP-467: the producer is told which of its records were at fault."""
    keyed = field(b"k")
    block = record(0, key=keyed) + record(1) + record(2, key=keyed) + record(3)
    assert check(batch(block, 4)) is None
    error = refused(batch(block, 4), compacts=True)
    assert error.fault is BatchFault.NULL_KEY
    assert [at for at, _ in error.record_errors] == [1, 3]
    empty = record(0, key=varint(0))
    assert check(batch(empty, 1), compacts=True) is None


def test_faults_of_several_kinds_are_invalid_records_and_few_are_named() -> None:
    block = record(0, time_delta=varint(10**8)) + record(1) + good(1) * 60
    error = refused(batch(block, 62), compacts=True)
    assert error.fault is BatchFault.INVALID
    assert len(error.record_errors) == RECORD_ERRORS_MAX


def test_long_records_are_walked_without_being_held() -> None:
    headers = varint(1) + field(b"n" * 70_000) + field(b"v" * 300_000)
    block = b"".join(
        record(delta, key=field(b"k" * 100_000), value=field(b"v" * size), headers=headers)
        for delta, size in enumerate((0, 65_536, 1_000_000, 3))
    )
    for codec in PACKERS:
        assert check(batch(block, 4, codec=codec), compacts=True) is None
    for cut in (1, 50_000, 299_999, 370_010, 371_000):
        assert refused(batch(block[:-cut], 4)).fault is BatchFault.INVALID
    null = record(0, key=varint(-1), value=field(bytes(200_000)))
    assert refused(batch(null, 1), compacts=True).fault is BatchFault.NULL_KEY
    for wrong, words in (
        (record(0, value=field(bytes(200_000)), length=200_009), "its fields end"),
        (record(0, value=field(bytes(200_000)), length=190_000), "its fields end"),
        # Its fields fit, were the sign not read.
        (record(0, value=field(bytes(200_000)), length=-200_009), "length is negative"),
        (record(0, value=field(bytes(200_000)), headers=varint(-1)), "-1 headers"),
        (
            record(0, value=field(bytes(200_000)), headers=varint(1) + varint(-1) + field(b"")),
            "no name",
        ),
        (record(0, value=varint(-3) + bytes(200_000)), "the value is -3"),
    ):
        assert words in refused(batch(wrong + good(9), 10)).detail
    late = record(1, value=field(bytes(200_000)), time_delta=varint(10**9))
    error = refused(batch(late, 1))
    assert [at for at, _ in error.record_errors] == [0, 0]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_bytes_after_what_is_compressed_are_refused(codec: str) -> None:
    """Though all records are there: the Java client reads on, to the end."""
    block = PACKERS[codec](good(3))
    assert check(batch(block, 3, codec=codec, packed=True)) is None
    for more in (b"\0", block):
        error = refused(batch(block + more, 3, codec=codec, packed=True))
        assert error.fault is BatchFault.INVALID


def test_bytes_after_the_last_record_are_found_in_the_next_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = good(3)
    monkeypatch.setattr(walk_module, "PIECE_BYTES", len(block))
    assert check(batch(block, 3)) is None
    assert "after the last of 3" in refused(batch(block + b"\0", 3)).detail


def test_a_stretch_ends_after_its_records_and_takes_no_more_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walk_module, "PIECE_BYTES", 100)
    walk = RecordWalk(memoryview(batch(uneven(60), 60)), LIMITS, NOW)
    for turn in range(1, 6):
        assert not walk.advance(records=10)
        assert walk.work == 10 * turn
        assert walk.decoded_bytes <= len(good(10 * turn)) + 100
    assert walk.advance(records=10)
    headers = varint(20) + (field(b"") + varint(-1)) * 20
    walk = RecordWalk(memoryview(batch(record(0, headers=headers) + record(1), 2)), LIMITS, NOW)
    assert not walk.advance(records=1)
    assert walk.work == 21


@given(
    stretch=st.integers(1, 50),
    decoded=st.integers(1, 3000),
    codec=st.sampled_from(list(PACKERS)),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=20),
)
def test_stretches_of_any_length_come_to_the_same(
    stretch: int, decoded: int, codec: str, sizes: list[int]
) -> None:
    block = b"".join(record(n, value=field(b"x" * size)) for n, size in enumerate(sizes))
    whole = batch(block, len(sizes), codec=codec, max_timestamp=0)
    walk = RecordWalk(memoryview(whole), LIMITS, NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk_module, "PIECE_BYTES", 500)
        turns = 0
        while not walk.advance(records=stretch, decoded_bytes=decoded):
            turns += 1
            assert turns < 1000
    assert walk.max_timestamp == NOW
    assert walk.decoded_bytes == len(block)


# -- against a reference that takes one step at a time -------------------------------------------


def reference(block: bytes, count: int, base_timestamp: int, limits: BatchLimits) -> int | None:
    """The greatest timestamp of the records, or None where they must be refused."""
    position = 0

    def number(bits: int) -> int:
        nonlocal position
        raw = 0
        for index in range((bits + 6) // 7):
            byte = block[position]
            position += 1
            raw |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if raw >= 1 << bits:
                    raise ValueError
                return (raw >> 1) ^ -(raw & 1)
        raise ValueError

    def skip(size: int) -> None:
        nonlocal position
        if size < -1 or position + size > len(block):
            raise ValueError
        position += max(0, size)

    greatest = None
    headers_seen = 0
    try:
        for index in range(count):
            length = number(32)
            end = position + length
            skip(1)
            timestamp = base_timestamp + number(64)
            if not limits.log_append_time and timestamp != -1:
                behind = NOW - timestamp
                if timestamp < 0 or timestamp >= 1 << 63:
                    return None
                if not -limits.timestamp_after_max_ms <= behind <= limits.timestamp_before_max_ms:
                    return None
            greatest = timestamp if greatest is None else max(greatest, timestamp)
            if number(32) != index:
                return None
            key = number(32)
            skip(key)
            if key < 0 and limits.compacts:
                return None
            skip(number(32))
            headers = number(32)
            headers_seen += headers
            if headers < 0 or headers_seen > limits.records_max:
                return None
            for _ in range(headers):
                name = number(32)
                if name < 0:
                    return None
                skip(name)
                skip(number(32))
            if position != end:
                return None
    except (ValueError, IndexError):
        return None
    return greatest if position == len(block) else None


@given(
    rows=st.lists(RIGHT_PARTS | RIGHT_PARTS | PARTS, min_size=1, max_size=12),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=2),
    cut=st.integers(0, 3),
    more=st.integers(-1, 1),
    base=st.sampled_from([NOW, 0, -1, 2**63 - 1, -(2**63)]),
    compacts=st.booleans(),
    log_append_time=st.booleans(),
    before=st.sampled_from([2**63 - 1, 10**5]),
    piece=st.integers(1, 700),
    codec=st.sampled_from(list(PACKERS)),
)
def test_it_equals_the_reference(
    rows: list[dict[str, Any]],
    flips: list[tuple[int, int]],
    cut: int,
    more: int,
    base: int,
    compacts: bool,
    log_append_time: bool,
    before: int,
    piece: int,
    codec: str,
) -> None:
    block = bytearray(b"".join(record(index, **row) for index, row in enumerate(rows)))
    for place, bits in flips:
        if place % 3 == 0:
            block[place % len(block)] ^= bits
    if cut == 3:
        del block[-1]
    count = max(1, len(rows) + more) if cut == 2 else len(rows)
    limits = replace(
        LIMITS,
        compacts=compacts,
        log_append_time=log_append_time,
        timestamp_before_max_ms=before,
        records_max=40,
    )
    wanted = reference(bytes(block), count, base, limits)
    whole = batch(bytes(block), count, codec=codec, base_timestamp=base)
    walk = RecordWalk(memoryview(whole), limits, NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk_module, "PIECE_BYTES", piece)
        try:
            assert walk.advance()
        except BatchError:
            assert wanted is None
        else:
            assert walk.max_timestamp == wanted


@pytest.mark.slow
def test_a_hundred_thousand_records_cost_less_than_half_a_second() -> None:
    """It was 0.57 s, and is a tenth of that: a test of the order alone."""
    whole = batch(good(100_000), 100_000)
    started = time.process_time()
    assert check(whole) is None
    assert time.process_time() - started < 0.5
