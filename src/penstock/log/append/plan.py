"""Laying out one WAL frame and its `CommitRuns` from the appends that wait. Pure.

Batches of one partition become neighbours, in arrival order, so that a group commit of many
small requests makes one run per partition, not one per request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.records.batch import NewBatch
from penstock.records.sums import pack_crcs
from penstock.state.answers import BatchStatus, RunsCommitted
from penstock.state.commands import RunCommit

_STATUSES: Final = {int(status): status for status in BatchStatus}
"""Looking one up costs a fifth of `BatchStatus(...)`."""


@dataclass(slots=True)
class PartitionAppend:
    """One batch for one partition, and what became of it once its request is done.

    `base_offset` holds the first record's offset when `status` is STORED or DUPLICATE, and the
    Refusal when it is REFUSED.
    """

    partition_key: PartitionKey
    batch: NewBatch
    status: BatchStatus | None = None
    base_offset: int = -1
    error: PenstockError | None = None
    """This append's own error, when the rest of its request succeeded."""
    epoch_bits: int = 0
    """The journal has these bits above the producer's epoch: TRANSACTIONAL, ADDS_ITSELF."""


@dataclass(slots=True)
class FramePlan:
    """One frame: buffers in order, and per run its partition, its appends and where it starts."""

    buffers: list[memoryview] = field(default_factory=list)
    length: int = 0
    runs: list[tuple[PartitionKey, int, list[PartitionAppend]]] = field(default_factory=list)


def batches_length(appends: Sequence[PartitionAppend]) -> int:
    """Bytes of all batches. A loop: of one append, as most often, `sum` costs three times that."""
    length = 0
    for append in appends:
        length += append.batch.length
    return length


def plan_frame(appends: Sequence[PartitionAppend]) -> FramePlan:
    """Lay out appends, in arrival order, as one frame of one run per partition."""
    plan = FramePlan()
    if len(appends) == 1:  # the usual case of a lightly loaded server
        append = appends[0]
        plan.buffers.append(append.batch.view)
        plan.length = append.batch.length
        plan.runs.append((append.partition_key, 0, [append]))
        return plan
    by_partition: dict[PartitionKey, list[PartitionAppend]] = {}
    for append in appends:
        by_partition.setdefault(append.partition_key, []).append(append)
    for key, group in by_partition.items():
        plan.runs.append((key, plan.length, group))
        for append in group:
            plan.buffers.append(append.batch.view)
            plan.length += append.batch.length
    return plan


def run_commits(plan: FramePlan, *, position: int) -> list[RunCommit]:
    """The runs of a frame whose payload begins at byte `position` of its WAL file."""
    return [
        RunCommit(
            partition_key=key,
            position=position + start,
            batches=_describe(group),
            crcs=_crcs(group),
        )
        for key, start, group in plan.runs
    ]


def _describe(group: list[PartitionAppend]) -> list[int]:
    flat: list[int] = []
    previous = 0
    for append in group:
        batch = append.batch
        flat += (
            batch.length,
            batch.record_count,
            batch.max_timestamp - previous,
            batch.producer_id,
            batch.producer_epoch | append.epoch_bits,
            batch.base_sequence,
        )
        previous = batch.max_timestamp
    return flat


def _crcs(group: list[PartitionAppend]) -> bytes:
    if len(group) == 1:
        return group[0].batch.crc.to_bytes(4, "big")
    return pack_crcs([append.batch.crc for append in group])


def take_answer(plan: FramePlan, answer: RunsCommitted) -> None:
    """Write each batch's status and base offset into its append."""
    for (_, _, group), flat in zip(plan.runs, answer.runs, strict=True):
        for append, status, base_offset in zip(group, flat[::2], flat[1::2], strict=True):
            append.status = _STATUSES[status]
            append.base_offset = base_offset
