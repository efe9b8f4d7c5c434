"""Failed appends break off producers' sequences and connections' order. No I/O of its own. Pure.

Batches that a producer had sent after a failed batch must fail as well. A partition that does not
know the producer takes any first sequence, so a later batch would be stored, and the retry of the
failed one would be refused for ever. The failed batch is awaited until it comes again, or until the
state shows that it, or a later batch, was stored: its producer may have sent it to another agent.

A producer without an id has no sequences, and its client keeps the order of a partition by sending
failed batches again. So batches that the same connection had sent to the partition after a failed
batch, and that aren't submitted yet when the failure becomes known, fail as well. Batches that
arrive later do not fail: their client may know of the failure and have given the failed batch up.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.log.append.plan import PartitionAppend
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.state.rows import ActiveProducer
from penstock.state.sequences import SEQUENCE_COUNT, SEQUENCE_MASK

KnownProducer = Callable[[PartitionKey, int], ActiveProducer | None]
"""A function that returns the state's entry for a producer (its id) in a partition; it may lag."""

BROKEN_MAX: Final = 10_000
"""Producers of partitions whose failed batch is remembered; the oldest are forgotten."""


class _Awaited(NamedTuple):
    """From `place` on, batches with a later sequence wait for that of `sequence`."""

    place: int
    sequence: int


class _Overtaking(NamedTuple):
    """Batches at a place in (`first`, `last`] had arrived after a failed one, before it failed."""

    first: int
    last: int


class BrokenSequences:
    """Remembers failed batches and tells who stands behind one. One thread.

    Where failures become known in another order than that of the appends, each call says which
    place in that order it is about; else the defaults do. Places that are judged only rise.
    """

    def __init__(self, known: KnownProducer) -> None:
        self._known = known
        self._awaited: dict[tuple[PartitionKey, int, int], _Awaited] = {}
        """Awaited batches by partition, producer and epoch."""
        self._overtaking: dict[tuple[PartitionKey, int], _Overtaking] = {}
        """Failures by partition and connection, for batches without a producer id."""
        self._overtaking_until = 0
        """The greatest place of those."""

    def __bool__(self) -> bool:
        """Whether any batch may stand behind a failed one."""
        return bool(self._awaited or self._overtaking)

    def note(
        self,
        failed: Iterable[PartitionAppend],
        *,
        place: int = 0,
        source: int = 0,
        last_place: int = 0,
    ) -> None:
        """These batches were not stored, and won't be.

        Args:
            source: their connection; 0: none, whose batches keep no order.
            last_place: of what has arrived by now.
        """
        for append in failed:
            batch = append.batch
            if batch.producer_id < 0:
                if source and last_place > place:
                    self._note_overtaking((append.partition_key, source), place, last_place)
            else:
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

    def _note_overtaking(self, key: tuple[PartitionKey, int], place: int, last_place: int) -> None:
        known = self._overtaking.get(key)
        if known is not None:
            place, last_place = min(place, known.first), max(last_place, known.last)
        # Bounded by the appends that wait: they all go once the last of them was judged.
        self._overtaking[key] = _Overtaking(place, last_place)
        self._overtaking_until = max(self._overtaking_until, last_place)

    def is_follower(
        self, appends: Iterable[PartitionAppend], *, place: int = 1, source: int = 0
    ) -> bool:
        """Whether one of these batches, which belong together, stands behind a failed one.

        A failed batch that came again is awaited no more.
        """
        if self._overtaking and place > self._overtaking_until:
            self._overtaking.clear()
        found = False
        for append in appends:
            batch = append.batch
            if batch.producer_id < 0:
                if source and self._overtaking:
                    window = self._overtaking.get((append.partition_key, source))
                    if window is not None and window.first < place <= window.last:
                        found = True
                continue
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
            # Batches after this one get a retriable error, and so does this batch.
            return False
        if known is None or known.epoch < epoch:
            return False
        return known.epoch > epoch or not _is_before(known.last_sequence, sequence)


def follower_error() -> RetryableError:
    """Make the error of a batch that follows a failed one."""
    return RetryableError(
        "append",
        "log",
        "an earlier batch of the same producer or connection failed",
        "send both again",
    )


def _is_before(one: int, other: int) -> bool:
    """Whether a sequence is an earlier one; they wrap (`penstock.state.sequences`)."""
    return 0 < (other - one) & SEQUENCE_MASK < SEQUENCE_COUNT // 2
