"""The checker finds each anomaly when it is planted, and nothing in a sound history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.log_checker import (
    Commit,
    CommittedRead,
    History,
    Poll,
    Send,
    TopicEvent,
    check,
)

PLACE = ("flights", 0)
OTHER = ("flights", 1)


def send(value: str, offset: int | None, *, idempotent: bool = True, producer: str = "p") -> Send:
    """A send to PLACE."""
    return Send(PLACE, value, producer, idempotent, offset)


def sound() -> History:
    """Five records, one of them without an acknowledgement, read twice; commits; topics."""
    return History(
        sends=[send(f"v{n}", n if n != 3 else None) for n in range(5)],
        polls=[Poll("r", PLACE, tuple((n, f"v{n}") for n in range(5)))],
        final={PLACE: [(n, f"v{n}") for n in range(5)], OTHER: []},
        group_events=[
            CommittedRead("g", PLACE, None),
            Commit("g", PLACE, 2, acknowledged=True),
            Commit("g", PLACE, 4, acknowledged=False),
            CommittedRead("g", PLACE, 4),
        ],
        topic_events=[
            TopicEvent("flights", created=True, acknowledged=True),
            TopicEvent("gone", created=True, acknowledged=True),
            TopicEvent("gone", created=False, acknowledged=True),
            TopicEvent("perhaps", created=True, acknowledged=False),
        ],
        topics_found={"flights"},
    )


def names(history: History) -> set[str]:
    """The names of the anomalies that are found."""
    return {anomaly.name for anomaly in check(history)}


def test_a_sound_history_has_no_anomaly() -> None:
    """Nothing is found where nothing is wrong."""
    assert check(sound()) == []


def other_value(history: History) -> None:
    history.polls.append(Poll("early", PLACE, ((1, "v2"),)))


def acknowledged_twice_at_one_offset(history: History) -> None:
    history.sends.append(send("v9", 1))


def stored_twice(history: History) -> None:
    history.final[PLACE].append((5, "v4"))


def lost(history: History) -> None:
    history.sends.append(send("v2b", 2, producer="q"))
    history.sends[2] = send("v2", None)
    history.final[PLACE][2] = (2, "v2")


def tail_lost(history: History) -> None:
    history.sends.append(send("v5", 5))


def swapped(history: History) -> None:
    history.sends[3] = send("v3", None)
    history.sends[4] = send("v4", None)
    history.polls.clear()
    history.final[PLACE][3:] = [(3, "v4"), (4, "v3")]


def hole(history: History) -> None:
    history.polls.clear()
    del history.final[PLACE][3]


def phantom(history: History) -> None:
    history.final[PLACE].append((5, "from nowhere"))


def elsewhere(history: History) -> None:
    history.sends.append(send("v5", None))
    history.final[OTHER].append((0, "v5"))


def polled_back(history: History) -> None:
    history.polls.append(Poll("r2", PLACE, ((2, "v2"), (1, "v1"))))


def polled_over(history: History) -> None:
    history.polls.append(Poll("r2", PLACE, ((0, "v0"), (2, "v2"))))


def commit_lost(history: History) -> None:
    history.group_events[-1] = CommittedRead("g", PLACE, None)


def commit_unread(history: History) -> None:
    history.group_events.append(CommittedRead("g", PLACE, 2))


def commit_invented(history: History) -> None:
    history.group_events.append(CommittedRead("g", PLACE, 5))


def topic_lost(history: History) -> None:
    history.topics_found.clear()


def topic_undead(history: History) -> None:
    history.topics_found.add("gone")


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (other_value, "inconsistent-offsets"),
        (acknowledged_twice_at_one_offset, "inconsistent-offsets"),
        (stored_twice, "duplicate"),
        (lost, "lost-write"),
        (tail_lost, "unseen"),
        (swapped, "nonmonotonic-send"),
        (hole, "offset-gap"),
        (phantom, "unsent-read"),
        (elsewhere, "unsent-read"),
        (polled_back, "nonmonotonic-poll"),
        (polled_over, "poll-skip"),
        (commit_lost, "commit-regression"),
        (commit_unread, "commit-regression"),
        (commit_invented, "commit-from-nowhere"),
        (topic_lost, "lost-topic"),
        (topic_undead, "undead-topic"),
    ],
)
def test_a_planted_anomaly_is_found(plant: Callable[[History], None], expected: str) -> None:
    """Each promise, broken once, is named."""
    history = sound()
    plant(history)
    assert expected in names(history)


def test_a_plain_producer_may_write_twice_and_out_of_order() -> None:
    """Without idempotence a retry may do both; Kafka promises no more."""
    history = History(
        sends=[send("a", 0, idempotent=False), send("b", 1, idempotent=False)],
        final={PLACE: [(0, "a"), (1, "b"), (2, "a")]},
    )
    assert check(history) == []


def test_a_write_without_acknowledgement_may_be_absent() -> None:
    """It may be there or not."""
    history = History(sends=[send("a", None), send("b", 0)], final={PLACE: [(0, "b")]})
    assert check(history) == []


def test_records_below_the_log_start_are_not_missed() -> None:
    """What retention or DeleteRecords took is not lost."""
    history = History(
        sends=[send("a", 0), send("b", 1)], final={PLACE: [(1, "b")]}, log_start={PLACE: 1}
    )
    assert check(history) == []


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.data())
def test_dropping_any_acknowledged_record_is_found(
    acknowledged: list[bool], data: st.DataObject
) -> None:
    """Wherever the record was, its loss is seen."""
    sends = [send(f"v{n}", n if known else None) for n, known in enumerate(acknowledged)]
    whole = [(n, f"v{n}") for n in range(len(sends))]
    assert check(History(sends=sends, final={PLACE: whole})) == []
    victim = data.draw(st.integers(0, len(sends) - 1))
    rest = [pair for pair in whole if pair[0] != victim]
    found = names(History(sends=sends, final={PLACE: rest}))
    if acknowledged[victim]:
        assert found & {"lost-write", "unseen"}
