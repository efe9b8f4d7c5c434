"""Assignments in the heartbeats' answers of groups whose server assigns (KIP-848, KIP-932)."""

import uuid
from types import ModuleType
from typing import Final

from penstock.groups.consumer import partitions
from penstock.groups.consumer.partitions import Partitions
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.wire.encode import Entity

TOPIC_BYTES: Final = 24
PARTITION_BYTES: Final = 4


def assignment(types: ModuleType, assigned: Partitions | None) -> Entity | None:
    """Return a member's partitions by topic id; None: they are those that it has."""
    if assigned is None:
        return None
    made: Entity = types.Assignment(
        topic_partitions=tuple(
            types.TopicPartitions(
                topic_id=uuid.UUID(bytes=topic_id), partitions=tuple(sorted(numbers))
            )
            for topic_id, numbers in sorted(assigned.items())
        )
    )
    return made


def answer_bound(message: str | None, member_id: str | None, assigned: Partitions | None) -> int:
    """Return the most bytes of a heartbeat's answer."""
    assigned = assigned or partitions.NONE
    found = BASE_BYTES + text_bytes(message) + text_bytes(member_id)
    return found + TOPIC_BYTES * len(assigned) + PARTITION_BYTES * partitions.count(assigned)
