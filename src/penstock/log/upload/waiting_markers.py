"""Markers that no uploader takes along are put into segments at intervals.

An uploader copies markers with the runs of its WAL (`penstock.log.upload.uploader`). Where records
go to objects at once there is no such run, and where the last records of a partition were moved
before their transaction ended none comes by.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from penstock.log.upload.moved_segments import MARKERS_MAX, MovedSegments
from penstock.log.upload.plan import PartitionMove, partition_move
from penstock.log.upload.segments import segment_run
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.segment import BuiltSegment, build_segment
from penstock.state.read.queries import Queries, StoredRun
from penstock.state.read.view import StateView
from penstock.state.transactions import marker_bytes


class WaitingMarkers:
    """Makes one pass each time that `run_once` is called. Event loop only.

    Args:
        queries: find everything that was applied before the call; used on threads of `pool`.
        may_propose: returns whether this agent does the work for which one agent is enough.
    """

    def __init__(
        self,
        *,
        queries: Callable[[], Queries],
        view: StateView,
        segments: MovedSegments,
        pool: Executor,
        may_propose: Callable[[], bool],
    ) -> None:
        self._queries = queries
        self._view = view
        self._segments = segments
        self._pool = pool
        self._may_propose = may_propose

    async def run_once(self) -> int:
        """Move the markers that have no run in a WAL before them; returns how many.

        Raises:
            PenstockError: to be tried again at the next pass.
        """
        loop = asyncio.get_running_loop()
        moved = 0
        after = (-1, -1)
        while self._may_propose():
            page = await loop.run_in_executor(self._pool, self._page, after)
            if not page:
                break
            last = page[-1]
            after = (last.partition_key, last.base_offset)
            places = {}
            for run in page:
                topic = self._view.topic_by_key(topic_key_of(run.partition_key))
                if topic is not None:
                    number = partition_of(run.partition_key)
                    places[run.partition_key] = (bytes(topic.topic_id), number)
            moves = await loop.run_in_executor(self._pool, self._plan, page, places)
            if moves:
                segment = await loop.run_in_executor(self._pool, _build, moves, places)
                await self._segments.store(moves, segment)
                moved += sum(len(move.runs) for move in moves)
        return moved

    def _page(self, after: tuple[int, int]) -> list[StoredRun]:
        return self._queries().markers_page(after, limit=MARKERS_MAX)

    def _plan(
        self, page: list[StoredRun], places: dict[PartitionKey, tuple[bytes, int]]
    ) -> list[PartitionMove]:
        """Return what of a page is to be moved, sorted as a segment is."""
        by_partition: dict[PartitionKey, list[StoredRun]] = {}
        for run in page:
            if run.partition_key in places:
                by_partition.setdefault(run.partition_key, []).append(run)
        queries = self._queries()
        moves = []
        for key in sorted(by_partition, key=places.__getitem__):
            first = queries.first_offset_in_a_wal(key)
            runs = [run for run in by_partition[key] if first is None or run.base_offset < first]
            if runs:
                moves.append(partition_move(runs))
        return moves


def _build(
    moves: list[PartitionMove], places: dict[PartitionKey, tuple[bytes, int]]
) -> BuiltSegment:
    return build_segment(
        [
            segment_run(places[move.partition_key], move, [marker_bytes(run) for run in move.runs])
            for move in moves
        ]
    )
