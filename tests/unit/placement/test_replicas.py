"""Replicas that clients are shown: the leader first, one in each zone, and as many as asked for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.placement.leaders import SLOTS, Leaders
from penstock.placement.replicas import REPLICAS_MAX, Replicas, in_sync

ID = bytes(range(16))
ZONES = {"a": Leaders([1, 2]), "b": Leaders([3]), "": Leaders([4])}
EVERYONE = Leaders([1, 2, 3, 4])


def shown(replicas: Replicas, count: int) -> tuple[tuple[int, ...], ...]:
    return replicas.of_topic(ID, 0, SLOTS, count)


def test_without_a_factor_there_is_one_replica_in_each_zone() -> None:
    for near in (ZONES["a"], ZONES["b"], EVERYONE):
        replicas = Replicas(near, ZONES)
        assert replicas.count(0) == 3
        rows = shown(replicas, 3)
        assert [row[0] for row in rows] == list(near.of_topic(ID, 0, SLOTS)), "the leader first"
        for number, row in enumerate(rows):
            assert set(row) == {zone.leader(ID, number) for zone in ZONES.values()}


def test_whoever_is_shown_the_leader_of_a_zone_finds_that_agent_there() -> None:
    """A consumer asks Metadata without a zone, and is sent to its rack's leader by a fetch."""
    replicas = Replicas(EVERYONE, ZONES)
    for number in range(SLOTS):
        for zone in ZONES.values():
            assert replicas.shows(ID, number, 3, zone.leader(ID, number))
    few = Replicas(EVERYONE, ZONES)
    assert not all(few.shows(ID, number, 1, 3) for number in range(SLOTS))


def test_more_replicas_are_the_other_agents_in_turns() -> None:
    zones = {"a": Leaders(range(1, 8))}
    rows = shown(Replicas(zones["a"], zones), 3)
    assert all(len(set(row)) == 3 for row in rows)
    second = Counter(row[1] for row in rows)
    assert set(second) == set(range(1, 8))
    assert max(second.values()) < 3 * min(second.values())


def test_with_fewer_agents_than_replicas_the_list_goes_round() -> None:
    alone = Leaders([7])
    replicas = Replicas(alone, {"": alone})
    assert replicas.sole == 7
    assert (replicas.count(0), replicas.count(3)) == (1, 3)
    assert set(shown(replicas, 3)) == {(7, 7, 7)}
    two = Leaders([7, 8])
    assert set(shown(Replicas(two, {"": two}), 3)) == {(7, 8, 7), (8, 7, 8)}


def test_no_healthy_partition_looks_under_replicated() -> None:
    assert in_sync((1, 2, 3), 1) == in_sync((1, 2, 3), 3) == (1, 2, 3)
    assert in_sync((1,), 2) == (1, 1)
    assert in_sync((1, 2), 5) == (1, 2, 1, 2, 1)
    assert len(in_sync((1,), 1 << 31)) == REPLICAS_MAX, "an answer is bounded"
    assert in_sync((1,) * 20, 30) == (1,) * 20


@pytest.mark.slow
@given(
    agents=st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from(["", "a", "b", "c"])),
        min_size=1,
        max_size=8,
        unique_by=lambda agent: agent[0],
    ),
    zone=st.sampled_from(["", "a", "b", "z"]),
    factor=st.integers(0, 12),
)
def test_any_cluster_shows_as_many_as_it_says_and_repeats_none_before_all_are_there(
    agents: list[tuple[int, str]], zone: str, factor: int
) -> None:
    zones = {
        name: Leaders([agent for agent, of in agents if of == name])
        for name in {of for _, of in agents}
    }
    everyone = [agent for agent, _ in agents]
    near = zones[zone] if zone and zone in zones else Leaders(everyone)
    replicas = Replicas(near, zones)
    count = replicas.count(factor)
    assert count == (factor or len(zones))
    for row in set(shown(replicas, count)):
        assert len(row) == count
        assert set(row) <= set(everyone)
        assert len(set(row)) == min(count, len(everyone))
        assert row[0] in near.candidates
