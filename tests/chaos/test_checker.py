"""The checker finds each kind of anomaly that is put into a sound history, and none in that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from chaos.checker import check
from chaos.history import CommittedOffset, EndOffset, History, Outcome, Poll, Seen, Send
from chaos.recording import Recorder


def sound() -> History:
    history = History()
    for number in range(6):
        history.sends.append(
            Send("p", "lib", 0, number, f"v{number}", Outcome.ACKED, number, number, number + 0.5)
        )
    history.sends.append(Send("p", "lib", 0, 6, "v6", Outcome.UNKNOWN, -1, 6, 7))
    history.sends.append(Send("p", "lib", 0, 7, "v7", Outcome.FAILED, -1, 7, 8))
    history.final = [Seen(0, number, f"v{number}") for number in range(6)]
    history.polls = [
        Poll("c", "lib", "1", tuple(history.final[:3]), 9),
        Poll("c", "lib", "1", tuple(history.final[3:]), 9),
        Poll("c", "lib", "2", tuple(history.final[2:4]), 10),
    ]
    history.end_offsets = [EndOffset("a", 0, 2, 1.6, 1.7), EndOffset("b", 0, 6, 9, 9.1)]
    history.committed = [
        CommittedOffset("g", 0, 3, False, 1, 2),
        CommittedOffset("g", 0, 3, True, 3, 4),
    ]
    return history


def test_an_acknowledgement_may_lack_its_offset() -> None:
    recorder = Recorder()
    sending = recorder.sending("p", "lib", 0, 0)
    recorder.sent(sending, Outcome.ACKED, None)
    assert not check(recorder.history).ok, "it was acknowledged and is not there"
    recorder.history.final = [Seen(0, 0, sending.value)]
    assert check(recorder.history).ok


def test_a_sound_history_has_no_anomaly() -> None:
    report = check(sound())
    assert report.ok, report.text()
    assert report.counts["sends acknowledged"] == 6


def lose(history: History) -> None:
    history.final.pop(2)
    history.polls.clear()


def lose_last(history: History) -> None:
    history.final.pop()
    history.polls.clear()
    history.end_offsets.clear()


def lose_what_was_read(history: History) -> None:
    history.final.pop(2)


def store_twice(history: History) -> None:
    history.final.append(Seen(0, 6, "v1"))


def swap(history: History) -> None:
    history.sends[1] = dataclasses.replace(history.sends[1], offset=-1)
    history.sends[2] = dataclasses.replace(history.sends[2], offset=-1)
    history.polls.clear()
    history.final[1], history.final[2] = Seen(0, 1, "v2"), Seen(0, 2, "v1")


def other_value(history: History) -> None:
    history.polls.append(Poll("d", "lib", "1", (Seen(0, 1, "v2"),), 11))


def phantom(history: History) -> None:
    history.final.append(Seen(0, 6, "nobody"))


def failed(history: History) -> None:
    history.final.append(Seen(0, 6, "v7"))


def back(history: History) -> None:
    history.polls.append(Poll("c", "lib", "2", (history.final[2],), 11))


def skip(history: History) -> None:
    history.polls.append(Poll("d", "lib", "1", (history.final[2], history.final[4]), 11))


def end_back(history: History) -> None:
    history.end_offsets.append(EndOffset("c", 0, 5, 9.2, 9.3))


def end_behind_ack(history: History) -> None:
    history.end_offsets.append(EndOffset("c", 0, 2, 4.6, 4.7))


def committed_back(history: History) -> None:
    history.committed.append(CommittedOffset("g", 0, 2, True, 5, 6))


def zero_offset(history: History) -> None:
    history.sends[4] = dataclasses.replace(history.sends[4], offset=0)


@pytest.mark.parametrize(
    ("spoil", "anomaly"),
    [
        (lose, "lost-write"),
        (lose_last, "unseen"),
        (lose_what_was_read, "read-and-lost"),
        (store_twice, "duplicate"),
        (swap, "nonmonotonic-send"),
        (other_value, "inconsistent-offsets"),
        (zero_offset, "inconsistent-offsets"),
        (phantom, "phantom"),
        (failed, "failed-read"),
        (back, "nonmonotonic-poll"),
        (skip, "poll-skip"),
        (end_back, "end-offset-went-back"),
        (end_behind_ack, "end-offset-went-back"),
        (committed_back, "committed-offset-went-back"),
    ],
)
def test_each_anomaly_is_found(spoil: Callable[[History], None], anomaly: str) -> None:
    history = sound()
    spoil(history)
    report = check(history)
    assert anomaly in report.anomalies, report.text()
    assert anomaly in report.text()
