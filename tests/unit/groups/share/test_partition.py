"""A share partition against a model that has one entry per offset and looks at each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.errors import GroupError
from penstock.groups.share.durable import decode_share, encode_share
from penstock.groups.share.partition import (
    AckBatch,
    Acknowledgement,
    Acquired,
    RecordState,
    SharePartition,
    Stretch,
)

LIMIT = 3
IN_FLIGHT = 12
MEMBERS = ("one", "two")
A, Q, K, R = (
    RecordState.AVAILABLE,
    RecordState.ACQUIRED,
    RecordState.ACKNOWLEDGED,
    RecordState.ARCHIVED,
)


class Model:
    """What became of each offset, one by one: state, deliveries, member, lock."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.records: dict[int, list[Any]] = {}

    def put(self, offset: int, state: RecordState, count: int = 0) -> None:
        self.records[offset] = [state, count, "", 0]

    def tidy(self) -> None:
        while self.start < self.end and self.records[self.start][0] in (K, R):
            del self.records[self.start]
            self.start += 1

    def acquire(
        self, member: str, lock: int, offset: int, stretches: list[Stretch], most: int, cuts: bool
    ) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        at = max(offset, self.start)
        limit = self.start + IN_FLIGHT
        for first, last, is_delivered in stretches:
            if len(found) >= most:
                break
            if max(at, first) >= max(limit, self.end):
                break
            for number in range(at, last + 1):
                if number >= max(limit, self.end):
                    break
                if cuts and len(found) >= most and number >= first:
                    break
                if number >= self.end:
                    self.put(number, A)
                    self.end = number + 1
                record = self.records[number]
                if record[0] is not A:
                    continue
                if number < first or not is_delivered:
                    self.put(number, R)
                else:
                    self.records[number] = [Q, record[1] + 1, member, lock]
                    found.append((number, record[1] + 1))
            at = last + 1
        self.tidy()
        return found

    def acknowledge(self, member: str, first: int, last: int, kinds: list[int], lock: int) -> bool:
        if last >= self.end:
            return False
        for number in range(max(first, self.start), last + 1):
            record = self.records[number]
            if record[0] is not Q or record[2] != member:
                return False
        for number in range(max(first, self.start), last + 1):
            kind = kinds[0] if len(kinds) == 1 else kinds[number - first]
            count = self.records[number][1]
            if kind == Acknowledgement.RENEW:
                self.records[number][3] = lock
            elif kind == Acknowledgement.ACCEPT:
                self.put(number, K)
            elif kind == Acknowledgement.RELEASE and count < LIMIT:
                self.put(number, A, count)
            else:
                self.put(number, R)
        self.tidy()
        return True

    def expire(self, lock: int) -> None:
        for number, record in list(self.records.items()):
            if record[0] is Q and record[3] == lock:
                self.put(number, A if record[1] < LIMIT else R, record[1] % LIMIT)
        self.tidy()

    def release(self, member: str) -> None:
        for number, record in list(self.records.items()):
            if record[0] is Q and record[2] == member:
                self.put(number, A, record[1] - 1)

    def trim(self, log_start: int) -> None:
        for number in [number for number in self.records if number < log_start]:
            del self.records[number]
        self.start = max(self.start, log_start)
        self.end = max(self.end, self.start)
        self.tidy()

    def restart(self) -> None:
        for number, record in list(self.records.items()):
            if record[0] is Q:
                self.put(number, A, record[1] - 1)
        while self.end > self.start and self.records[self.end - 1][:2] == [A, 0]:
            self.end -= 1
            del self.records[self.end]


def seen(share: SharePartition) -> dict[int, list[Any]]:
    return {
        number: [span.state, span.count, span.member, span.lock]
        for span in share.spans
        for number in range(span.first, span.last + 1)
    }


@st.composite
def log_of(draw: st.DrawFn) -> list[Stretch]:
    """Batches of up to four records, some gaps, some without a record to deliver."""
    stretches, at = [], 5
    for _ in range(draw(st.integers(1, 8))):
        at += draw(st.sampled_from((0, 0, 0, 1, 2)))
        size = draw(st.integers(1, 4))
        stretches.append(
            Stretch(at, at + size - 1, draw(st.sampled_from((True, True, True, False))))
        )
        at += size
    return stretches


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from(MEMBERS), st.integers(1, 6), st.booleans()),
        st.tuples(
            st.just("acknowledge"),
            st.sampled_from(MEMBERS),
            st.integers(3, 25),
            st.lists(st.integers(0, 4), min_size=1, max_size=4),
            st.integers(0, 4),
        ),
        st.tuples(st.just("expire"), st.integers(1, 30)),
        st.tuples(st.just("release"), st.sampled_from(MEMBERS)),
        st.tuples(st.just("trim"), st.integers(5, 20)),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(log=log_of(), steps=STEPS)
def test_it_is_as_the_model_says(log: list[Stretch], steps: list[Any]) -> None:
    share, model = SharePartition(5), Model(5)
    end = log[-1].last + 1
    for lock, step in enumerate(steps, 1):
        match step:
            case ("acquire", member, most, cuts):
                offset = share.next_offset(IN_FLIGHT)
                if offset is None or offset >= end:
                    continue
                read = [one for one in log if one.last >= offset]
                found = share.acquire(
                    member,
                    lock,
                    offset,
                    read,
                    records_max=most,
                    in_flight_max=IN_FLIGHT,
                    cuts=cuts,
                )
                numbers = [
                    (n, one.deliveries) for one in found for n in range(one.first, one.last + 1)
                ]
                assert numbers == model.acquire(member, lock, offset, read, most, cuts)
            case ("acknowledge", member, first, kinds, more):
                last = first + (len(kinds) - 1 if len(kinds) > 1 else more)
                fault = share.acknowledge(
                    member, [AckBatch(first, last, kinds)], limit=LIMIT, lock=lock
                )
                assert (fault is None) == model.acknowledge(member, first, last, kinds, lock)
            case ("expire", old):
                share.expire(old, limit=LIMIT)
                model.expire(old)
            case ("release", member):
                share.release(member)
                model.release(member)
            case ("trim", log_start):
                share.trim(log_start)
                model.trim(log_start)
            case ("restart",):
                share = decode_share(share.start, encode_share(share), subject="it")
                model.restart()
        assert (share.start, share.end) == (model.start, model.end)
        assert seen(share) == model.records
        for one, other in zip(share.spans, share.spans[1:], strict=False):
            assert one.last + 1 == other.first
            assert not one.is_like(other)


def acquired(share: SharePartition, last: int = 9, *, member: str = "one", lock: int = 1) -> None:
    offset = share.next_offset(100)
    assert offset is not None
    share.acquire(
        member,
        lock,
        offset,
        [Stretch(share.start, last)],
        records_max=100,
        in_flight_max=100,
        cuts=False,
    )


def say(share: SharePartition, first: int, last: int, *kinds: int, member: str = "one") -> Any:
    return share.acknowledge(member, [AckBatch(first, last, kinds)], limit=LIMIT, lock=9)


def test_records_go_to_one_member_at_a_time() -> None:
    share = SharePartition(0)
    acquired(share)
    assert share.next_offset(10) is None
    assert share.next_offset(11) == 10
    fault = say(share, 0, 3, Acknowledgement.ACCEPT, member="two")
    assert fault.error is GroupError.INVALID_RECORD_STATE
    assert fault.message == "Offsets 0 to 9 are another member's."


def test_the_start_moves_past_what_is_done_with() -> None:
    share = SharePartition(0)
    acquired(share)
    assert say(share, 2, 5, Acknowledgement.ACCEPT) is None
    assert (share.start, share.delivered) == (0, 4)
    assert say(share, 0, 1, Acknowledgement.REJECT) is None
    assert (share.start, share.delivered) == (6, 0)
    assert say(share, 0, 5, Acknowledgement.ACCEPT) is None, "what is gone is ignored"


def test_a_refused_batch_changes_nothing_of_the_others() -> None:
    share = SharePartition(0)
    acquired(share)
    good, bad = AckBatch(0, 1, [1]), AckBatch(8, 12, [1])
    fault = share.acknowledge("one", [good, bad], limit=LIMIT, lock=9)
    assert fault is not None
    assert fault.message == "Offsets up to 12: none from 10 on was delivered."
    assert [span.state for span in share.spans] == [Q]


def test_a_record_is_archived_after_its_last_delivery() -> None:
    share = SharePartition(0)
    for lock in range(1, LIMIT + 1):
        acquired(share, 0, lock=lock)
        assert share.expire(lock, limit=LIMIT) == 1
    assert (share.start, share.spans) == (1, [])


def test_what_was_never_looked_at_is_not_counted() -> None:
    share = SharePartition(0)
    for _ in range(LIMIT + 5):
        acquired(share, 0)
        assert share.release("one") == 1
    assert [(span.state, span.count) for span in share.spans] == [(A, 0)]


def test_each_record_may_have_its_own_word() -> None:
    share = SharePartition(0)
    acquired(share, 4)
    assert say(share, 0, 4, 1, 2, 3, 0, 4) is None
    assert [(span.first, span.last, span.state, span.lock) for span in share.spans] == [
        (1, 1, A, 0),
        (2, 3, R, 0),
        (4, 4, Q, 9),
    ]


def test_a_state_is_as_long_as_its_spans_are_many() -> None:
    share = SharePartition(0)
    acquired(share, 99)
    assert len(encode_share(share)) < 10
    for offset in range(0, 100, 2):
        assert say(share, offset + 1, offset + 1, 1) is None
    assert len(encode_share(share)) < 400
    assert Acquired(0, 0, 1) == (0, 0, 1)
