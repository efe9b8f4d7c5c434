"""Fetches wait for new records of partitions. They are notified, and never poll."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from penstock.model.ids import PartitionKey, TopicKey, topic_key_of

_IDLE_MAX: Final = 64
"""Waiters that stay listed without waiting, beyond as many as wait."""
_WOKEN_AT_ONCE: Final = 200
"""One turn of the loop wakes at most this many waiters, since each makes an answer."""


class Waiter:
    """A fetch that waits for some partitions, perhaps again and again.

    A consumer asks for the same ones after each answer: it stays listed meanwhile, since listing
    costs with the number of partitions.
    """

    __slots__ = ("is_listed", "is_waiting", "keys", "wake")

    def __init__(self, keys: Sequence[PartitionKey], wake: Callable[[], None]) -> None:
        self.keys = keys
        self.wake = wake
        self.is_waiting = False
        self.is_listed = False


class Waiters:
    """Waiters by partition, woken once per commit that moved any of their partitions."""

    def __init__(self) -> None:
        # Dictionaries for their order: who came first is woken first.
        self._by_partition: dict[PartitionKey, dict[Waiter, None]] = {}
        self._listed: dict[Waiter, None] = {}
        self._waiting_count = 0
        self.are_many = False
        """Whether one commit has woken several, who may leave something to one another."""
        self.shared: dict[Hashable, Any] = {}
        """Results that waiters of one commit may leave to one another, forgotten after the commit:
        hundreds of consumers that wait for the same records get the same answer."""

    def add(self, waiter: Waiter) -> None:
        """Call `waiter.wake` at each commit to one of its keys, until it is removed."""
        if waiter.is_waiting:
            return
        waiter.is_waiting = True
        self._waiting_count += 1
        if not waiter.is_listed:
            self._list(waiter)

    def remove(self, waiter: Waiter, *, again: bool = False) -> None:
        """Wake it no more; one that doesn't wait is ignored.

        Args:
            again: it will probably be added again soon, with the same keys.
        """
        if waiter.is_waiting:
            waiter.is_waiting = False
            self._waiting_count -= 1
        if waiter.is_listed and not again:
            self._unlist(waiter)

    def notify(self, keys: Iterable[PartitionKey]) -> None:
        """Wake the waiters of any of these partitions, each once."""
        by_partition = self._by_partition
        found: dict[Waiter, None] = {}
        for key in keys:
            listed = by_partition.get(key)
            if listed is not None:
                found.update(listed)
        self.are_many = len(found) > 1
        try:
            for waiter in found:
                if waiter.is_waiting:
                    waiter.wake()
                elif waiter.is_listed:
                    # Waiters that come back in time for every commit are never met here.
                    self._unlist(waiter)
        finally:
            self.shared.clear()

    def notify_all(self) -> None:
        """Wake everybody."""
        self.notify(list(self._by_partition))

    def wake_in_turns(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Wake all that wait now, some at once and the rest in later turns.

        Args:
            call_soon: the loop's.
        """
        self._wake_some([waiter for waiter in self._listed if waiter.is_waiting], call_soon)

    def of_topic(self, topic_key: TopicKey) -> list[PartitionKey]:
        """The partitions of a topic that fetches may wait for."""
        return [key for key in self._by_partition if topic_key_of(key) == topic_key]

    def __len__(self) -> int:
        return self._waiting_count

    def _wake_some(
        self, waiters: Sequence[Waiter], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self.are_many = False
        for waiter in waiters[:_WOKEN_AT_ONCE]:
            if waiter.is_waiting:
                waiter.wake()
        if rest := waiters[_WOKEN_AT_ONCE:]:
            call_soon(partial(self._wake_some, rest, call_soon))

    def _list(self, waiter: Waiter) -> None:
        if len(self._listed) > 2 * self._waiting_count + _IDLE_MAX:
            for idle in [known for known in self._listed if not known.is_waiting]:
                self._unlist(idle)
        waiter.is_listed = True
        self._listed[waiter] = None
        for key in waiter.keys:
            listed = self._by_partition.get(key)
            if listed is None:
                self._by_partition[key] = {waiter: None}
            else:
                listed[waiter] = None

    def _unlist(self, waiter: Waiter) -> None:
        waiter.is_listed = False
        del self._listed[waiter]
        for key in waiter.keys:
            listed = self._by_partition.get(key)
            if listed is not None:
                listed.pop(waiter, None)
                if not listed:
                    del self._by_partition[key]
