"""How much of what waits makes a flush, against a simple model."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.append.flight import Waiting
from penstock.log.append.gathering import Gathering
from penstock.log.append.group_commit import AppendRequest


def waiting(place: int, length: int) -> Waiting:
    return Waiting(AppendRequest([], length, 0.0, lambda _: None), place)


@given(
    st.lists(st.integers(1, 100), max_size=30),
    st.integers(1, 150),
    st.integers(0, 150),
    st.sets(st.integers(0, 29)),
)
def test_flushes_take_all_in_order_and_are_no_longer_than_they_may(
    lengths: list[int], flush_bytes: int, more: int, removed: set[int]
) -> None:
    bytes_max = flush_bytes + more
    gathering = Gathering(flush_bytes=flush_bytes, bytes_max=bytes_max)
    everything = [waiting(place, length) for place, length in enumerate(lengths)]
    for one in everything:
        gathering.add(one)
    gathering.remove([one for one in everything if one.place in removed])
    left = [one for one in everything if one.place not in removed]
    assert list(gathering) == left
    taken: list[Waiting] = []
    while gathering:
        rest = sum(one.request.length for one in gathering)
        assert gathering.is_full == (rest >= flush_bytes)
        group = gathering.next_group()
        total = sum(one.request.length for one in group)
        assert group
        assert total <= bytes_max or len(group) == 1
        assert total - group[-1].request.length < flush_bytes
        if gathering and total < flush_bytes:
            assert total + next(iter(gathering)).request.length > bytes_max
        taken += group
    assert taken == left
    assert not gathering.is_full
