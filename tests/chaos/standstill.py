"""Whether a librdkafka client can never end, through a deadlock of its own: `MainThreads`.

librdkafka 2.16 has one (confluentinc/librdkafka#5476). A broker leaves the metadata while a
consumer's OffsetForLeaderEpoch to it has no answer yet: the consumer's main thread holds the lock
of a partition and waits for that of the client, the broker's thread holds the latter and waits for
the former. The application's call never returns, and the membership ends for want of heartbeats.
Every server that dies may set it off, and none can end it.

The client's main thread tells it from a server that owes an answer: whatever the client waits for,
that thread wakes once a second for its timers. If it never runs, it waits for a lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

NAME: Final = "rdk:main"
LOOK_S: Final = 1.0
"""Between looks; as long as a main thread sleeps at most."""
LOOKS: Final = 20
"""In a row without a turn of the thread: a busy machine doesn't withhold turns for so long. Looks
are counted, not seconds, since a machine that was suspended has looked once."""


def turns_taken() -> dict[int, int]:
    """How often each librdkafka main thread of this process was switched out, by thread id. Empty
    where the system has no /proc, so that no client is excused there."""
    found: dict[int, int] = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            if task.joinpath("comm").read_text().strip() == NAME:
                lines = task.joinpath("status").read_text().splitlines()
                counts = [int(line.split()[1]) for line in lines if "ctxt_switches" in line]
                found[int(task.name)] = sum(counts)
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended since it was listed.
    return found


class MainThreads:
    """Main threads of this process's librdkafka clients; `look` at them every `LOOK_S`."""

    def __init__(self, read: Callable[[], Mapping[int, int]] = turns_taken) -> None:
        self._read = read
        self._turns: dict[int, int] = {}
        self._still: dict[int, int] = {}

    def look(self) -> None:
        """See which have had a turn since the last look."""
        turns = dict(self._read())
        self._still = {
            thread: self._still.get(thread, 0) + 1 if self._turns.get(thread) == count else 0
            for thread, count in turns.items()
        }
        self._turns = turns

    def all_stand_still(self, count: int) -> bool:
        """Whether there are so many clients, and each of them is deadlocked. One that isn't may be
        the one that a caller waits for, so none is excused then."""
        return len(self._still) == count and all(looks >= LOOKS for looks in self._still.values())


def join_all(
    threads: Sequence[threading.Thread],
    mains: MainThreads,
    *,
    may_deadlock: Callable[[str], bool],
    seconds: float,
    look_s: float = LOOK_S,
) -> tuple[list[str], list[str]]:
    """Wait for threads that were asked to end.

    Args:
        may_deadlock: whether a thread, by its name, has a client with the known deadlock.
        seconds: for how long.
    Returns: names of those that did not end in time, and of those whose clients are deadlocked.
    """
    deadline = time.monotonic() + seconds
    left = list(threads)
    while left and time.monotonic() < deadline:
        left[0].join(look_s)
        if not left[0].is_alive():
            left = [thread for thread in left if thread.is_alive()]
            continue
        mains.look()
        left = [thread for thread in left if thread.is_alive()]
        names = [thread.name for thread in left]
        if left and all(map(may_deadlock, names)) and mains.all_stand_still(len(names)):
            return [], names
    return [thread.name for thread in left if thread.is_alive()], []
