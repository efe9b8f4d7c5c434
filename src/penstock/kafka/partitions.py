"""Partitions as requests name them, turned into keys of the log."""

from typing import TYPE_CHECKING, Final

from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import Outcome
from penstock.model.ids import PartitionKey, partition_key

if TYPE_CHECKING:
    from penstock.state.read.view import StateView

NO_LEADER_EPOCH: Final = -1
"""The leader epoch of a client that knows none."""
UNKNOWN_PARTITION: Final = Outcome(
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic or the partition does not exist"
)


def find_partition(view: "StateView", topic_name: str, partition: int) -> PartitionKey | None:
    """The partition's key; None when there is no such topic or partition."""
    topic = view.topic(topic_name)
    if topic is None or not 0 <= partition < topic.partitions:
        return None
    return partition_key(topic.topic_key, partition)


def leader_epoch_error(asked: int, current: int) -> ErrorCode:
    """Compare the leader epoch that a client knows with the broker's (KIP-320).

    Args:
        asked: the client's; negative when it knows none.
        current: the broker's.
    """
    if asked < 0 or asked == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH
