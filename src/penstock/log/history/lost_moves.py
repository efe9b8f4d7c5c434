"""Moves out of WALs that the journal has lost: the present log names bytes in a WAL whose file may
have been used again since, and the segment that holds them is named by the lost history alone.

A run of such a segment is the present log's if runs in WALs cover the same offsets and their sums
add up to its sum (of partition, offsets, batches' CRCs and lengths). `StoreSegment` then moves them
as it would have. Blocking.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.records.sums import join_sums
from penstock.state.commands import MovedRun, StoreSegment
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import StoredRun

_PAGE_RUNS: Final = 500
_COVER_RUNS_MAX: Final = 10_000


def lost_moves(
    paths: Sequence[Path], present: Callable[[], Queries], view: StateView
) -> list[StoreSegment]:
    """The moves that lost states have seen and that still apply, one per segment."""
    moved: dict[str, dict[tuple[int, int], MovedRun]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for path in paths:
        with closing(Queries(path)) as queries:
            for target, run in _segment_runs(queries, present(), view):
                pieces = covering(present(), target, run)
                if not pieces or any(piece.object_key for piece in pieces):
                    continue
                sizes[run.object_key] = run.object_bytes
                moved[run.object_key][target, run.base_offset] = MovedRun(
                    partition_key=target,
                    position=run.position,
                    runs=[
                        number
                        for found in pieces
                        for number in (
                            found.base_offset,
                            found.generation,
                            found.position,
                            found.length,
                        )
                    ],
                )
    return [
        StoreSegment(
            object_key=key,
            object_bytes=sizes[key],
            runs=[runs[place] for place in sorted(runs)],
        )
        for key, runs in sorted(moved.items())
    ]


def _segment_runs(
    queries: Queries, present: Queries, view: StateView
) -> Iterator[tuple[PartitionKey, StoredRun]]:
    """Runs of a lost state in segments that the present one doesn't know, where the present one
    has the partition by the same key: it was there before the histories parted."""
    for topic_key, topic_id, _, partitions, *_ in queries.topic_rows():
        topic = view.topic_by_id(topic_id)
        if topic is None or topic.topic_key != topic_key:
            continue
        for number in range(min(partitions, topic.partitions)):
            key = partition_key(TopicKey(topic_key), number)
            # Of each partition the present log's WAL runs say where to begin.
            first = present.first_wal_run(key)
            if first is None:
                continue
            offset = first
            while page := queries.runs_from(key, offset, limit=_PAGE_RUNS):
                wanted = [run for run in page if run.object_key and not run.raw and not run.origin]
                known = present.known_objects([run.object_key for run in wanted])
                yield from ((key, run) for run in wanted if run.object_key not in known)
                offset = page[-1].end_offset


def covering(present: Queries, key: PartitionKey, run: StoredRun) -> list[StoredRun]:
    """The present runs that hold the same batches as one of a lost state, in pieces; none: sums
    don't show that."""
    found: list[StoredRun] = []
    offset = run.base_offset
    total: int | None = 0
    while offset < run.end_offset and len(found) < _COVER_RUNS_MAX:
        page = present.runs_from(key, offset, limit=_PAGE_RUNS)
        if not page:
            return []
        for piece in page:
            if offset == run.end_offset:
                break
            if piece.base_offset != offset or piece.end_offset > run.end_offset:
                return []
            found.append(piece)
            total = join_sums(total, piece.sum)
            offset = piece.end_offset
    is_same = (
        offset == run.end_offset
        and total is not None
        and total == run.sum
        and sum(piece.length for piece in found) == run.length
    )
    return found if is_same else []
