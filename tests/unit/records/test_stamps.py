"""Offsets and times of stored batches' records, against decoding them whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records import stamps
from penstock.records.batch import BatchError, BatchFault
from penstock.records.decode import decode_batch
from penstock.records.stamps import record_stamps
from support.raw_batches import NOW, PACKERS, batch, field, good, record, varint

ROWS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(-(10**9), 10**9), st.integers(0, 900)),
    min_size=1,
    max_size=20,
)


@given(
    rows=ROWS,
    codec=st.sampled_from(list(PACKERS)),
    piece=st.integers(1, 400),
    stamped=st.booleans(),
)
def test_they_equal_those_of_a_decoded_batch(
    rows: list[tuple[int, int, int]], codec: str, piece: int, stamped: bool
) -> None:
    delta, block = -1, b""
    for gap, time, size in rows:
        delta += gap
        block += record(delta, time_delta=varint(time), value=field(bytes(size)))
    whole = memoryview(batch(block, len(rows), codec=codec, attributes=8 * stamped))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stamps, "PIECE_BYTES", piece)
        found = list(record_stamps(whole, records_max=20))
    assert found == [(row.offset_delta, row.timestamp) for row in decode_batch(whole)]


@pytest.mark.parametrize("codec", list(PACKERS))
@given(block=st.binary(max_size=100), count=st.integers(1, 30))
def test_hostile_records_give_only_batch_errors(codec: str, block: bytes, count: int) -> None:
    try:
        list(record_stamps(memoryview(batch(block, count, codec=codec)), records_max=100))
    except BatchError as error:
        assert error.fault is BatchFault.INVALID


def test_too_many_records_are_not_looked_at() -> None:
    whole = memoryview(batch(good(5), 5))
    assert list(record_stamps(whole, records_max=5)) == [(n, NOW) for n in range(5)]
    with pytest.raises(BatchError) as caught:
        next(record_stamps(whole, records_max=4))
    assert caught.value.fault is BatchFault.TOO_LARGE
