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
from typing import Final, Generic, TypeVar

from penstock.model.errors import OverloadedError
from penstock.order.protocol import EntryKey

UNRESOLVED_MAX: Final = 8
"""Half of what apply answers again (`STORED_ENTRIES`): a resent entry is always one of those."""
ENTRY_WEIGHT_MAX: Final = 4_096
"""Batches, offsets or items of one entry, about 64 bytes each."""
QUEUE_WEIGHT_MAX: Final = 64 * ENTRY_WEIGHT_MAX


CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")


class Call(Generic[CommandT, AnswerT]):
    """One submitted group of commands, which stays together."""

    __slots__ = ("commands", "future", "timer", "weight")

    def __init__(
        self,
        commands: Sequence[CommandT],
        future: "asyncio.Future[list[AnswerT]]",
        weight: int,
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
class WindowEntry(Generic[CommandT, AnswerT]):
    """One entry under way."""

    n: int
    body: bytes
    calls: list[Call[CommandT, AnswerT]]
    sending: Sending = Sending.FAILED
    position: int = 0


class EntryWindow(Generic[CommandT, AnswerT]):
    """The entries of one agent and epoch."""

    def __init__(
        self,
        *,
        agent: int,
        epoch: int,
        encode: Callable[[EntryKey, int, list[CommandT]], bytes],
        entries_max: int = UNRESOLVED_MAX,
        entry_weight_max: int = ENTRY_WEIGHT_MAX,
        queue_weight_max: int = QUEUE_WEIGHT_MAX,
    ) -> None:
        self.agent = agent
        self.epoch = epoch
        self._encode = encode
        self.next_n = 0
        self.unresolved: deque[WindowEntry[CommandT, AnswerT]] = deque()
        """In order of n, without gaps."""
        self._queue: deque[Call[CommandT, AnswerT]] = deque()
        self._queue_weight = 0
        self._entries_max = entries_max
        self._entry_weight_max = entry_weight_max
        self._queue_weight_max = queue_weight_max

    @property
    def waiting_count(self) -> int:
        """Calls in no entry yet."""
        return len(self._queue)

    def add(self, call: Call[CommandT, AnswerT]) -> None:
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

    def withdraw(self, call: Call[CommandT, AnswerT]) -> bool:
        """Take a call back; False: it is in an entry already."""
        if call not in self._queue:
            return False
        self._queue.remove(call)
        self._queue_weight -= call.weight
        return True

    def take_unsent(
        self, is_taken: Callable[[Call[CommandT, AnswerT]], bool]
    ) -> list[Call[CommandT, AnswerT]]:
        """Take back those calls that are in no entry yet and that `is_taken` names, in order."""
        taken = [call for call in self._queue if is_taken(call)]
        if taken:
            gone = set(map(id, taken))
            self._queue = deque(call for call in self._queue if id(call) not in gone)
            self._queue_weight -= sum(call.weight for call in taken)
        return taken

    def next_entry(self, stamp_ms: int) -> WindowEntry[CommandT, AnswerT] | None:
        """Make an entry of what waits; None: nothing does, or enough is under way."""
        if not self._queue or len(self.unresolved) >= self._entries_max:
            return None
        calls: list[Call[CommandT, AnswerT]] = []
        weight = 0
        while self._queue:
            call = self._queue[0]
            if calls and weight + call.weight > self._entry_weight_max:
                break
            calls.append(self._queue.popleft())
            weight += call.weight
        self._queue_weight -= weight
        body = self._encode(
            EntryKey(self.agent, self.epoch, self.next_n),
            stamp_ms,
            [command for call in calls for command in call.commands],
        )
        entry = WindowEntry(self.next_n, body, calls)
        self.next_n += 1
        self.unresolved.append(entry)
        return entry

    def find(self, n: int) -> WindowEntry[CommandT, AnswerT] | None:
        """The unresolved entry of this number."""
        if not self.unresolved:
            return None
        index = n - self.unresolved[0].n
        return self.unresolved[index] if 0 <= index < len(self.unresolved) else None

    def resolve(self, entry: WindowEntry[CommandT, AnswerT]) -> None:
        """It was applied, so all before it were."""
        assert self.unresolved[0] is entry, f"{entry.n} before {self.unresolved[0].n}"
        self.unresolved.popleft()

    def due(self, applied_position: int) -> list[WindowEntry[CommandT, AnswerT]]:
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

    def drain(self) -> list[Call[CommandT, AnswerT]]:
        """Give up, and return all calls that will have no answer."""
        calls = [call for entry in self.unresolved for call in entry.calls]
        calls += self._queue
        self.unresolved.clear()
        self._queue.clear()
        self._queue_weight = 0
        return calls
