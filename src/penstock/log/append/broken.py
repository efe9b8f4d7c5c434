"""Where failed appends broke off their producers' sequences. Pure.

What a producer had sent behind a failed batch must fail as well: a partition that does not know
the producer takes any first sequence, so a later one would be stored, and the failed one's retry
would be refused for ever.
"""

from collections.abc import Iterable
from typing import Final

from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import RetryableError

BROKEN_MAX: Final = 10_000
"""Producers of partitions whose failed batch is remembered; the oldest are forgotten."""


class BrokenSequences:
    """Remembers failed batches and tells who stands behind one. One thread.

    Where failures become known in another order than that of the appends, each call says which
    place in that order it is about; else the defaults do.
    """

    def __init__(self) -> None:
        self._awaited: dict[tuple[int, int, int], tuple[int, int]] = {}
        """(partition, producer, epoch) -> place and sequence of the batch that failed and is
        awaited."""

    def __bool__(self) -> bool:
        """Whether any failed batch is awaited."""
        return bool(self._awaited)

    def note(self, failed: Iterable[PartitionAppend], *, place: int = 0) -> None:
        """These batches were not stored, and won't be."""
        for append in failed:
            batch = append.batch
            if batch.producer_id >= 0:
                key = (append.partition_key, batch.producer_id, batch.producer_epoch)
                known = self._awaited.get(key)
                if known is None or place < known[0]:
                    self._awaited[key] = (place, batch.base_sequence)
        while len(self._awaited) > BROKEN_MAX:
            del self._awaited[next(iter(self._awaited))]

    def is_follower(self, appends: Iterable[PartitionAppend], *, place: int = 1) -> bool:
        """Whether one of these batches, which belong together, stands behind a failed one.

        A failed batch that came again is awaited no more.
        """
        found = False
        for append in appends:
            batch = append.batch
            key = (append.partition_key, batch.producer_id, batch.producer_epoch)
            awaited = self._awaited.get(key)
            if awaited is None or place < awaited[0]:
                continue
            if awaited[1] == batch.base_sequence:
                del self._awaited[key]
            else:
                found = True
        return found


def follower_error() -> RetryableError:
    """What a batch behind a failed one is answered with."""
    return RetryableError(
        "append", "log", "an earlier batch of the same producer failed", "send both again"
    )
