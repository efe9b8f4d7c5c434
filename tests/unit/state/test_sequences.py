"""Sequences of idempotent producers: five ranges, wrap, fencing."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.state.answers import BatchStatus, Refusal
from penstock.state.sequences import ProducerState, judge, pack_ranges, unpack_ranges

MAX = (1 << 31) - 1


def state_after(*batches: tuple[int, int], epoch: int = 0) -> ProducerState:
    """Of (sequence, count) batches that follow one another, from offset 100 on."""
    state = ProducerState(epoch, [], 0)
    offset = 100
    for sequence, count in batches:
        state.record(epoch, sequence, count, offset, 0)
        offset += count
    return state


def test_the_next_sequence_is_stored() -> None:
    assert judge(state_after((0, 3)), 0, 3, 1) == (BatchStatus.STORED, 0)


def test_a_gap_is_out_of_order() -> None:
    assert judge(state_after((0, 3)), 0, 4, 1) == (
        BatchStatus.REFUSED,
        Refusal.OUT_OF_ORDER_SEQUENCE,
    )


def test_each_of_the_last_five_is_a_duplicate_and_an_older_one_is_refused_as_such() -> None:
    state = state_after(*[(number, 1) for number in range(7)])
    for number in range(2, 7):
        assert judge(state, 0, number, 1) == (BatchStatus.DUPLICATE, 100 + number)
    for number in range(2):
        assert judge(state, 0, number, 1) == (BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE)


def test_a_batch_that_overlaps_the_last_one_and_goes_on_is_out_of_order() -> None:
    assert judge(state_after((0, 3)), 0, 2, 3)[1] == Refusal.OUT_OF_ORDER_SEQUENCE


def test_sequences_wrap_to_zero_between_batches() -> None:
    state = state_after((MAX, 1))
    assert judge(state, 0, 0, 2) == (BatchStatus.STORED, 0)
    assert judge(state, 0, 1, 1)[0] is BatchStatus.REFUSED


def test_sequences_wrap_inside_a_batch() -> None:
    state = state_after((MAX - 1, 4))
    assert state.ranges == [MAX - 1, 1, 100]
    assert judge(state, 0, MAX - 1, 4) == (BatchStatus.DUPLICATE, 100)
    assert judge(state, 0, 2, 1) == (BatchStatus.STORED, 0)
    assert judge(state, 0, MAX - 1, 1) == (BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE)


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_zero() -> None:
    state = state_after((0, 3), epoch=5)
    assert judge(state, 4, 3, 1) == (BatchStatus.REFUSED, Refusal.FENCED_PRODUCER)
    assert judge(state, 6, 3, 1) == (BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE)
    assert judge(state, 6, 0, 1) == (BatchStatus.STORED, 0)
    state.record(6, 0, 1, 500, 9)
    assert (state.epoch, state.ranges, state.last_timestamp) == (6, [0, 0, 500], 9)


@given(
    st.lists(
        st.tuples(st.integers(0, MAX), st.integers(0, MAX), st.integers(0, (1 << 63) - 1)),
        max_size=5,
    )
)
def test_ranges_round_trip_through_their_bytes(ranges: list[tuple[int, int, int]]) -> None:
    flat = [value for one in ranges for value in one]
    assert unpack_ranges(pack_ranges(flat)) == flat
    assert len(pack_ranges(flat)) == 16 * len(ranges)


@given(st.integers(0, MAX), st.lists(st.integers(1, 1 << 20), min_size=1, max_size=12))
def test_a_retry_of_any_recent_batch_finds_its_offset(start: int, counts: list[int]) -> None:
    state = ProducerState(0, [], 0)
    sequence, offset = start, 0
    sent = []
    for count in counts:
        sent.append((sequence, count, offset))
        state.record(0, sequence, count, offset, 0)
        sequence = (sequence + count) % (1 << 31)
        offset += count
    for sent_sequence, count, sent_offset in sent[-5:]:
        assert judge(state, 0, sent_sequence, count) == (BatchStatus.DUPLICATE, sent_offset)
    assert judge(state, 0, sequence, 1) == (BatchStatus.STORED, 0)
