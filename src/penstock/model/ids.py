"""Identities: what names a thing. No behaviour beyond packing two numbers into one key."""

from typing import Final, NewType

TopicId = NewType("TopicId", bytes)
"""A topic's UUID, 16 bytes, as on the wire. Never reused, also when a topic of that name is."""

TopicKey = NewType("TopicKey", int)
"""A small number that the state machine gives to a topic when it is created; never reused."""

PartitionKey = NewType("PartitionKey", int)
"""`topic_key << 20 | partition`: one integer, so that it is a SQLite rowid and a cheap dict key."""

AgentId = NewType("AgentId", int)
"""int32, what Kafka's clients see as the node id."""

PARTITION_BITS: Final = 20
REPLICATION_FACTOR_MAX: Final = (1 << 15) - 1
"""Kafka's requests hold it in 16 bits."""
PARTITION_COUNT_MAX: Final = (1 << PARTITION_BITS) - 1


def partition_key(topic_key: TopicKey, partition: int) -> PartitionKey:
    """Pack a topic key and a partition number into one integer."""
    assert 0 <= partition <= PARTITION_COUNT_MAX
    return PartitionKey(topic_key << PARTITION_BITS | partition)


def topic_key_of(key: PartitionKey) -> TopicKey:
    """The topic key inside a partition key."""
    return TopicKey(key >> PARTITION_BITS)


def partition_of(key: PartitionKey) -> int:
    """The partition number inside a partition key."""
    return key & PARTITION_COUNT_MAX
