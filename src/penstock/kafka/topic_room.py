"""How many more topics and partitions there may be: of one request, and in the cluster. Pure.

The cluster's limits are looked at where a request is planned, not where its entry is applied: what
is under way in other agents at that moment may go above them by as much.

`create_partitions_max` is Kafka's MAX_PARTITIONS_PER_BATCH of a CreateTopics request, 10,000
(ReplicationControlManager.validateTotalNumberOfPartitions of Kafka 4). Kafka has no limit of the
cluster: operators set a create.topic.policy.class.name, whose refusal is the same error.
"""

from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.kafka.settings import KafkaSettings
from penstock.metadata.view import MetadataView


class TopicRoom:
    """What one request may still create."""

    __slots__ = ("_partitions", "_settings", "_topics")

    def __init__(self, view: MetadataView, settings: KafkaSettings) -> None:
        self._settings = settings
        self._topics = len(view.topics())
        self._partitions = view.partition_count

    def take(self, partitions: int, *, topics: int) -> None:
        """Count what will be created.

        Raises:
            ItemError: POLICY_VIOLATION.
        """
        settings = self._settings
        if self._topics + topics > settings.topics_max:
            raise ItemError(
                ErrorCode.POLICY_VIOLATION,
                f"the cluster has {self._topics} topics with those that this request creates, "
                f"topics_max = {settings.topics_max}",
            )
        if self._partitions + partitions > settings.partitions_max:
            raise ItemError(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions} partitions asked for, the cluster has {self._partitions} with those "
                f"that this request creates, partitions_max = {settings.partitions_max}",
            )
        self._topics += topics
        self._partitions += partitions


def check_request(partitions: int, settings: KafkaSettings) -> None:
    """Check how many partitions one request asks for, all its topics together.

    Raises:
        ItemError: POLICY_VIOLATION, of each of its topics.
    """
    if partitions > settings.create_partitions_max:
        raise ItemError(
            ErrorCode.POLICY_VIOLATION,
            f"the request asks for {partitions} partitions, all its topics together, "
            f"create_partitions_max = {settings.create_partitions_max}: ask in several requests",
        )
