"""Record batches: what is accepted, what is refused and with which fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError
from penstock.records.batch import (
    BatchError,
    BatchFault,
    BatchLimits,
    batch_bounds,
    check_batch,
    crc_is_right,
    patch_base_offset,
    patch_run,
    stored_header,
)
from penstock.records.decode import CODECS, Record, decode_batch
from penstock.records.encode import encode_batch
from support.batches import check_records

NOW = 1_790_000_000_000


def limits(**changes: object) -> BatchLimits:
    values: dict[str, object] = {
        "message_bytes_max": 1_048_588,
        "timestamp_before_max_ms": 2**63 - 1,
        "timestamp_after_max_ms": 3_600_000,
        "log_append_time": False,
        "compacts": False,
    }
    return BatchLimits(**(values | changes))  # type: ignore[arg-type]


def check_whole(batch: bytearray, **changes: object) -> None:
    """As a produced batch is: its header, then its records."""
    new = check_batch(memoryview(batch), limits(**changes), NOW)
    check_records(new, limits(**changes), NOW)


def record(
    delta: int = 0, timestamp: int = NOW, key: bytes | None = b"k", value: bytes | None = b"v"
):  # type: ignore[no-untyped-def]
    return Record(offset_delta=delta, timestamp=timestamp, key=key, value=value, headers=())


records_strategy = st.lists(
    st.tuples(
        st.integers(0, 2**45),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=12,
).map(
    lambda rows: [
        Record(offset_delta=i, timestamp=t, key=k, value=v, headers=tuple(h))
        for i, (t, k, v, h) in enumerate(rows)
    ]
)


@given(records_strategy, st.sampled_from(CODECS))
def test_decoding_gives_what_was_encoded_for_every_codec(records: list[Record], codec: str) -> None:
    batch = encode_batch(records, codec=codec)
    assert list(decode_batch(memoryview(batch))) == records
    assert crc_is_right(memoryview(batch))


@given(records_strategy, st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_refused_or_lies_outside_the_crc(
    records: list[Record], place: int, bit: int
) -> None:
    batch = encode_batch(records)
    position = place % len(batch)
    batch[position] ^= 1 << bit
    if position < 8 or 12 <= position < 16:  # base offset and leader epoch are patched anyway
        return
    with pytest.raises(BatchError):
        check_batch(memoryview(batch), limits(timestamp_after_max_ms=2**62), NOW)


def with_length(batch: bytearray, length: int) -> bytearray:
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    return batch


def test_a_good_batch_is_described() -> None:
    batch = encode_batch(
        [record(0), record(1, NOW + 5)], producer_id=7, producer_epoch=1, base_sequence=3
    )
    new = check_batch(memoryview(batch), limits(), NOW)
    assert (new.length, new.record_count, new.max_timestamp) == (len(batch), 2, NOW + 5)
    assert (new.producer_id, new.producer_epoch, new.base_sequence) == (7, 1, 3)


@pytest.mark.parametrize(
    ("fault", "batch", "change"),
    [
        (
            BatchFault.TOO_LARGE,
            encode_batch([record(value=b"x" * 500)]),
            {"message_bytes_max": 500},
        ),
        (BatchFault.TIMESTAMP, encode_batch([record(timestamp=NOW + 3_600_001)]), {}),
        (
            BatchFault.TIMESTAMP,
            encode_batch([record(timestamp=NOW - 11)]),
            {"timestamp_before_max_ms": 10},
        ),
        (
            BatchFault.TIMESTAMP,
            encode_batch([record(0), record(1, NOW - 11), record(2)]),
            {"timestamp_before_max_ms": 10},
        ),
        (BatchFault.TIMESTAMP, encode_batch([record(timestamp=-(2**62))]), {}),
        (BatchFault.TIMESTAMP, encode_batch([record(timestamp=-2), record(1)]), {}),
        (BatchFault.NULL_KEY, encode_batch([record(0), record(1, key=None)]), {"compacts": True}),
        (BatchFault.INVALID, encode_batch([record(0), record(5)]), {}),
        (BatchFault.INVALID, encode_batch([record()], attributes=0x20), {}),
        (BatchFault.INVALID, encode_batch([record()], attributes=0x08), {}),
        (BatchFault.TRANSACTION, encode_batch([record()], attributes=0x10), {}),
        (BatchFault.INVALID, encode_batch([record()], producer_id=4), {}),
        (BatchFault.INVALID, encode_batch([record()]) + encode_batch([record()]), {}),
        (BatchFault.TRUNCATED, encode_batch([record()])[:-1], {}),
        (BatchFault.TRUNCATED, encode_batch([record()])[:40], {}),
        (BatchFault.TRUNCATED, bytearray(), {}),
        (BatchFault.TRUNCATED, with_length(encode_batch([record()]), 1 << 20), {}),
        (BatchFault.LENGTH, with_length(encode_batch([record()]), 40), {}),
        (BatchFault.LENGTH, with_length(encode_batch([record()]), -1), {}),
        (BatchFault.MAGIC, bytearray(b"\0" * 16 + b"\1" + b"\0" * 20), {}),
    ],
)
def test_each_fault_is_named(
    fault: BatchFault, batch: bytearray, change: dict[str, object]
) -> None:
    with pytest.raises(BatchError) as caught:
        check_whole(batch, **change)
    assert caught.value.fault is fault


def test_log_append_time_is_stamped_inside_the_crc() -> None:
    batch = encode_batch([record(timestamp=5)])
    new = check_batch(memoryview(batch), limits(log_append_time=True), NOW)
    assert new.log_append_time == new.max_timestamp == NOW
    assert crc_is_right(memoryview(batch))
    assert [r.timestamp for r in decode_batch(memoryview(batch))] == [NOW]


def test_patching_offsets_leaves_the_crc_right() -> None:
    batches = [encode_batch([record(i) for i in range(n)]) for n in (3, 1, 2)]
    for batch in batches:
        patch_base_offset(memoryview(batch), 99, 3)
        assert stored_header(batch, 0).leader_epoch == 3
        assert crc_is_right(memoryview(batch))
    run = bytearray().join(batches)
    assert patch_run(memoryview(run), 1000, 4, subject="x") == 1006
    position, seen = 0, []
    while position < len(run):
        base, size = batch_bounds(run, position)
        header = stored_header(run, position)
        assert (header.base_offset, header.leader_epoch) == (base, 4)
        seen.append(base)
        position += size
    assert seen == [1000, 1003, 1004]


@pytest.mark.parametrize("cut", [1, 30, 60, 69])
def test_a_cut_run_is_an_error_that_names_it(cut: int) -> None:
    run = encode_batch([record()])
    with pytest.raises(CorruptDataError, match="wal 3"):
        patch_run(memoryview(run)[:cut], 0, 0, subject="wal 3")


@given(st.binary(max_size=300))
def test_hostile_bytes_give_only_batch_errors(data: bytes) -> None:
    with pytest.raises(BatchError):
        check_batch(memoryview(bytearray(data)), limits(), NOW)


@given(st.binary(max_size=200), st.sampled_from(range(8)), st.integers(0, 2**31 - 1))
def test_hostile_records_give_only_batch_errors(data: bytes, codec: int, count: int) -> None:
    batch = encode_batch([record()])[:61] + data
    batch[21:23] = codec.to_bytes(2, "big")
    batch[57:61] = count.to_bytes(4, "big")
    try:
        list(decode_batch(memoryview(batch)))
    except BatchError:
        pass
