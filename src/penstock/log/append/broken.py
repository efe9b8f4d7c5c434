"""Where failed appends broke off their producers' sequences. No I/O of its own.

What a producer had sent behind a failed batch must fail as well: a partition that does not know
the producer takes any first sequence, so a later one would be stored, and the failed one's retry
would be refused for ever. The failed batch is awaited until it comes again, or until the state says
that it, or one behind it, was stored: its producer may have sent it to another agent.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.log.append.plan import PartitionAppend
from penstock.metadata.rows import ActiveProducer
from penstock.metadata.sequences import SEQUENCE_COUNT, SEQUENCE_MASK
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import PartitionKey

KnownProducer = Callable[[PartitionKey, int], ActiveProducer | None]
"""What the state has of a producer (its id) in a partition; it may be late."""

BROKEN_MAX: Final = 10_000
"""Producers of partitions whose failed batch is remembered; the oldest are forgotten."""


class _Awaited(NamedTuple):
    """From `place` on, batches with a later sequence wait for that of `sequence`."""

    place: int
    sequence: int


class BrokenSequences:
    """Remembers failed batches and tells who stands behind one. One thread.

    Where failures become known in another order than that of the appends, each call says which
    place in that order it is about; else the defaults do.
    """

    def __init__(self, known: KnownProducer) -> None:
        self._known = known
        self._awaited: dict[tuple[PartitionKey, int, int], _Awaited] = {}
        """By partition, producer and epoch."""

    def __bool__(self) -> bool:
        """Whether any failed batch is awaited."""
        return bool(self._awaited)

    def note(self, failed: Iterable[PartitionAppend], *, place: int = 0) -> None:
        """These batches were not stored, and won't be."""
        for append in failed:
            batch = append.batch
            if batch.producer_id >= 0:
                key = (append.partition_key, batch.producer_id, batch.producer_epoch)
                sequence = batch.base_sequence
                known = self._awaited.get(key)
                if known is not None:
                    # Each by itself: a retry of the earliest fails at a later place than others.
                    place = min(place, known.place)
                    if not _is_before(sequence, known.sequence):
                        sequence = known.sequence
                self._awaited[key] = _Awaited(place, sequence)
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
            if awaited is None or place < awaited.place:
                continue
            is_behind = _is_before(awaited.sequence, batch.base_sequence)
            if awaited.sequence == batch.base_sequence or (
                is_behind and self._is_over(*key, awaited.sequence)
            ):
                del self._awaited[key]
            elif is_behind:
                found = True
        return found

    def _is_over(self, key: PartitionKey, producer_id: int, epoch: int, sequence: int) -> bool:
        """Whether the state is past the batch that is awaited."""
        try:
            known = self._known(key, producer_id)
        except PenstockError:
            # Who stands behind it is told to try again, and so is this.
            return False
        if known is None or known.epoch < epoch:
            return False
        return known.epoch > epoch or not _is_before(known.last_sequence, sequence)


def follower_error() -> RetryableError:
    """What a batch behind a failed one is answered with."""
    return RetryableError(
        "append", "log", "an earlier batch of the same producer failed", "send both again"
    )


def _is_before(one: int, other: int) -> bool:
    """Whether a sequence is an earlier one; they wrap (`penstock.metadata.sequences`)."""
    return 0 < (other - one) & SEQUENCE_MASK < SEQUENCE_COUNT // 2
