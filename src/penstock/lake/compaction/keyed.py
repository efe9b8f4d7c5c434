"""Cleaning a partition by key: of each key only the newest record stays. Offsets never change.

As Kafka's log cleaner: the dirty section tells the newest offset of each key, then everything from
the log's start on is written anew without what has a newer one. Where the keys don't fit into
memory they are taken by their hashes, one part after the other; each part's pass over the log
marks what is superseded, and the last one writes.

The rules are those of `penstock.lake.compaction.keyed_retention`; keys are told apart by 128 bits
of a keyed hash, as Kafka does it by MD5.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np

from penstock.kernels.arrays import Uint8s
from penstock.kernels.keys import KeyChunk, key_chunks, retain
from penstock.kernels.offset_map import OffsetMap
from penstock.lake.compaction.items import ItemDone, ItemStore, KeyedItem
from penstock.lake.compaction.join import output_row
from penstock.lake.compaction.keyed_retention import Retention, judge
from penstock.lake.compaction.keyed_source import PIECE_BYTES, read_batches
from penstock.lake.door import OutputObject, ReplacedPartition
from penstock.records.keyed import HashKey
from penstock.segment import RunDescriber, build_segment

_OPERATION: Final = "compact"
_OFFSET: Final = Struct(">q")
_HASH_KEY: Final = Struct(">QQ")
MAP_BYTES: Final = 128 << 20
"""As Kafka's log.cleaner.dedupe.buffer.size: some 3.7 million keys a pass."""
CHUNK_BYTES: Final = 16 << 20
"""Uncompressed bytes of records that are looked at together."""


def clean_partition(
    item: KeyedItem,
    store: ItemStore,
    *,
    map_bytes: int = MAP_BYTES,
    piece_bytes: int = PIECE_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
) -> ItemDone:
    """Run an item: read as often as needed, and put objects of about `run_bytes_target`.

    Memory: `map_bytes`, a bit per record where one pass isn't enough, the output of one object,
    and some pieces and chunks.

    Raises:
        NotFoundError: an input is gone.
        RetryableError: the store is away.
        CorruptDataError: a CRC differs, or the batches aren't those that the journal names.
    """
    return _Cleaning(item, store, map_bytes, piece_bytes, chunk_bytes).run()


class _Cleaning:
    """One item on its way."""

    def __init__(
        self,
        item: KeyedItem,
        store: ItemStore,
        map_bytes: int,
        piece_bytes: int,
        chunk_bytes: int,
    ) -> None:
        self._item = item
        self._store = store
        self._hash_key: HashKey = _HASH_KEY.unpack(store.token_bytes(_HASH_KEY.size))
        """The attempt's own: who can't know it can't write keys whose hashes are the same."""
        self._map_bytes = map_bytes
        self._piece_bytes = piece_bytes
        self._chunk_bytes = chunk_bytes
        partition = item.partition
        self._subject = f"partition {partition.partition} of topic id {partition.topic_id}"
        self._dirty_from = max(item.clean_end, partition.log_start)
        self._end_offset = partition.inputs[-4]
        numbers = iter(item.producers)
        self._rules = Retention(
            now_ms=item.now_ms,
            delete_retention_ms=item.delete_retention_ms,
            log_start=partition.log_start,
            end_offset=self._end_offset,
            producers={
                producer_id: (epoch, sequence)
                for producer_id, epoch, sequence in zip(numbers, numbers, numbers, strict=True)
            },
        )
        self._newest: list[Uint8s] = []
        """Per chunk and record a bit: no later record of its key has been found so far."""
        self._read_bytes = 0

    def run(self) -> ItemDone:
        left = [(1, 0)]
        while True:
            keys = self._newest_offsets(*left.pop())
            left += keys.left
            if not left:
                return self._write(keys)
            self._mark(keys)

    def _newest_offsets(self, modulus: int, residue: int) -> OffsetMap:
        """Of the dirty section's keys, or of those whose hash has the residue."""
        keys = OffsetMap(
            bytes_max=self._map_bytes,
            records_max=self._end_offset - self._dirty_from,
            modulus=modulus,
            residue=residue,
        )
        for chunk in self._chunks(self._dirty_from):
            keys.add(chunk.hashes, chunk.offsets, chunk.has_key)
        return keys

    def _mark(self, keys: OffsetMap) -> None:
        """Take note of what these keys supersede."""
        is_first = not self._newest
        for number, chunk in enumerate(self._chunks(0)):
            newest = self._newest_of(number, chunk)
            keys.mark_superseded(chunk.hashes, chunk.offsets, chunk.has_key, newest)
            if is_first:
                self._newest.append(np.packbits(newest))
            else:
                self._newest[number] = np.packbits(newest)

    def _write(self, keys: OffsetMap) -> ItemDone:
        """The last pass: apply the rules and put what is left."""
        output = _Output(self._item, self._store, self._subject)
        dropped = 0
        for number, chunk in enumerate(self._chunks(0)):
            newest = self._newest_of(number, chunk)
            keys.mark_superseded(chunk.hashes, chunk.offsets, chunk.has_key, newest)
            verdict = judge(chunk, newest, self._rules)
            parts = retain(
                chunk,
                verdict.keep,
                keep_empty=verdict.keep_empty,
                delete_horizons=verdict.delete_horizons,
            )
            dropped += chunk.record_count - int(verdict.keep.sum())
            output.add(b"".join(parts))
        return output.done(
            read_bytes=self._read_bytes, dropped_records=dropped, clean_end=self._end_offset
        )

    def _newest_of(self, number: int, chunk: KeyChunk) -> Uint8s:
        if not self._newest or number >= len(self._newest):
            return np.ones(chunk.record_count, dtype=np.uint8)
        return np.unpackbits(self._newest[number], count=chunk.record_count)

    def _chunks(self, from_offset: int) -> Iterator[KeyChunk]:
        """The same ones at each pass from the same offset on."""
        for piece in read_batches(
            self._item.objects,
            self._item.partition,
            self._store,
            from_offset=from_offset,
            piece_bytes=self._piece_bytes,
        ):
            self._read_bytes += piece.nbytes
            yield from key_chunks(
                piece,
                self._hash_key,
                chunk_bytes=self._chunk_bytes,
                keeps_opaque=True,
                subject=self._subject,
            )


class _Output:
    """What is left, one run and one object after the other."""

    def __init__(self, item: KeyedItem, store: ItemStore, subject: str) -> None:
        self._item = item
        self._store = store
        self._subject = subject
        self._describer: RunDescriber | None = None
        self._objects: list[OutputObject] = []
        self._rows: list[int] = []
        self._batches = 0

    def add(self, batches: bytes) -> None:
        """Whole batches, in offset order."""
        if not batches:
            return
        if self._describer is None:
            self._describer = RunDescriber(
                base_offset=_OFFSET.unpack_from(batches)[0],
                operation=_OPERATION,
                subject=self._subject,
            )
        self._describer.add(memoryview(batches))
        if self._describer.length >= self._item.run_bytes_target:
            self._put(self._describer)

    def done(self, *, read_bytes: int, dropped_records: int, clean_end: int) -> ItemDone:
        """All that was put."""
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
                )
            ],
            read_bytes=read_bytes,
            written_bytes=sum(each.size_bytes for each in self._objects),
            batches=self._batches,
            dropped_records=dropped_records,
        )

    def _put(self, describer: RunDescriber) -> None:
        partition = self._item.partition
        run = describer.describe(bytes.fromhex(partition.topic_id), partition.partition)
        segment = build_segment([run])
        key = self._store.put(segment.parts)
        self._rows += output_row(
            run, position=segment.positions[0], object_index=len(self._objects)
        )
        self._objects.append(OutputObject(key=key, size_bytes=segment.size_bytes))
        self._batches += run.batch_count
        self._describer = None
