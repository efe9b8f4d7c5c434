"""Joining runs: an item's batches copied as bytes into one run per partition, in one object.

Nothing is decoded and no offset changes. Only bytes that a run names are read, so what no run
names (repeats of producers that sent twice, what was refused, what was trimmed) stays behind.
Transactions: the batches of an aborted one would be left out here, in `_kept_from`'s place.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from typing_extensions import Buffer

from penstock.lake.compaction.items import ItemDone, ItemPartition, ItemStore, JoinItem
from penstock.lake.door import OutputObject, ReplacedPartition
from penstock.model.errors import CorruptDataError
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_END
from penstock.segment import RunDescriber, SegmentRun, build_segment

_OPERATION: Final = "compact"
_INPUT_FIELDS: Final = 5
READ_BYTES: Final = 64 << 20
"""Runs are asked for in lots of about so many bytes: a store reads several at once, and what lies
together, as neighbouring partitions do, by one request."""
READ_COUNT: Final = 4096


def join_runs(item: JoinItem, store: ItemStore) -> ItemDone:
    """Run an item: read, check, and put one object.

    Takes about the item's size and READ_BYTES in memory, since an object's size must be known when
    it is put.

    Raises:
        NotFoundError: an input is gone.
        RetryableError: the store is away.
        CorruptDataError: a CRC differs, or the batches of a run aren't those that the journal
            names. The inputs stay as they are.
    """
    bodies = _bodies(item, store)
    runs: list[SegmentRun] = []
    for partition in item.partitions:
        described = _join(item, partition, bodies)
        runs.append(described.describe(bytes.fromhex(partition.topic_id), partition.partition))
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
            )
            for partition, run, position in zip(
                item.partitions, runs, segment.positions, strict=True
            )
        ],
        read_bytes=item.size_bytes,
        written_bytes=segment.size_bytes,
        batches=sum(run.batch_count for run in runs),
    )


def output_row(run: SegmentRun, *, position: int, object_index: int = 0) -> list[int]:
    """What `ReplacedPartition.outputs` says of a run."""
    return [
        run.base_offset,
        run.end_offset,
        object_index,
        position,
        run.length,
        run.max_timestamp,
        run.batch_count,
    ]


def _join(item: JoinItem, partition: ItemPartition, bodies: Iterator[memoryview]) -> RunDescriber:
    subject = f"partition {partition.partition} of topic id {partition.topic_id}"
    described: RunDescriber | None = None
    rows = zip(*[iter(partition.inputs)] * _INPUT_FIELDS, strict=True)
    left = partition.run_count
    for base_offset, end_offset, index, _, _ in rows:
        view = next(bodies)
        raw, left = item.objects[index].raw, left - 1
        if described is None:
            if base_offset < partition.log_start:
                view, base_offset = _kept_from(
                    view,
                    base_offset,
                    raw=raw,
                    log_start=partition.log_start,
                    last=not left,
                    subject=subject,
                )
                if not view.nbytes:
                    continue
            described = RunDescriber(base_offset=base_offset, operation=_OPERATION, subject=subject)
        described.add(view, checks_crc=True, raw_offset=base_offset if raw else -1)
        if described.end_offset != end_offset:
            raise CorruptDataError(
                _OPERATION,
                subject,
                f"batches up to offset {described.end_offset - 1} in a run that ends at "
                f"{end_offset - 1}",
            )
    assert described is not None, "the last batch is always kept"
    return described


def _bodies(item: JoinItem, store: ItemStore) -> Iterator[memoryview]:
    """The bytes of all runs, in the item's order; writable where offsets are written into them."""
    ranges: list[tuple[str, int, int, str]] = []
    raws: list[bool] = []
    size = 0
    for partition in item.partitions:
        rows = zip(*[iter(partition.inputs)] * _INPUT_FIELDS, strict=True)
        for _, _, index, position, length in rows:
            if size + length > READ_BYTES or len(ranges) >= READ_COUNT:
                yield from _read(store, ranges, raws)
                ranges, raws, size = [], [], 0
            source = item.objects[index]
            ranges.append((source.key, position, position + length, source.origin))
            raws.append(source.raw)
            size += length
    yield from _read(store, ranges, raws)


def _read(
    store: ItemStore, ranges: Sequence[tuple[str, int, int, str]], raws: Sequence[bool]
) -> Iterator[memoryview]:
    if not ranges:
        return
    bodies: Sequence[Buffer] = store.get_ranges(ranges)
    for (key, start, end, _), raw, body in zip(ranges, raws, bodies, strict=True):
        view = memoryview(body)
        if view.nbytes != end - start:
            raise CorruptDataError(
                _OPERATION, key, f"{view.nbytes} bytes at {start}, {end - start} are named"
            )
        yield memoryview(bytearray(view)) if raw and view.readonly else view


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
            raise CorruptDataError(_OPERATION, subject, f"{end - position} bytes at {position}")
        fields = HEADER.unpack_from(view, position)
        size = LENGTH_END + fields[1]
        first = offset if raw else fields[0]
        following = first + fields[6] + 1
        if size < HEADER_BYTES or following <= first:
            raise CorruptDataError(_OPERATION, subject, f"batch of {size} bytes at {position}")
        if following > log_start or (last and position + size >= end):
            return view[position:], first
        position += size
        offset = following
    return view[end:], offset
