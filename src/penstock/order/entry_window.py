"""Keep an agent's entries under way: numbering, group commit, and what is to be sent again.

No I/O and no time: `ClusterOrder` is the shell. A call waits in the queue; the next entry takes
what waits, up to a bound; at most `entries_max` entries are unresolved, and only what applying
them gave resolves them. The rule by which an entry is sent again needs no guess: it is due when
sending it failed, or when the copy that was acknowledged lies at a position that is applied here
and didn't resolve it (it came out of order). With it all behind it are sent again, in order of n.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import OverloadedError
from penstock.state.answers import AnyAnswer
from penstock.state.commands import (
    AnyCommand,
    CommitOffsets,
    CommitRuns,
    DeleteGroups,
    DeleteOffsets,
    ExpireProducers,
    StoreSegment,
    TrimLog,
)
from penstock.state.entries import Entry, encode_entry

UNRESOLVED_MAX: Final = 8
"""Half of what apply answers again (`STORED_ENTRIES`): a resent entry is always one of those."""
ENTRY_WEIGHT_MAX: Final = 4_096
"""Batches, offsets or items of one entry, about 64 bytes each."""
QUEUE_WEIGHT_MAX: Final = 64 * ENTRY_WEIGHT_MAX


class Call:
    """One submitted group of commands, which stays together."""

    __slots__ = ("commands", "future", "timer", "weight")

    def __init__(
        self, commands: Sequence[AnyCommand], future: "asyncio.Future[list[AnyAnswer]]", weight: int
    ) -> None:
        self.commands = commands
        self.future = future
        self.weight = weight
        self.timer: asyncio.TimerHandle | None = None


class Sending(enum.Enum):
    """The state of the last copy that was sent, as far as it is known."""

    IN_FLIGHT = enum.auto()
    ACKED = enum.auto()
    """It lies at `WindowEntry.position`."""
    FAILED = enum.auto()
    """Not sent, or it is unknown."""


@dataclass(slots=True, eq=False)
class WindowEntry:
    """One entry under way."""

    n: int
    body: bytes
    calls: list[Call]
    sending: Sending = Sending.FAILED
    position: int = 0


class EntryWindow:
    """The entries of one agent and epoch."""

    def __init__(
        self,
        *,
        agent: int,
        epoch: int,
        entries_max: int = UNRESOLVED_MAX,
        entry_weight_max: int = ENTRY_WEIGHT_MAX,
        queue_weight_max: int = QUEUE_WEIGHT_MAX,
    ) -> None:
        self.agent = agent
        self.epoch = epoch
        self.next_n = 0
        self.unresolved: deque[WindowEntry] = deque()
        """In order of n, without gaps."""
        self._queue: deque[Call] = deque()
        self._queue_weight = 0
        self._entries_max = entries_max
        self._entry_weight_max = entry_weight_max
        self._queue_weight_max = queue_weight_max

    @property
    def waiting_count(self) -> int:
        """Calls in no entry yet."""
        return len(self._queue)

    def add(self, call: Call) -> None:
        """Queue a call behind all others.

        Raises:
            OverloadedError: too much waits already.
        """
        if self._queue and self._queue_weight + call.weight > self._queue_weight_max:
            raise OverloadedError(
                "commit",
                f"agent {self.agent}",
                f"{len(self._queue)} calls wait for the journal",
                "it answers too slowly, or not at all",
            )
        self._queue.append(call)
        self._queue_weight += call.weight

    def withdraw(self, call: Call) -> bool:
        """Take a call back; False: it is in an entry already."""
        if call not in self._queue:
            return False
        self._queue.remove(call)
        self._queue_weight -= call.weight
        return True

    def take_unsent(self, is_taken: Callable[[Call], bool]) -> list[Call]:
        """Take back those calls that are in no entry yet and that `is_taken` names, in order."""
        taken = [call for call in self._queue if is_taken(call)]
        if taken:
            gone = set(map(id, taken))
            self._queue = deque(call for call in self._queue if id(call) not in gone)
            self._queue_weight -= sum(call.weight for call in taken)
        return taken

    def next_entry(self, stamp_ms: int) -> WindowEntry | None:
        """Make an entry of what waits; None: nothing does, or enough is under way."""
        if not self._queue or len(self.unresolved) >= self._entries_max:
            return None
        calls: list[Call] = []
        weight = 0
        while self._queue:
            call = self._queue[0]
            if calls and weight + call.weight > self._entry_weight_max:
                break
            calls.append(self._queue.popleft())
            weight += call.weight
        self._queue_weight -= weight
        body = encode_entry(
            Entry(
                agent=self.agent,
                epoch=self.epoch,
                n=self.next_n,
                stamp_ms=stamp_ms,
                commands=[command for call in calls for command in call.commands],
            )
        )
        entry = WindowEntry(self.next_n, body, calls)
        self.next_n += 1
        self.unresolved.append(entry)
        return entry

    def find(self, n: int) -> WindowEntry | None:
        """The unresolved entry of this number."""
        if not self.unresolved:
            return None
        index = n - self.unresolved[0].n
        return self.unresolved[index] if 0 <= index < len(self.unresolved) else None

    def resolve(self, entry: WindowEntry) -> None:
        """It was applied, so all before it were."""
        assert self.unresolved[0] is entry, f"{entry.n} before {self.unresolved[0].n}"
        self.unresolved.popleft()

    def due(self, applied_position: int) -> list[WindowEntry]:
        """Return what is to be sent again now, in this order; nothing while copies are in flight,
        since those tell more."""
        first: int | None = None
        for index, entry in enumerate(self.unresolved):
            if entry.sending is Sending.IN_FLIGHT:
                return []
            is_lost = entry.sending is Sending.FAILED or entry.position <= applied_position
            if is_lost and first is None:
                first = index
        return [] if first is None else list(self.unresolved)[first:]

    def drain(self) -> list[Call]:
        """Give up, and return all calls that will have no answer."""
        calls = [call for entry in self.unresolved for call in entry.calls]
        calls += self._queue
        self.unresolved.clear()
        self._queue.clear()
        self._queue_weight = 0
        return calls


def weigh(commands: Sequence[AnyCommand]) -> int:
    """Return how much of an entry they take; the cost of applying and the bytes grow with it."""
    return sum(_weigh(command) for command in commands)


def _weigh(command: AnyCommand) -> int:
    match command:
        case CommitRuns():
            return 1 + sum(1 + len(run.batches) // 6 for run in command.runs)
        case StoreSegment():
            return 1 + sum(1 + len(run.runs) // 4 for run in command.runs)
        case TrimLog() | ExpireProducers():
            return 1 + len(command.items) // 2
        case CommitOffsets():
            return 1 + len(command.offsets)
        case DeleteOffsets():
            return 1 + len(command.items)
        case DeleteGroups():
            return 1 + len(command.group_ids)
        case _:
            return 1
