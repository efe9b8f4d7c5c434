"""Chooses the agents that clients are shown as the replicas of a partition. Pure.

Any agent serves any partition, and durability is the storage's: a replica is where a client may
read. A consumer reads from the replica of its zone (KIP-392) only where Metadata names that, so
the replicas are, in this order,

1. the leader that the client is shown;
2. the leaders that clients of the other zones are shown, a zone after the other by name;
3. the other agents, in turns.

The list begins again at its start where a topic has more replicas than there are agents. A topic
that was created with a replication factor shows that many; another one replica for each zone. All
replicas are in sync, and that list goes on in the same way up to the topic's
`min.insync.replicas`: no healthy partition looks under-replicated.
"""

from collections.abc import Mapping
from itertools import cycle, islice
from typing import Final

from penstock.placement.leaders import SLOTS, Leaders, first_slot

REPLICAS_MAX: Final = 16
"""A topic may ask for so many whatever the number of agents, and for as many as there are agents.
No more in-sync replicas are shown than this or the replicas."""
_TABLES_MAX: Final = 32

ReplicaIds = tuple[int, ...]


class Replicas:
    """Partitions' replicas, as clients of one zone are shown them."""

    __slots__ = ("_everyone", "_near", "_tables", "_zones", "key")

    def __init__(self, near: Leaders, zones: Mapping[str, Leaders]) -> None:
        """
        Args:
            near: the leaders that these clients are shown.
            zones: of each zone that has agents, the leaders that its clients are shown.
        """
        self._near = near
        self._zones = tuple(zones[zone] for zone in sorted(zones))
        agents = {agent for zone in self._zones for agent in zone.candidates}
        self._everyone = tuple(sorted(agents | set(near.candidates)))
        self._tables: dict[int, tuple[ReplicaIds, ...]] = {}
        self.key = (near.candidates, *(zone.candidates for zone in self._zones))
        """Equal for equal replicas."""

    @property
    def sole(self) -> int | None:
        """The only agent that there is; None: there are more."""
        return self._everyone[0] if len(self._everyone) == 1 else None

    def count(self, replication_factor: int) -> int:
        """Return how many replicas the partitions of a topic show.

        Args:
            replication_factor: the topic's; 0: none was asked for.
        """
        return replication_factor or max(1, min(REPLICAS_MAX, len(self._zones)))

    def of_topic(self, topic_id: bytes, start: int, end: int, count: int) -> tuple[ReplicaIds, ...]:
        """Return `count` replicas of each of the partitions [start, end), in their order."""
        table, first = self._table(count), first_slot(topic_id)
        return tuple(table[(first + number) % SLOTS] for number in range(start, end))

    def shows(self, topic_id: bytes, partition: int, count: int, agent: int) -> bool:
        """Whether an agent is among the `count` replicas of a partition."""
        return agent in self._table(count)[(first_slot(topic_id) + partition) % SLOTS]

    def _table(self, count: int) -> tuple[ReplicaIds, ...]:
        known = self._tables.get(count)
        if known is None:
            if len(self._tables) >= _TABLES_MAX:
                self._tables.clear()
            known = tuple(self._of_slot(slot, count) for slot in range(SLOTS))
            self._tables[count] = known
        return known

    def _of_slot(self, slot: int, count: int) -> ReplicaIds:
        found = dict.fromkeys((self._near.slots[slot], *(zone.slots[slot] for zone in self._zones)))
        if len(found) < count:
            turn = slot % len(self._everyone)
            found |= dict.fromkeys(self._everyone[turn:] + self._everyone[:turn])
        return tuple(islice(cycle(found), count))


def in_sync(replicas: ReplicaIds, least: int) -> ReplicaIds:
    """Return the replicas that are shown as in sync: all, and not fewer than `least`."""
    shown = max(len(replicas), min(least, REPLICAS_MAX))
    return replicas if shown == len(replicas) else tuple(islice(cycle(replicas), shown))
