"""Joining runs: an item's batches copied as bytes into one run per partition, in one object.
Pure.

Nothing is decoded, but where small batches are merged, and no offset changes. Only bytes that a run
names are read, so what no run names (repeats of producers that sent twice, what was refused, what
was trimmed) stays behind.
Transactions: the batches of an aborted one would be left out here, in `_kept_from`'s place.
"""

from collections.abc import Callable, Iterator
from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.pipeline.api_messages import OutputObject, ReplacedPartition
from penstock.pipeline.compaction.items import ItemDone, ItemPartition, ItemStore, JoinItem
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_END
from penstock.records.sums import partition_seed, run_sum
from penstock.segment import RunDescriber, SegmentRun, build_segment

OPERATION: Final = "compact"
_INPUT_FIELDS: Final = 5


class Arena:
    """Memory that one item after the other is laid out in. One thread.

    Memory that is new each time costs more than all else that is done to its bytes, since the
    kernel clears each page of it at the first touch.
    """

    def __init__(self) -> None:
        self._memory = bytearray()

    def take(self, size_bytes: int) -> memoryview:
        """So many writable bytes, until the next call."""
        if len(self._memory) < size_bytes:
            self._memory = bytearray()  # let go of before there is a longer one
            self._memory = bytearray(size_bytes)
        return memoryview(self._memory)[:size_bytes]


Merge = Callable[[JoinItem, ItemPartition, memoryview], tuple[SegmentRun, int]]
"""Merges the batches of one partition instead (`penstock.pipeline.compaction.merge`): its run, and
how many batches became part of a larger one."""


def join_runs(
    item: JoinItem, store: ItemStore, arena: Arena | None = None, merge: Merge | None = None
) -> ItemDone:
    """Run an item: read, check, and put one object.

    Takes about the item's size in memory, since an object's size must be known when it is put.

    Args:
        arena: used again for one item after the other.
        merge: what merges batches, of partitions that want it; None: they are copied.

    Raises:
        NotFoundError: an input is gone.
        RetryableError: the store is away.
        CorruptDataError: a CRC differs, or the batches of a run aren't those that the journal
            names. The inputs stay as they are.
    """
    space = (arena or Arena()).take(item.size_bytes)
    _read(item, store, space)
    runs: list[SegmentRun] = []
    merged: list[int] = []
    at = 0
    for partition in item.partitions:
        end = at + partition.size_bytes
        if merge is not None and partition.merging is not None:
            run, count = merge(item, partition, space[at:end])
        else:
            run, count = join_partition(item, partition, space[at:end]), 0
        runs.append(run)
        merged.append(count)
        at = end
    segment = build_segment(runs)
    key = store.put(segment.parts)
    return ItemDone(
        input_keys=[each.key for each in item.objects],
        objects=[OutputObject(key=key, size_bytes=segment.size_bytes)],
        partitions=[
            ReplacedPartition(
                topic_id=partition.topic_id,
                partition=partition.partition,
                inputs=partition.inputs,
                outputs=output_row(run, position=position),
                sums=[run.sum],
                merged=count > 0,
            )
            for partition, run, count, position in zip(
                item.partitions, runs, merged, segment.positions, strict=True
            )
        ],
        read_bytes=item.size_bytes,
        written_bytes=segment.size_bytes,
        batches=sum(run.batch_count for run in runs),
        merged_batches=sum(merged),
    )


def output_row(run: SegmentRun, *, position: int, object_index: int = 0) -> list[int]:
    """Return a run's row for `ReplacedPartition.outputs`."""
    return [
        run.base_offset,
        run.end_offset,
        object_index,
        position,
        run.length,
        run.max_timestamp,
        run.batch_count,
    ]


def _read(item: JoinItem, store: ItemStore, space: memoryview) -> None:
    """Fill `space` with the bytes of all runs, in the item's order."""
    ranges: list[tuple[str, int, int, str]] = []
    for partition in item.partitions:
        for _, _, index, position, length in rows_of(partition):
            source = item.objects[index]
            ranges.append((source.key, position, position + length, source.origin))
    store.read_into(space, ranges)


def rows_of(partition: ItemPartition) -> Iterator[tuple[int, int, int, int, int]]:
    """The inputs of a partition, as `ItemPartition.inputs` has them."""
    return zip(*[iter(partition.inputs)] * _INPUT_FIELDS, strict=True)


def join_partition(item: JoinItem, partition: ItemPartition, space: memoryview) -> SegmentRun:
    """One partition's run, of the bytes of its runs one behind the other."""
    subject = f"partition {partition.partition} of topic id {partition.topic_id}"
    seed = partition_seed(bytes.fromhex(partition.topic_id), partition.partition)
    described: RunDescriber | None = None
    left = partition.run_count
    at = kept_from = 0
    for run, (base_offset, end_offset, index, _, length) in enumerate(rows_of(partition)):
        view = space[at : at + length]
        at += length
        raw, left = item.objects[index].raw, left - 1
        if described is None:
            if base_offset < partition.log_start:
                # Before anything of it is left out.
                whole = run_sum(
                    view,
                    seed,
                    base_offset=base_offset if raw else None,
                    leader_epoch=raw - 1,
                    subject=subject,
                )
                partition.check_sum(run, whole)
                view, base_offset = _kept_from(
                    view,
                    base_offset,
                    raw=bool(raw),
                    log_start=partition.log_start,
                    last=not left,
                    subject=subject,
                )
                if not view.nbytes:
                    continue
            kept_from = at - view.nbytes
            described = RunDescriber(
                base_offset=base_offset, operation=OPERATION, subject=subject, seed=seed
            )
        before = described.sum
        try:
            described.add(
                view,
                checks_crc=True,
                raw_offset=base_offset if raw else -1,
                leader_epoch=raw - 1,
            )
        except CorruptDataError as error:
            raise damaged(subject, item, base_offset, end_offset, index, error.detail) from error
        if described.end_offset != end_offset:
            detail = f"its batches end at offset {described.end_offset - 1}"
            raise damaged(subject, item, base_offset, end_offset, index, detail)
        if view.nbytes == length:
            partition.check_sum(run, described.sum - before)
    assert described is not None, "the last batch is always kept"
    return described.describe(
        bytes.fromhex(partition.topic_id), partition.partition, [space[kept_from:]]
    )


def damaged(
    subject: str, item: JoinItem, base_offset: int, end_offset: int, index: int, detail: str
) -> CorruptDataError:
    """The error for a run that isn't as the journal names it."""
    return CorruptDataError(
        OPERATION,
        f"{subject} offsets {base_offset} to {end_offset - 1} in {item.objects[index].key}",
        detail,
        "the inputs stay as they are",
    )


def _kept_from(
    view: memoryview, base_offset: int, *, raw: bool, log_start: int, last: bool, subject: str
) -> tuple[memoryview, int]:
    """Leave out the batches that lie wholly below the log's start.

    Args:
        base_offset: of the run.
        last: whether the run is the partition's last here, whose last batch stays in any case.

    Returns:
        What is left, perhaps nothing, and the offset at which it begins.
    """
    position, offset, end = 0, base_offset, view.nbytes
    while position < end:
        if end - position < HEADER_BYTES:
            raise CorruptDataError(OPERATION, subject, f"{end - position} bytes at {position}")
        fields = HEADER.unpack_from(view, position)
        size = LENGTH_END + fields[1]
        first = offset if raw else fields[0]
        following = first + fields[6] + 1
        if size < HEADER_BYTES or following <= first:
            raise CorruptDataError(OPERATION, subject, f"batch of {size} bytes at {position}")
        if following > log_start or (last and position + size >= end):
            return view[position:], first
        position += size
        offset = following
    return view[end:], offset
