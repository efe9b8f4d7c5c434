"""Waiters are woken once per commit that moves any of their partitions, and never after."""

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.fetch.waiters import Waiters
from penstock.model.ids import PartitionKey, TopicKey, partition_key

KEYS = st.lists(st.integers(0, 4).map(PartitionKey), unique=True)


@given(st.lists(st.tuples(st.sampled_from(("add", "remove", "notify")), st.integers(0, 3), KEYS)))
def test_it_equals_a_set_of_pairs(steps: list[tuple[str, int, list[PartitionKey]]]) -> None:
    waiters = Waiters()
    woken: list[int] = []
    wakes = [lambda number=number: woken.append(number) for number in range(4)]
    model: set[tuple[int, PartitionKey]] = set()
    for step, who, keys in steps:
        if step == "add":
            waiters.add(keys, wakes[who])
            model |= {(who, key) for key in keys}
        elif step == "remove":
            waiters.remove(keys, wakes[who])
            model -= {(who, key) for key in keys}
        else:
            woken.clear()
            waiters.notify(keys)
            assert sorted(woken) == sorted({who for who, key in model if key in keys})
        assert len(waiters) == len({who for who, _ in model})


def test_a_topics_waiters_are_found() -> None:
    waiters = Waiters()
    mine = [partition_key(TopicKey(3), number) for number in (0, 2)]
    waiters.add([*mine, partition_key(TopicKey(4), 0)], lambda: None)
    assert sorted(waiters.of_topic(TopicKey(3))) == mine


def test_who_is_woken_may_leave_meanwhile() -> None:
    waiters = Waiters()
    key = PartitionKey(1)
    woken = []

    def wake() -> None:
        waiters.remove([key], wake)
        woken.append(1)

    waiters.add([key], wake)
    waiters.notify([key])
    waiters.notify([key])
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

    waiters.add([key], wake)
    waiters.notify([key])
    waiters.notify([key])
    waiters.remove([key], wake)
    waiters.add([key], fail)
    with pytest.raises(ValueError, match="of a waiter"):
        waiters.notify([key])
    waiters.remove([key], fail)
    waiters.add([key], wake)
    waiters.notify([key])
    assert seen == [{}, {}, {}]
