"""Records that a read wanted and that are gone are an error, or are counted and reported."""

import logging
from typing import Final

from penstock.model.errors import NotFoundError
from penstock.pipeline.ranges import LogTruncatedError

logger: Final = logging.getLogger(__name__)

_HINT: Final = "retention or DeleteRecords was faster: failOnDataLoss=false goes on without them"


class Losses:
    """The losses that one planning or one task found.

    Args:
        allowed: failOnDataLoss=false: go on and count. Otherwise the first loss is an error.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self.records: dict[str, int] = {}
        """Per topic, how many offsets were skipped."""

    def truncated(self, topic: str, partition: int, *, wanted: int, available: int) -> None:
        """Records [wanted, available) of a partition are gone.

        Raises:
            LogTruncatedError: losses aren't allowed.
        """
        if not self._allowed:
            raise LogTruncatedError(topic, partition, wanted, available, _HINT)
        self.records[topic] = self.records.get(topic, 0) + available - wanted
        logger.warning(
            "%s-%d: %d records from offset %d on are gone; going on at %d",
            topic,
            partition,
            available - wanted,
            wanted,
            available,
        )

    def deleted(self, topic: str) -> None:
        """Note that a topic that is being read was deleted; its number of records is unknown.

        Raises:
            NotFoundError: losses aren't allowed.
        """
        if not self._allowed:
            raise NotFoundError(
                "read",
                f"topic {topic!r}",
                "was deleted while it was being read",
                "failOnDataLoss=false goes on without it",
            )
        logger.warning("topic %s was deleted; going on without it", topic)
