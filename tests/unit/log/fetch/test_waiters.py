"""Waiters are woken once per commit that moves any of their partitions, and never after."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.fetch.waiters import Waiter, Waiters
from penstock.model.ids import PartitionKey, TopicKey, partition_key

KEYS = st.lists(st.integers(0, 4).map(PartitionKey), unique=True)
STEPS = st.tuples(st.sampled_from(("add", "remove", "pause", "notify")), st.integers(0, 3), KEYS)


@pytest.mark.slow
@given(st.lists(KEYS, min_size=4, max_size=4), st.lists(STEPS))
def test_it_equals_a_set_of_those_who_wait(
    wanted: list[list[PartitionKey]], steps: list[tuple[str, int, list[PartitionKey]]]
) -> None:
    waiters = Waiters()
    woken: list[int] = []
    known = [
        Waiter(keys, lambda number=number: woken.append(number))  # type: ignore[misc]
        for number, keys in enumerate(wanted)
    ]
    model: set[int] = set()
    for step, who, keys in steps:
        if step == "add":
            waiters.add(known[who])
            model.add(who)
        elif step == "notify":
            woken.clear()
            waiters.notify(keys)
            assert sorted(woken) == sorted(n for n in model if set(known[n].keys) & set(keys))
        else:
            waiters.remove(known[who], again=step == "pause")
            model.discard(who)
        assert len(waiters) == len(model)


def test_a_topics_waiters_are_found() -> None:
    waiters = Waiters()
    mine = [partition_key(TopicKey(3), number) for number in (0, 2)]
    waiters.add(Waiter([*mine, partition_key(TopicKey(4), 0)], lambda: None))
    assert sorted(waiters.of_topic(TopicKey(3))) == mine


def test_those_who_never_come_back_are_forgotten() -> None:
    """Also where nothing is ever written to their partitions."""
    waiters = Waiters()
    for number in range(1000):
        waiter = Waiter([PartitionKey(number)], lambda: None)
        waiters.add(waiter)
        waiters.remove(waiter, again=True)
    assert len(waiters) == 0
    assert sum(len(waiters.of_topic(TopicKey(key))) for key in range(2)) < 100


def test_who_is_woken_may_leave_meanwhile() -> None:
    waiters = Waiters()
    woken = []

    def wake() -> None:
        waiters.remove(waiter)
        waiters.remove(other)
        woken.append(1)

    waiter = Waiter([PartitionKey(1)], wake)
    other = Waiter([PartitionKey(1)], lambda: woken.append(2))
    waiters.add(waiter)
    waiters.add(other)
    waiters.notify([PartitionKey(1)])
    waiters.notify([PartitionKey(1)])
    assert woken == [1]


def test_what_is_shared_lasts_one_commit() -> None:
    """Also one in which a waiter fails: what it left would be given out after the next."""
    waiters = Waiters()
    key = PartitionKey(1)
    seen: list[dict[Hashable, Any]] = []

    def wake() -> None:
        seen.append(dict(waiters.shared))
        waiters.shared["answer"] = len(seen)

    def fail() -> None:
        waiters.shared["answer"] = -1
        raise ValueError("of a waiter")

    waiter, failing = Waiter([key], wake), Waiter([key], fail)
    waiters.add(waiter)
    waiters.notify([key])
    waiters.notify([key])
    waiters.remove(waiter)
    waiters.add(failing)
    with pytest.raises(ValueError, match="of a waiter"):
        waiters.notify([key])
    waiters.remove(failing)
    waiters.add(waiter)
    waiters.notify([key])
    assert seen == [{}, {}, {}]


def test_all_that_wait_are_woken_in_turns_and_none_that_waits_no_more() -> None:
    waiters = Waiters()
    woken: list[int] = []
    known = [
        Waiter([PartitionKey(1), PartitionKey(2)], lambda number=number: woken.append(number))  # type: ignore[misc]
        for number in range(500)
    ]
    for waiter in known:
        waiters.add(waiter)
    waiters.remove(known[3], again=True)
    later: list[Callable[[], None]] = []
    waiters.wake_in_turns(later.append)
    assert len(woken) == 200
    waiters.remove(known[499])
    # Who came meanwhile has seen what those are woken for.
    waiters.add(Waiter([PartitionKey(1)], lambda: woken.append(-1)))
    while later:
        later.pop()()
    assert woken == [number for number in range(499) if number != 3]
