"""Look up partitions in the view: their offsets, their topics, their names for people. Pure."""

from penstock.model.errors import NotFoundError
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.state.read.view import Head, StateView


class Partitions:
    """The partitions of a log, as the view has them. Event loop only."""

    def __init__(self, view: StateView) -> None:
        self._view = view

    def high_watermark(self, key: PartitionKey) -> int:
        """Return the offset after the last record. Raises: NotFoundError."""
        return self._head(key).next_offset

    def last_stable_offset(self, key: PartitionKey) -> int:
        """Return the offset below which every transaction has ended. Raises: NotFoundError."""
        return self._head(key).last_stable

    def log_start(self, key: PartitionKey) -> int:
        """Return the first offset that may be read. Raises: NotFoundError."""
        return self._head(key).log_start

    def known_log_start(self, key: PartitionKey) -> int | None:
        """Return the first offset that may be read; None: there is no such partition."""
        head = self._view.head(key)
        return None if head is None else head.log_start

    def topic_id_of(self, key: PartitionKey) -> bytes | None:
        """Return the id of a partition's topic; None: it is gone."""
        topic = self._view.topic_by_key(topic_key_of(key))
        return None if topic is None else bytes(topic.topic_id)

    def name(self, key: PartitionKey) -> str:
        """Return a partition's name for people, such as `flights-3`."""
        topic = self._view.topic_by_key(topic_key_of(key))
        name = "(a deleted topic)" if topic is None else topic.name
        return f"{name}-{partition_of(key)}"

    def _head(self, key: PartitionKey) -> Head:
        head = self._view.head(key)
        if head is None:
            raise NotFoundError("look up", f"partition key {key}", "no such partition")
        return head
