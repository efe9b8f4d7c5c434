"""A segment that takes runs out of a WAL, or markers out of their rows, is put and then named."""

from collections.abc import Sequence
from typing import Final

from penstock.log.numbered_put import put_numbered
from penstock.log.numbers import ObjectNumbers
from penstock.log.upload.plan import PartitionMove, moved_runs
from penstock.model.errors import RetryableError
from penstock.ports.objects import ObjectStore
from penstock.segment import BuiltSegment
from penstock.state.answers import Refused, SegmentStored
from penstock.state.commands import StoreSegment
from penstock.state.order_types import Committer

MARKERS_MAX: Final = 20_000
"""Markers that one segment takes: 1.6 MB. The others wait for the next."""


class MovedSegments:
    """Stores built segments under an agent's numbers. Event loop only."""

    def __init__(self, *, store: ObjectStore, numbers: ObjectNumbers, committer: Committer) -> None:
        self._store = store
        self._numbers = numbers
        self._committer = committer

    async def store(self, moves: Sequence[PartitionMove], segment: BuiltSegment) -> None:
        """Put a segment that was built of moves, and journal where their runs lie now.

        Raises:
            PenstockError: as the store's or the order's. What was put and not named is an orphan.
        """
        number = await put_numbered(self._store, self._numbers, list(segment.parts))
        key = self._numbers.key(number)
        command = StoreSegment(
            object_key=key,
            object_bytes=segment.size_bytes,
            runs=moved_runs(moves, segment.positions),
        )
        is_named = False
        try:
            (answer,) = await self._committer.commit([command])
            if isinstance(answer, Refused):
                raise RetryableError("store segment", key, f"{answer.reason.name}: {answer.detail}")
            is_named = True
        finally:
            self._numbers.end(number, named=is_named)
        assert isinstance(answer, SegmentStored), answer
