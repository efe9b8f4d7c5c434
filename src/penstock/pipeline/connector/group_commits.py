"""Commits a stream's offsets to a consumer group, for tools that watch lag.

Nothing is read from there: where a query goes on is in its checkpoint. So a commit that fails is
counted and logged, and the next batch's commit takes its place.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors import NotFoundError, RetryableError
from penstock.pipeline.connector.offsets import StreamOffsets
from penstock.system.heard import Cause, heard

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

logger = logging.getLogger(__name__)

CLOSE_S: Final = 5.0
"""How long the end of a query waits for the last commit's answer."""
_SLICE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTarget:
    """`servers`: Kafka ports of agents, as `bootstrap.servers`."""

    servers: str
    group: str


class GroupCommits:
    """Commits of one query, without waiting for answers. One thread; opened by the first commit.

    Args:
        target: None: nothing is committed.
    """

    def __init__(self, target: CommitTarget | None) -> None:
        self._target = target
        self._consumer: Consumer | None = None
        self._unanswered = 0

    def commit(self, offsets: StreamOffsets) -> None:
        """Commit the next offsets to read.

        Raises:
            NotFoundError: confluent-kafka is not installed.
        """
        if self._target is None:
            return
        from confluent_kafka import KafkaException, TopicPartition

        places = [
            TopicPartition(name, partition, offset)
            for name, topic in offsets.topics.items()
            for partition, offset in topic.partitions.items()
        ]
        if not places:
            return
        consumer = self._opened(self._target)
        consumer.poll(0)
        try:
            consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            self._failed(error)
            return
        self._unanswered += 1

    def close(self) -> None:
        """Wait for the last answer, for seconds at most."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        for _ in range(round(CLOSE_S / _SLICE_S)):
            if self._unanswered <= 0:
                break
            consumer.poll(_SLICE_S)
        consumer.close()

    def _opened(self, target: CommitTarget) -> "Consumer":
        if self._consumer is None:
            from confluent_kafka import Consumer

            self._consumer = Consumer(
                {
                    "bootstrap.servers": target.servers,
                    "group.id": target.group,
                    "enable.auto.commit": False,
                    "client.id": "penstock-connector",
                    "on_commit": self._answered,
                },
                # What librdkafka says of connections would be lines of Spark's log.
                logger=_quiet(),
            )
        return self._consumer

    def _answered(self, error: Any, places: Sequence["TopicPartition"]) -> None:
        self._unanswered -= 1
        failed = error or next((place.error for place in places if place.error), None)
        if failed is not None:
            self._failed(failed)

    def _failed(self, error: Any) -> None:
        target = self._target
        assert target is not None
        heard(
            Cause.COMMIT_GROUP,
            RetryableError("commit offsets", f"group {target.group}", str(error)),
            logger,
            "the next batch's commit takes its place",
        )


def check_installed() -> None:
    """
    Raises:
        NotFoundError: confluent-kafka is not installed.
    """
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise NotFoundError(
            "commit offsets",
            "option commitGroup",
            f"it needs the package confluent-kafka: {error}",
            "pip install confluent-kafka, or leave commitGroup out",
        ) from error


def _quiet() -> logging.Logger:
    found = logging.getLogger("penstock.librdkafka")
    found.setLevel(logging.CRITICAL)
    return found


__all__ = ["CommitTarget", "GroupCommits", "check_installed"]
