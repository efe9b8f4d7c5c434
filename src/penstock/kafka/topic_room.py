"""Topics and partitions are limited: those that one request creates, and those of the cluster.

The cluster's limits are looked at twice, never in apply, so that they can be other on each agent
and need no feature level: when a request is planned, for each of its topics, and just before its
commands are sent (`Creations`), for all of them. The second look counts what other requests of this
agent have sent and the view does not show yet, so one agent never goes above a limit by itself.
What other agents have on its way at that moment is not known here. Each sends the partitions of one
request at most at a time, so n agents together go above a limit by (n - 1) x
`create_partitions_max` at most.

`create_partitions_max` is Kafka's MAX_PARTITIONS_PER_BATCH of a CreateTopics request, 10,000
(ReplicationControlManager.validateTotalNumberOfPartitions of Kafka 4). Kafka has no limit of the
cluster: operators set a create.topic.policy.class.name, whose refusal is the same error.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.kafka.settings import KafkaSettings
from penstock.state.commands import AnyCommand, CreatePartitions, CreateTopic
from penstock.state.read.view import StateView


class TopicRoom:
    """The room of one request for new topics and partitions.

    Args:
        topics, partitions: the numbers that other requests are creating now.
    """

    __slots__ = ("_asked", "_partitions", "_settings", "_topics")

    def __init__(
        self,
        view: StateView,
        settings: KafkaSettings,
        *,
        topics: int = 0,
        partitions: int = 0,
    ) -> None:
        self._settings = settings
        self._topics = len(view.topics()) + topics
        self._partitions = view.partition_count + partitions
        self._asked = 0

    def take(self, partitions: int, *, topics: int) -> None:
        """Count what will be created.

        Raises:
            ItemError: POLICY_VIOLATION.
        """
        settings = self._settings
        check_request(self._asked + partitions, settings)
        if self._topics + topics > settings.topics_max:
            raise ItemError(
                ErrorCode.POLICY_VIOLATION,
                f"the cluster has {self._topics} topics with those that are being created, "
                f"topics_max = {settings.topics_max}",
            )
        if self._partitions + partitions > settings.partitions_max:
            raise ItemError(
                ErrorCode.POLICY_VIOLATION,
                f"{partitions} partitions asked for, the cluster has {self._partitions} with those "
                f"that are being created, partitions_max = {settings.partitions_max}",
            )
        self._topics += topics
        self._partitions += partitions
        self._asked += partitions


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


class Creations:
    """The topics and partitions that requests of this agent have sent to the journal and that are
    not answered yet: those of one long request, or of several short ones. Event loop only."""

    __slots__ = ("_answered", "_partitions", "_settings", "_topics", "_turn", "_view")

    def __init__(self, view: StateView, settings: KafkaSettings) -> None:
        self._view = view
        self._settings = settings
        self._topics = self._partitions = 0
        # Held by the request that waits for room, so that short ones don't pass it for ever.
        self._turn = asyncio.Lock()
        self._answered = asyncio.Event()

    @asynccontextmanager
    async def sending(self, commands: Iterable[AnyCommand]) -> AsyncIterator[None]:
        """Wait until there is room next to earlier requests, look at the limits again, and count
        what the commands create until the block ends.

        A block that ends without an answer ends the count, too, although its commands may still be
        applied: one more request per such answer may go above the limits.

        Raises:
            ItemError: POLICY_VIOLATION of all the commands; none must be sent.
        """
        topics, partitions = self._created(commands)
        if not partitions:
            yield
            return
        most = self._settings.create_partitions_max
        async with self._turn:
            while self._partitions and self._partitions + partitions > most:
                self._answered.clear()
                await self._answered.wait()
            room = TopicRoom(
                self._view, self._settings, topics=self._topics, partitions=self._partitions
            )
            room.take(partitions, topics=topics)
            self._topics += topics
            self._partitions += partitions
        try:
            yield
        finally:
            self._topics -= topics
            self._partitions -= partitions
            self._answered.set()

    def _created(self, commands: Iterable[AnyCommand]) -> tuple[int, int]:
        topics = partitions = 0
        for command in commands:
            if isinstance(command, CreateTopic):
                topics += 1
                partitions += command.partitions
            elif isinstance(command, CreatePartitions):
                topic = self._view.topic_by_id(command.topic_id)
                has = 0 if topic is None else topic.partitions
                partitions += max(0, command.partitions - has)
        return topics, partitions
