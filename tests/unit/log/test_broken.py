"""Which batches stand behind a failed one, in whatever order failures become known."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.append.broken import BROKEN_MAX, BrokenSequences
from penstock.log.append.plan import PartitionAppend
from penstock.model.ids import PartitionKey
from penstock.records.batch import NewBatch


def append(sequence: int, *, producer: int = 7, epoch: int = 0, key: int = 1) -> PartitionAppend:
    batch = NewBatch(memoryview(bytearray(80)), 80, 1, 5, producer, epoch, sequence, -1)
    return PartitionAppend(PartitionKey(key), batch)


def test_a_batch_behind_a_failed_one_is_refused_until_that_came_again() -> None:
    broken = BrokenSequences()
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
        broken = BrokenSequences()
        for sequence in order:
            broken.note([append(sequence)], place=10 + sequence)
        assert broken.is_follower([append(2)], place=20), order
        assert not broken.is_follower([append(0)], place=21), order


def test_what_stood_before_a_failed_batch_is_no_follower() -> None:
    broken = BrokenSequences()
    broken.note([append(10)], place=5)
    assert not broken.is_follower([append(5)], place=4)
    assert broken.is_follower([append(5)], place=6)


def test_producers_without_an_id_and_old_failures_are_forgotten() -> None:
    broken = BrokenSequences()
    broken.note([append(-1, producer=-1)])
    assert not broken
    for producer in range(BROKEN_MAX + 1):
        broken.note([append(0, producer=producer)])
    assert not broken.is_follower([append(1, producer=0)])
    assert broken.is_follower([append(1, producer=BROKEN_MAX)])


@given(
    st.lists(st.booleans(), min_size=1, max_size=12), st.permutations(range(12)), st.integers(1, 12)
)
def test_what_is_let_through_after_failures_has_no_gap(
    fails: list[bool], known_order: list[int], retried_from: int
) -> None:
    """Batches 0, 1, ... of one producer, some of which fail; failures become known in any order.
    Whoever goes on is either before the first failed one, or comes after its retry."""
    broken = BrokenSequences()
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
