"""Checking a batch on its way into the log: its header, then its records. Pure.

The one place that says what is a valid batch, for every way of appending what clients sent: the
header is `records.batch.check_batch`'s, the records are `records.walk`'s. A batch whose header has
another greatest timestamp than its records gets the right one, and a new CRC, as in Kafka: the
header's decides retention and look-ups by time.
"""

from penstock.records.batch import BatchLimits, NewBatch, set_max_timestamp
from penstock.records.walk import RecordWalk


class RecordCheck:
    """The check of one batch's records, a stretch at a time.

    Args:
        batch: what `check_batch` gave, with the same limits and time.

    Raises:
        BatchError: TOO_LARGE, as `RecordWalk`.
    """

    __slots__ = ("_stamps", "batch", "walk")

    def __init__(self, batch: NewBatch, limits: BatchLimits, now_ms: int) -> None:
        self.batch = batch
        self.walk = RecordWalk(batch.view, limits, now_ms)
        self._stamps = not limits.log_append_time

    def settle(self) -> None:
        """Set the header right where it names another greatest timestamp. Once, after the walk."""
        batch = self.batch
        if self._stamps and batch.max_timestamp != self.walk.max_timestamp:
            batch.max_timestamp = self.walk.max_timestamp
            batch.crc = set_max_timestamp(batch.view, batch.max_timestamp)
