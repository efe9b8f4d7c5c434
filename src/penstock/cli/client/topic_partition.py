"""The name of a partition, in whatever is asked about it."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
