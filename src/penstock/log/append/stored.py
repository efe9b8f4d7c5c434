"""A flush's durable bytes, and the command that names them. Pure.

Bytes are made durable before it is known which batches may be committed. Batches that by then
follow a failed batch are left out of the command, and no command names their bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.log.append.plan import FramePlan, PartitionAppend, run_commits
from penstock.model.ids import PartitionKey
from penstock.segment import BuiltSegment, Mark, SegmentRun, build_segment
from penstock.state.commands import CommitRuns
from penstock.state.rows import GENERATION_MASK

MARK_BYTES: Final = 64 * 1024
"""Marks of a raw segment stand as far apart as those of a final one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Durable bytes of a flush. `runs`: per run its partition, byte position in the file or
    object, and appends in order.

    `wal` (key << 32 | generation) or `object_key` says where. `number` is the object's.
    """

    runs: Sequence[tuple[PartitionKey, int, Sequence[PartitionAppend]]]
    wal: int = 0
    object_key: str = ""
    object_bytes: int = 0
    number: int = 0

    @property
    def file_generation(self) -> int:
        """The generation of the WAL file, without the WAL's key."""
        return self.wal & GENERATION_MASK


def plan_commit(
    stored: Stored, is_refused: Callable[[PartitionAppend], bool] | None = None
) -> tuple[FramePlan, CommitRuns]:
    """The command that names the bytes, and the plan to take its answer with.

    Args:
        is_refused: which appends are left out; None: none is.
    """
    plan = FramePlan()
    for key, position, appends in stored.runs:
        if is_refused is None:
            plan.runs.append((key, position, list(appends)))
            continue
        # A run has no holes, so that what is left out ends one and another begins behind it.
        going: list[PartitionAppend] = []
        start = position
        for append in appends:
            position += append.batch.length
            if is_refused(append):
                if going:
                    plan.runs.append((key, start, going))
                going, start = [], position
            else:
                going.append(append)
        if going:
            plan.runs.append((key, start, going))
    return plan, CommitRuns(
        runs=run_commits(plan, position=0),
        wal=stored.wal,
        object_key=stored.object_key,
        object_bytes=stored.object_bytes,
        raw=bool(stored.object_key),
    )


def build_raw_segment(
    runs: Sequence[tuple[tuple[bytes, int], Sequence[PartitionAppend]]],
) -> BuiltSegment:
    """A segment whose base offsets aren't final: each run's count from 0 in the index.

    Args:
        runs: (topic id, partition) and appends, sorted by the former.
    """
    return build_segment(
        [_raw_run(topic_id, partition, appends) for (topic_id, partition), appends in runs],
        offsets_final=False,
    )


def _raw_run(topic_id: bytes, partition: int, appends: Sequence[PartitionAppend]) -> SegmentRun:
    marks: list[Mark] = []
    position = record_count = 0
    marked, newest = -MARK_BYTES, -1
    for append in appends:
        batch = append.batch
        if position - marked >= MARK_BYTES:
            marked = position
            marks.append(Mark(base_offset=record_count, position=position, max_timestamp=newest))
        newest = max(newest, batch.max_timestamp)
        record_count += batch.record_count
        position += batch.length
    return SegmentRun(
        topic_id=topic_id,
        partition=partition,
        base_offset=0,
        end_offset=record_count,
        record_count=record_count,
        batch_count=len(appends),
        max_timestamp=newest,
        parts=[append.batch.view for append in appends],
        length=position,
        marks=marks,
    )
