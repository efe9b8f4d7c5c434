"""Who waits for new records of which partitions. Waiting is by notification, never by polling."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from penstock.model.ids import PartitionKey, TopicKey, topic_key_of

Wake = Callable[[], None]


class Waiters:
    """Callbacks by partition, called once per commit that moved any of their partitions."""

    def __init__(self) -> None:
        self._by_partition: dict[PartitionKey, set[Wake]] = {}
        self.shared: dict[Hashable, Any] = {}
        """What those that one commit wakes may leave to one another, forgotten after it:
        hundreds of consumers that wait for the same records get the same answer."""

    def add(self, keys: Iterable[PartitionKey], wake: Wake) -> None:
        """Call `wake` at each commit to one of `keys`, until it is removed."""
        for key in keys:
            waiting = self._by_partition.get(key)
            if waiting is None:
                self._by_partition[key] = {wake}
            else:
                waiting.add(wake)

    def remove(self, keys: Iterable[PartitionKey], wake: Wake) -> None:
        """Take a callback back; unknown ones are ignored."""
        for key in keys:
            waiting = self._by_partition.get(key)
            if waiting is not None:
                waiting.discard(wake)
                if not waiting:
                    del self._by_partition[key]

    def notify(self, keys: Iterable[PartitionKey]) -> None:
        """Wake whoever waits for any of these partitions, each once."""
        by_partition = self._by_partition
        woken: set[Wake] = set()
        for key in keys:
            waiting = by_partition.get(key)
            if waiting is not None:
                woken |= waiting
        try:
            for wake in woken:
                wake()
        finally:
            self.shared.clear()

    def notify_all(self) -> None:
        """Wake everybody."""
        self.notify(list(self._by_partition))

    def of_topic(self, topic_key: TopicKey) -> list[PartitionKey]:
        """The partitions of a topic that somebody waits for."""
        return [key for key in self._by_partition if topic_key_of(key) == topic_key]

    def __len__(self) -> int:
        return len(set().union(*self._by_partition.values())) if self._by_partition else 0
