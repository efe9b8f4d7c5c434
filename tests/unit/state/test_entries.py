"""Numbering, group commit and resending, without I/O; keys of entries; clocks that are off."""

import asyncio
from collections import deque
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, OverloadedError
from penstock.order.clock_skew import SKEW_MS_MAX, ClockSkew
from penstock.order.entry_window import Call, EntryWindow, Sending
from penstock.order.protocol import EntryKey
from penstock.state.answers import AnyAnswer
from penstock.state.commands import (
    AllocateProducerIds,
    AnyCommand,
    CommitRuns,
    DeleteGroups,
    DeleteOffsets,
    Noop,
    RunCommit,
)
from penstock.state.entries import Entry, decode_entry, encode_entry
from penstock.state.entry_keys import entry_key
from penstock.state.log_protocol import LOG_PROTOCOL, weigh
from penstock.state.schema import STORED_ENTRIES

numbers = st.one_of(
    st.integers(0, (1 << 63) - 1), st.sampled_from([0, 127, 128, 255, 256, 65535, 65536, 1 << 32])
)


@given(agent=numbers, epoch=numbers, n=numbers, commands=st.integers(0, 20))
def test_a_key_is_read_from_an_entrys_first_bytes(
    agent: int, epoch: int, n: int, commands: int
) -> None:
    body = encode_entry(
        Entry(agent=agent, epoch=epoch, n=n, stamp_ms=1, commands=[Noop()] * commands)
    )
    assert entry_key(body) == EntryKey(agent, epoch, n)
    assert decode_entry(body, position=1).n == n


@given(st.binary(max_size=40))
def test_other_bytes_have_no_key_or_numbers(body: bytes) -> None:
    try:
        key = entry_key(body)
    except CorruptDataError:
        return
    assert min(key) >= 0


Window = EntryWindow[AnyCommand, AnyAnswer]
window_of = partial(Window, encode=LOG_PROTOCOL.encode)


def calls(
    loop: asyncio.AbstractEventLoop, count: int, *, weight: int = 1
) -> list[Call[AnyCommand, AnyAnswer]]:
    return [
        Call([AllocateProducerIds(count=1)], loop.create_future(), weight) for _ in range(count)
    ]


@pytest.fixture
def loop() -> asyncio.AbstractEventLoop:
    made = asyncio.new_event_loop()
    made.close()
    return made


def test_entries_are_bounded_in_number_and_weight(loop: asyncio.AbstractEventLoop) -> None:
    window = window_of(agent=1, epoch=2, entries_max=3, entry_weight_max=10)
    for call in calls(loop, 9, weight=4):
        window.add(call)
    made = [window.next_entry(1) for _ in range(5)]
    assert [len(entry.calls) if entry else None for entry in made] == [2, 2, 2, None, None]
    assert [entry_key(entry.body) for entry in made if entry] == [(1, 2, 0), (1, 2, 1), (1, 2, 2)]
    assert window.waiting_count == 3


def test_a_call_above_the_weight_goes_alone(loop: asyncio.AbstractEventLoop) -> None:
    window = window_of(agent=1, epoch=1, entry_weight_max=10)
    for weight in (1, 50, 1, 1):
        window.add(*calls(loop, 1, weight=weight))
    made = [window.next_entry(1) for _ in range(3)]
    assert [len(entry.calls) for entry in made if entry] == [1, 1, 2]


def test_the_queue_is_bounded_but_takes_one_call_of_any_weight(
    loop: asyncio.AbstractEventLoop,
) -> None:
    window = window_of(agent=1, epoch=1, entries_max=0, queue_weight_max=10)
    (large,) = calls(loop, 1, weight=1000)
    window.add(large)
    (small,) = calls(loop, 1)
    with pytest.raises(OverloadedError):
        window.add(small)
    assert window.withdraw(large)
    assert not window.withdraw(large)
    window.add(small)


def test_a_resent_entry_is_one_that_apply_still_answers() -> None:
    # Had an agent more under way than apply remembers, a repeat could be refused as out of order.
    assert window_of(agent=1, epoch=1)._entries_max < STORED_ENTRIES


fates = st.sampled_from(["kept", "kept", "kept but lost", "lost"])


@given(data=st.data())
def test_whatever_becomes_of_copies_entries_are_resolved_in_order(data: st.DataObject) -> None:
    """Against a journal that keeps copies in any order and apply's rule (n = last + 1)."""
    made = asyncio.new_event_loop()
    made.close()
    window = window_of(agent=1, epoch=1, entry_weight_max=1)
    for call in calls(made, 12):
        window.add(call)
    journal: deque[int] = deque()
    head, applied, last = 0, 0, -1
    for turn in range(60):
        heals = turn > 20
        while (entry := window.next_entry(1)) is not None:
            entry.sending = Sending.IN_FLIGHT
        for entry in list(window.unresolved):
            if entry.sending is Sending.IN_FLIGHT:
                fate = "kept" if heals else data.draw(fates)
                if fate != "lost":
                    journal.append(entry.n)
                    head += 1
                entry.sending = Sending.ACKED if fate == "kept" else Sending.FAILED
                entry.position = head if fate == "kept" else entry.position
        for _ in range(len(journal) if heals else data.draw(st.integers(0, len(journal)))):
            n = journal.popleft()
            applied += 1
            if n == last + 1:
                last = n
                found = window.find(n)
                assert found is not None
                window.resolve(found)
            else:
                # Repeated, or out of order: neither resolves anything that isn't resolved.
                assert n <= last or window.find(n) is not None
        for entry in window.due(applied):
            entry.sending = Sending.IN_FLIGHT
        if not window.unresolved and not window.waiting_count:
            break
    assert [last, len(window.unresolved)] == [11, 0]


def test_weights_grow_with_what_applying_costs() -> None:
    runs = [RunCommit(partition_key=1, position=0, batches=[1] * 12) for _ in range(5)]
    assert weigh([Noop()]) == 1
    assert weigh([CommitRuns(runs=runs), Noop()]) == 1 + 5 * 3 + 1
    assert weigh([DeleteOffsets(group_id="g", items=[(bytes(16), 0)] * 7)]) == 1 + 7
    assert weigh([DeleteGroups(group_ids=["a", "b"])]) == 1 + 2


@given(
    skew_ms=st.integers(-20_000, 20_000),
    sent_ms=st.integers(0, 4_000),
    back_ms=st.integers(0, 4_000),
)
def test_a_clock_is_judged_only_by_what_is_certain(
    skew_ms: int, sent_ms: int, back_ms: int
) -> None:
    start_ms = 1_700_000_000_000
    skew = ClockSkew()
    skew.judge(
        before_ms=start_ms + skew_ms,
        stamp_ms=start_ms + sent_ms,
        after_ms=start_ms + sent_ms + back_ms + skew_ms,
    )
    slack_ms = (sent_ms + back_ms) // 2 + 1
    if abs(skew_ms) <= SKEW_MS_MAX:
        assert skew.skew_ms == 0
    elif abs(skew_ms) > SKEW_MS_MAX + 2 * slack_ms:
        assert skew.skew_ms * skew_ms > 0
        assert skew.describe()


def test_a_judgement_stays_until_it_is_refuted() -> None:
    skew = ClockSkew()
    skew.judge(before_ms=10_000, stamp_ms=0, after_ms=10_010)
    assert skew.skew_ms
    skew.judge(before_ms=10_000, stamp_ms=4_000, after_ms=60_000)  # a slow answer proves nothing
    assert skew.skew_ms
    skew.judge(before_ms=10_000, stamp_ms=9_000, after_ms=9_000)  # the clock was set meanwhile
    assert skew.skew_ms
    skew.judge(before_ms=10_000, stamp_ms=9_000, after_ms=10_010)
    assert not skew.skew_ms
    assert skew.describe() == ""
