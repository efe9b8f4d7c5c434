"""Leaders of partitions: even, the same everywhere, and moving no more than they must."""

import os
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.placement.leaders import SLOTS, Leaders

TOPIC = bytes(range(16))
AGENTS = st.lists(st.integers(1, (1 << 31) - 1), min_size=1, max_size=8, unique=True)


def test_the_hash_is_written_down():
    assert Leaders([1, 2, 3]).of_topic(TOPIC, 0, 8) == (1, 2, 2, 2, 1, 2, 1, 1)


@given(AGENTS, st.integers(1, (1 << 31) - 1))
def test_an_agent_that_comes_only_takes_and_one_that_goes_only_leaves(agents, new):
    with_it = Leaders([*set(agents) - {new}, new])
    if set(agents) == {new}:
        return
    without = Leaders([agent for agent in agents if agent != new])
    for partition in range(200):
        before, after = without.leader(TOPIC, partition), with_it.leader(TOPIC, partition)
        assert after in (before, new)


def test_one_call_for_a_topic_says_the_same_as_one_per_partition():
    leaders = Leaders([4, 9, 11])
    topic_id = os.urandom(16)
    # Past the end of the table, too.
    expected = tuple(leaders.leader(topic_id, number) for number in range(5, SLOTS + 20))
    assert leaders.of_topic(topic_id, 5, SLOTS + 20) == expected


def test_partitions_are_shared_evenly():
    leaders = Leaders([1, 2, 3])
    shares = Counter(
        leader for _ in range(100) for leader in leaders.of_topic(os.urandom(16), 0, 30)
    )
    assert all(850 < shares[agent] < 1150 for agent in (1, 2, 3))


def test_the_only_candidate_leads_everything():
    assert Leaders([7]).sole == 7
    assert Leaders([7, 8]).sole is None
    assert Leaders([7]).of_topic(TOPIC, 0, 3) == (7, 7, 7)
