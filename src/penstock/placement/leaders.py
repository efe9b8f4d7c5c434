"""Chooses which agent is shown as the leader of a partition. Pure.

Any agent serves any partition; a leader only keeps clients of one partition together, so that the
zone's caches don't hold everything once per agent. Partitions fall into slots, and slots to
candidates by rendezvous: a table of slots is made in milliseconds when agents come or go, and
50,000 partitions are then looked up rather than hashed.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import shake_128
from typing import Final

SLOTS: Final = 4096
_ROW: Final = struct.Struct(f">{SLOTS}Q")


class Leaders:
    """Partitions' leaders among fixed candidates."""

    __slots__ = ("candidates", "slots")

    def __init__(self, candidates: Sequence[int]) -> None:
        """
        Args:
            candidates: agent ids, at least one.
        """
        self.candidates = tuple(sorted(candidates))
        self.slots = _slots(self.candidates)
        """The leader of each slot."""

    @property
    def sole(self) -> int | None:
        """The leader of everything, when there is but one candidate."""
        return self.candidates[0] if len(self.candidates) == 1 else None

    def leader(self, topic_id: bytes, partition: int) -> int:
        """One partition's."""
        return self.slots[(first_slot(topic_id) + partition) % SLOTS]

    def of_topic(self, topic_id: bytes, start: int, end: int) -> tuple[int, ...]:
        """Return the leaders of partitions [start, end), in their order."""
        slots, first = self.slots, first_slot(topic_id)
        return tuple(slots[(first + number) % SLOTS] for number in range(start, end))


def first_slot(topic_id: bytes) -> int:
    """Return the slot of a topic's partition 0; the next partition is in the next slot."""
    # Topic ids are random, so their bytes are as good as a hash of them; not the first ones,
    # which don't begin with every value.
    return int.from_bytes(topic_id[-4:], "big")


@lru_cache(maxsize=256)
def _weights(agent: int) -> tuple[int, ...]:
    """The agent's 64-bit weight for each slot: one stream of a hash keyed by the agent."""
    stream = shake_128(b"penstock leaders" + agent.to_bytes(8, "big")).digest(_ROW.size)
    return _ROW.unpack(stream)


@lru_cache(maxsize=64)
def _slots(candidates: tuple[int, ...]) -> tuple[int, ...]:
    assert candidates
    if len(candidates) == 1:
        return candidates * SLOTS
    columns = zip(*(_weights(agent) for agent in candidates), strict=True)
    return tuple(candidates[weights.index(max(weights))] for weights in columns)
