"""A cleaning by key writes its result one run, and one object, after the other. Pure."""

from struct import Struct
from typing import Final

from penstock.pipeline.api_messages import OutputObject, ReplacedPartition
from penstock.pipeline.compaction.items import ItemDone, ItemStore, KeyedItem
from penstock.pipeline.compaction.join import output_row
from penstock.records.sums import partition_seed
from penstock.segment import RunDescriber, build_segment

_OPERATION: Final = "compact"
_OFFSET: Final = Struct(">q")


class Output:
    """The records that stay, one run and one object after the other."""

    def __init__(self, item: KeyedItem, store: ItemStore, subject: str) -> None:
        self._item = item
        self._store = store
        self._subject = subject
        self._describer: RunDescriber | None = None
        self._objects: list[OutputObject] = []
        self._rows: list[int] = []
        self._sums: list[int] = []
        self._seed = partition_seed(
            bytes.fromhex(item.partition.topic_id), item.partition.partition
        )
        self._batches = 0
        self.dropped_records = 0

    def add(self, batches: bytes) -> None:
        """Whole batches, in offset order."""
        if not batches:
            return
        if self._describer is None:
            self._describer = RunDescriber(
                base_offset=_OFFSET.unpack_from(batches)[0],
                operation=_OPERATION,
                subject=self._subject,
                seed=self._seed,
            )
        self._describer.add(memoryview(batches))
        if self._describer.length >= self._item.run_bytes_target:
            self._put(self._describer)

    def done(self, *, read_bytes: int, clean_end: int, markers: list[int]) -> ItemDone:
        """All that was put. `markers`: of aborts, which are gone."""
        if self._describer is not None:
            self._put(self._describer)
        item = self._item
        assert self._rows, "the last batch is always kept"
        return ItemDone(
            input_keys=[each.key for each in item.objects],
            objects=self._objects,
            partitions=[
                ReplacedPartition(
                    topic_id=item.partition.topic_id,
                    partition=item.partition.partition,
                    inputs=item.partition.inputs,
                    outputs=self._rows,
                    clean_end=clean_end,
                    sums=self._sums,
                    markers=markers,
                )
            ],
            read_bytes=read_bytes,
            written_bytes=sum(each.size_bytes for each in self._objects),
            batches=self._batches,
            dropped_records=self.dropped_records,
        )

    def _put(self, describer: RunDescriber) -> None:
        partition = self._item.partition
        run = describer.describe(bytes.fromhex(partition.topic_id), partition.partition)
        segment = build_segment([run])
        key = self._store.put(segment.parts)
        self._rows += output_row(
            run, position=segment.positions[0], object_index=len(self._objects)
        )
        self._sums.append(run.sum)
        self._objects.append(OutputObject(key=key, size_bytes=segment.size_bytes))
        self._batches += run.batch_count
        self._describer = None
