"""Places that several jobs share."""

import threading

from penstock.pipeline.slots import Slots, bulk_slots
from support.waiting import eventually


def test_bulk_jobs_leave_a_quarter_free_and_one_place_at_least() -> None:
    assert [bulk_slots(count) for count in (1, 2, 3, 4, 8, 100)] == [1, 1, 2, 3, 6, 75]


def test_as_many_are_taken_as_are_free() -> None:
    slots = Slots(3)
    assert slots.take(2, waits=False) == 2
    assert slots.take(9, waits=True) == 1
    assert slots.take(1, waits=False) == 0
    slots.release(3)
    assert slots.take(9, waits=False) == 3


def test_the_first_that_waits_is_served_first() -> None:
    slots = Slots(1)
    assert slots.take(1, waits=True) == 1
    served: list[str] = []

    def wait(name: str) -> None:
        slots.take(1, waits=True)
        served.append(name)

    threads = []
    for waiting, name in enumerate("abc", start=1):
        threads.append(threading.Thread(target=wait, args=(name,)))
        threads[-1].start()
        eventually(lambda waiting=waiting: slots._next_ticket - slots._served == waiting)
    slots_seen = []
    for count in (1, 2, 3):
        slots.release(1)
        # While others wait, one that doesn't is given none.
        slots_seen.append(slots.take(1, waits=False))
        eventually(lambda count=count: len(served) == count)
    assert served == ["a", "b", "c"]
    assert slots_seen[:2] == [0, 0]
    for thread in threads:
        thread.join()
