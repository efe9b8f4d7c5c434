"""What an agent has under way is sent again in order, and only where it must be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.model.errors import OverloadedError
from penstock.order.entry_window import Call, EntryWindow, Sending, WindowEntry

Window = EntryWindow[str, str]
Entry = WindowEntry[str, str]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Makes the futures of calls; nothing runs on it."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def new_window(**bounds: int) -> Window:
    return EntryWindow(
        agent=1,
        epoch=2,
        encode=lambda key, _, commands: f"{key.n}:{','.join(commands)}".encode(),
        **bounds,
    )


def add(window: Window, loop: asyncio.AbstractEventLoop, *commands: str) -> Call[str, str]:
    call: Call[str, str] = Call(commands, loop.create_future(), len(commands))
    window.add(call)
    return call


def filled(loop: asyncio.AbstractEventLoop, count: int) -> tuple[Window, list[Entry]]:
    """So many entries, each acknowledged at position 10 + n."""
    window = new_window()
    entries = []
    for n in range(count):
        add(window, loop, f"c{n}")
        entry = window.next_entry(0)
        assert entry is not None
        entry.sending, entry.position = Sending.ACKED, 10 + n
        entries.append(entry)
    return window, entries


def test_with_a_lost_entry_all_after_it_are_sent_again(loop: asyncio.AbstractEventLoop) -> None:
    """Apply takes numbers in order: what follows a hole isn't applied where it lies."""
    window, entries = filled(loop, 4)
    assert window.due(9) == []
    entries[1].sending = Sending.FAILED
    assert window.due(9) == entries[1:]


def test_an_entry_that_lies_where_applying_has_passed_is_sent_again(
    loop: asyncio.AbstractEventLoop,
) -> None:
    window, entries = filled(loop, 3)
    entries[1].position, entries[2].position = 12, 11
    assert window.due(11) == entries, "the first is passed already"
    window.resolve(entries[0])
    assert window.due(11) == entries[2:]


def test_nothing_is_sent_again_while_copies_are_in_flight(loop: asyncio.AbstractEventLoop) -> None:
    window, entries = filled(loop, 3)
    entries[0].sending = Sending.FAILED
    entries[2].sending = Sending.IN_FLIGHT
    assert window.due(100) == []
    entries[2].sending = Sending.FAILED
    assert window.due(9) == entries


def test_calls_share_an_entry_up_to_its_bound_and_stay_whole(
    loop: asyncio.AbstractEventLoop,
) -> None:
    window = new_window(entry_weight_max=4)
    calls = [add(window, loop, *"ab"), add(window, loop, *"cd"), add(window, loop, *"efghij")]
    first, second = window.next_entry(0), window.next_entry(0)
    assert first is not None
    assert second is not None
    assert (first.body, first.calls) == (b"0:a,b,c,d", calls[:2])
    assert (second.body, second.calls) == (b"1:e,f,g,h,i,j", calls[2:]), "one call, however heavy"
    assert window.next_entry(0) is None


def test_no_more_entries_are_under_way_than_apply_can_answer_again(
    loop: asyncio.AbstractEventLoop,
) -> None:
    window = new_window(entries_max=2, entry_weight_max=1)
    for name in "abc":
        add(window, loop, name)
    first = window.next_entry(0)
    assert first is not None
    assert window.next_entry(0) is not None
    assert window.next_entry(0) is None
    window.resolve(first)
    assert window.next_entry(0) is not None
    assert window.find(0) is None
    assert window.find(1) is window.unresolved[0]


def test_what_is_taken_back_leaves_room(loop: asyncio.AbstractEventLoop) -> None:
    window = new_window(queue_weight_max=4)
    first, second = add(window, loop, "a", "b"), add(window, loop, "c", "d")
    with pytest.raises(OverloadedError, match="2 calls wait for the journal"):
        add(window, loop, "e")
    assert window.withdraw(first)
    assert not window.withdraw(first), "it is taken back once"
    third = add(window, loop, "e", "f")
    assert window.take_unsent(lambda call: call is second) == [second]
    fourth = add(window, loop, "g", "h")
    entry = window.next_entry(0)
    assert entry is not None
    assert entry.calls == [third, fourth]
    assert not window.withdraw(third), "it may have been sent"
    late = add(window, loop, "i")
    assert window.drain() == [third, fourth, late]
    assert window.waiting_count == 0
