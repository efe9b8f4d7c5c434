"""Which batches stand behind a failed one, in whatever order failures become known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.append.broken import BROKEN_MAX, BrokenSequences
from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey
from penstock.records.batch import NewBatch
from penstock.state.rows import ActiveProducer
from penstock.state.sequences import SEQUENCE_COUNT


def append(sequence: int, *, producer: int = 7, epoch: int = 0, key: int = 1) -> PartitionAppend:
    batch = NewBatch(memoryview(bytearray(80)), 80, 1, 5, producer, epoch, sequence, -1, 9)
    return PartitionAppend(PartitionKey(key), batch)


def unknown(key: PartitionKey, producer_id: int) -> None:
    """A state without producers."""


def test_a_batch_behind_a_failed_one_is_refused_until_that_came_again() -> None:
    broken = BrokenSequences(unknown)
    assert not broken
    broken.note([append(0)])
    assert broken.is_follower([append(1)])
    assert broken.is_follower([append(2)])
    assert not broken.is_follower([append(1, producer=8)])
    assert not broken.is_follower([append(1, epoch=1)])
    assert not broken.is_follower([append(1, key=2)])
    assert not broken.is_follower([append(0)])
    assert not broken.is_follower([append(1)])


def test_the_earliest_of_several_failures_is_awaited_whichever_is_known_first() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        broken = BrokenSequences(unknown)
        for sequence in order:
            broken.note([append(sequence)], place=10 + sequence)
        assert broken.is_follower([append(2)], place=20), order
        assert not broken.is_follower([append(0)], place=21), order


def test_what_stood_before_a_failed_batch_is_no_follower() -> None:
    broken = BrokenSequences(unknown)
    broken.note([append(10)], place=5)
    assert not broken.is_follower([append(11)], place=4)
    assert broken.is_follower([append(11)], place=6)


def test_an_older_batch_that_comes_again_is_no_follower() -> None:
    """Its answer was lost, and what its producer had sent behind it has failed since."""
    broken = BrokenSequences(unknown)
    broken.note([append(3)], place=10)
    assert not broken.is_follower([append(1)], place=20)
    assert broken.is_follower([append(4)], place=21)
    # It fails as well: now it's the one that is awaited, by what came between them too.
    broken.note([append(1)], place=20)
    assert broken.is_follower([append(2)], place=22)
    assert broken.is_follower([append(4)], place=15)
    assert not broken.is_follower([append(1)], place=23)
    assert not broken.is_follower([append(2)], place=24)


@pytest.mark.parametrize("last", [SEQUENCE_COUNT - 3, SEQUENCE_COUNT - 1])
def test_sequences_that_wrap_are_in_order(last: int) -> None:
    broken = BrokenSequences(unknown)
    broken.note([append(last)])
    assert broken.is_follower([append(2)])
    assert not broken.is_follower([append(last - 4)])
    broken.note([append(5)])
    assert broken.is_follower([append(2)])
    assert not broken.is_follower([append(last)])
    assert not broken.is_follower([append(5)])


def test_what_was_stored_by_another_way_is_awaited_no_more() -> None:
    """A producer that moved to another agent with its failed batch, and came back."""
    state: dict[tuple[PartitionKey, int], ActiveProducer] = {}
    broken = BrokenSequences(lambda key, producer_id: state.get((key, producer_id)))

    def stored(last_sequence: int, *, epoch: int = 3) -> None:
        state[PartitionKey(1), 7] = ActiveProducer(7, epoch, last_sequence, 0)

    broken.note([append(10, epoch=3)])
    assert broken.is_follower([append(12, epoch=3)])
    stored(9)
    assert broken.is_follower([append(12, epoch=3)])
    # The sequences of an older epoch say nothing.
    stored(50, epoch=2)
    assert broken.is_follower([append(12, epoch=3)])
    stored(11)
    assert not broken.is_follower([append(12, epoch=3)])
    assert not broken
    broken.note([append(2, epoch=3)])
    stored(0, epoch=4)
    # Applying refuses it: its epoch is over.
    assert not broken.is_follower([append(3, epoch=3)])


def test_a_state_that_cant_be_asked_lets_nobody_through() -> None:
    def failing(key: PartitionKey, producer_id: int) -> ActiveProducer | None:
        raise RetryableError("query", "state", "too many files are open")

    broken = BrokenSequences(failing)
    broken.note([append(0)])
    assert broken.is_follower([append(1)])
    assert not broken.is_follower([append(0)])


def plain(*, key: int = 1) -> PartitionAppend:
    return append(-1, producer=-1, key=key)


def test_without_a_producer_id_what_one_connection_sent_meanwhile_is_a_follower() -> None:
    broken = BrokenSequences(unknown)
    broken.note([plain()], place=3, source=1, last_place=8)
    assert not broken.is_follower([plain()], place=2, source=1)
    assert broken.is_follower([plain()], place=4, source=1)
    assert not broken.is_follower([plain()], place=5, source=2)
    assert not broken.is_follower([plain()], place=5)
    assert not broken.is_follower([plain(key=2)], place=6, source=1)
    assert broken.is_follower([plain(key=2), plain()], place=7, source=1)
    assert not broken.is_follower([append(0)], place=7, source=1)
    assert broken.is_follower([plain()], place=8, source=1)
    # It came after the failure was known.
    assert not broken.is_follower([plain()], place=9, source=1)
    assert not broken


def test_of_two_failures_of_one_connection_both_have_followers() -> None:
    for places in (((3, 6), (5, 9)), ((5, 9), (3, 6))):
        broken = BrokenSequences(unknown)
        for place, last_place in places:
            broken.note([plain()], place=place, source=1, last_place=last_place)
        assert [broken.is_follower([plain()], place=n, source=1) for n in (4, 7, 9, 10)] == [
            True,
            True,
            True,
            False,
        ]


def test_producers_without_an_id_and_old_failures_are_forgotten() -> None:
    broken = BrokenSequences(unknown)
    broken.note([append(-1, producer=-1)])
    assert not broken
    for producer in range(BROKEN_MAX + 1):
        broken.note([append(0, producer=producer)])
    assert not broken.is_follower([append(1, producer=0)])
    assert broken.is_follower([append(1, producer=BROKEN_MAX)])


@pytest.mark.slow
@given(
    st.lists(st.booleans(), min_size=1, max_size=12), st.permutations(range(12)), st.integers(1, 12)
)
def test_what_is_let_through_after_failures_has_no_gap(
    fails: list[bool], known_order: list[int], retried_from: int
) -> None:
    """Batches 0, 1, ... of one producer, some of which fail; failures become known in any order.
    Whoever goes on is either before the first failed one, or comes after its retry."""
    broken = BrokenSequences(unknown)
    for place in known_order:
        if place < len(fails) and fails[place]:
            broken.note([append(place)], place=place)
    going = [
        place
        for place in range(len(fails))
        if not fails[place] and not broken.is_follower([append(place)], place=place)
    ]
    first_failed = fails.index(True) if True in fails else len(fails)
    assert going == list(range(first_failed))
