"""Cleaning a partition by key keeps only the newest record of each key. Offsets never change. Pure.

It works like Kafka's log cleaner: the dirty section gives the newest offset of each key, then
everything from the log's start on is written again without records that have a newer one. If the
keys don't fit into memory they are taken by their hashes, one part after the other: each part's
pass over the log marks superseded records, and the last pass writes.

The rules are those of `penstock.pipeline.compaction.keyed_retention` and, of transactions,
`keyed_transactions`. Keys are distinguished by 128
bits of a keyed hash, where Kafka uses MD5.
"""

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np

from penstock.kernels.arrays import Int64s, Uint8s
from penstock.kernels.blocks import BlockArena
from penstock.kernels.index import index_batches
from penstock.kernels.key_map import KeyMap
from penstock.kernels.keys import KeyChunk, key_chunks, retain
from penstock.pipeline.compaction.items import ItemDone, ItemStore, KeyedItem
from penstock.pipeline.compaction.keyed_output import Output
from penstock.pipeline.compaction.keyed_retention import Retention, judge
from penstock.pipeline.compaction.keyed_source import LOT_BYTES, KeyedSource
from penstock.pipeline.compaction.keyed_transactions import Transactions

_HASH_KEY: Final = Struct(">QQ")
MAP_BYTES: Final = 128 << 20
"""The default of Kafka's log.cleaner.dedupe.buffer.size: some 3.7 million keys a pass."""
CHUNK_BYTES: Final = 16 << 20
"""Uncompressed bytes of records that are looked at together."""


def clean_partition(
    item: KeyedItem,
    store: ItemStore,
    *,
    map_bytes: int = MAP_BYTES,
    lot_bytes: int = LOT_BYTES,
    chunk_bytes: int = CHUNK_BYTES,
) -> ItemDone:
    """Run an item: read as often as needed, and put objects of about `run_bytes_target`.

    Memory: `map_bytes`, a bit per dirty record (where one pass isn't enough also per clean one),
    the output of one object, a lot and a chunk.

    Raises:
        NotFoundError: an input is gone.
        RetryableError: the store is away.
        CorruptDataError: a CRC differs, or the batches aren't those that the journal names.
    """
    return _Cleaning(item, store, map_bytes, lot_bytes, chunk_bytes).run()


class _Cleaning:
    """One item on its way.

    Its runs fall into clean ones, of which only the keys are looked up, and dirty ones. Of each
    record of these a bit tells whether it is dead: superseded, without a key or below the log's
    start. So whole batches of dead records are passed over at the end without a look inside.
    """

    def __init__(
        self, item: KeyedItem, store: ItemStore, map_bytes: int, lot_bytes: int, chunk_bytes: int
    ) -> None:
        self._item = item
        self._store = store
        self._hash_key: tuple[int, int] = _HASH_KEY.unpack(store.token_bytes(_HASH_KEY.size))
        """The attempt's own: who can't know it can't write keys whose hashes are the same."""
        self._map_bytes = map_bytes
        self._chunk_bytes = chunk_bytes
        self._source = KeyedSource(item, store, lot_bytes=lot_bytes)
        self._arena = BlockArena()
        partition = item.partition
        self._subject = f"partition {partition.partition} of topic id {partition.topic_id}"
        self._end_offset = partition.inputs[-4]
        dirty_from = max(item.clean_end, partition.log_start)
        self._dirty_run = bisect_right(partition.inputs[1::5], dirty_from)
        dirty_bases = partition.inputs[5 * self._dirty_run :: 5]
        self._dirty_offsets = self._end_offset - dirty_bases[0] if dirty_bases else 0
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
        self._transactions = Transactions(
            item.aborted, now_ms=item.now_ms, delete_retention_ms=item.delete_retention_ms
        )
        self._dead = np.zeros(1, dtype=np.uint8)
        """A bit per dirty record, the lowest first; grows with them, since a log that was cleaned
        before may have far more offsets than records."""
        self._counts: list[Int64s] = [np.zeros(0, dtype=np.int64)]
        """Records per dirty batch."""
        self._newest: list[Uint8s] = []
        """Per chunk and clean record a bit: no dirty record has its key, so far."""

    def run(self) -> ItemDone:
        left = [(1, 0)]
        while True:
            keys = self._newest_records(*left.pop())
            left += keys.left
            if not left:
                return self._write(keys)
            self._mark_clean(keys)

    def _newest_records(self, modulus: int, residue: int) -> KeyMap:
        """Return the newest offsets of dirty keys whose hash has the residue; older records are
        dead."""
        keys = KeyMap(
            bytes_max=self._map_bytes,
            keys_max=self._dirty_offsets,
            modulus=modulus,
            residue=residue,
        )
        is_first = len(self._counts) == 1
        ordinal = 0
        for region in self._source.regions(first_run=self._dirty_run):
            for chunk in self._chunks(region):
                self._make_room(ordinal + chunk.record_count)
                keys.add(chunk.hashes, chunk.has_key, ordinal, self._dead)
                if is_first:
                    self._counts.append(np.diff(chunk.bounds))
                    out = (chunk.has_key == 0) | (chunk.offsets < self._rules.log_start)
                    numbers = np.flatnonzero(out) + ordinal
                    np.bitwise_or.at(
                        self._dead, numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8)
                    )
                ordinal += chunk.record_count
        return keys

    def _make_room(self, records: int) -> None:
        if records > 8 * len(self._dead):
            larger = np.zeros(max(records // 8 + 1, 2 * len(self._dead)), dtype=np.uint8)
            larger[: len(self._dead)] = self._dead
            self._dead = larger

    def _mark_clean(self, keys: KeyMap) -> None:
        """Take note of the clean records that these keys supersede."""
        is_first = not self._newest
        for number, chunk in enumerate(self._clean_chunks()):
            newest = self._newest_of(number, chunk)
            keys.mark_superseded(chunk.hashes, chunk.has_key, newest)
            if is_first:
                self._newest.append(np.packbits(newest))
            else:
                self._newest[number] = np.packbits(newest)

    def _newest_of(self, number: int, chunk: KeyChunk) -> Uint8s:
        if number >= len(self._newest):
            return np.ones(chunk.record_count, dtype=np.uint8)
        return np.unpackbits(self._newest[number], count=chunk.record_count)

    def _write(self, keys: KeyMap) -> ItemDone:
        """The last pass: apply the rules and put what is left."""
        output = Output(self._item, self._store, self._subject)
        for number, chunk in enumerate(self._clean_chunks()):
            newest = self._newest_of(number, chunk)
            keys.mark_superseded(chunk.hashes, chunk.has_key, newest)
            self._retain(chunk, newest, output)
        counts = np.concatenate(self._counts)
        batch = ordinal = 0
        for region in self._source.regions(first_run=self._dirty_run):
            index = index_batches(region, subject=self._subject)
            count = counts[batch : batch + len(index.rows)]
            alive = self._alive(ordinal, int(count.sum()))
            batch, ordinal = batch + len(count), ordinal + len(alive)
            begins = np.zeros(len(count) + 1, dtype=np.int64)
            np.cumsum(count, out=begins[1:])
            alive_before = np.zeros(len(alive) + 1, dtype=np.int64)
            np.cumsum(alive, out=alive_before[1:])
            skips = ((count > 0) & (np.diff(alive_before[begins]) == 0)).astype(np.uint8)
            seen = np.repeat(skips == 0, count)
            output.dropped_records += len(alive) - int(seen.sum())
            for chunk in self._chunks(region, skips=skips):
                own = slice(int(begins[chunk.first]), int(begins[chunk.last]))
                self._retain(chunk, alive[own][seen[own]], output)
        return output.done(
            read_bytes=self._source.read_bytes,
            clean_end=self._end_offset,
            markers=self._transactions.gone_aborts,
        )

    def _alive(self, first: int, count: int) -> Uint8s:
        """Return for each dirty record from ordinal `first` on whether it isn't dead."""
        bits = self._dead[first >> 3 : (first + count + 7) >> 3]
        skip = first & 7
        return 1 - np.unpackbits(bits, bitorder="little")[skip : skip + count]

    def _retain(self, chunk: KeyChunk, newest: Uint8s, output: "Output") -> None:
        verdict = judge(chunk, newest, self._rules)
        parts = retain(
            chunk,
            verdict.keep,
            keep_empty=verdict.keep_empty,
            delete_horizons=verdict.delete_horizons,
            replaced=self._transactions.replaced(chunk, verdict.keep_empty),
        )
        output.dropped_records += chunk.record_count - int(verdict.keep.sum())
        output.add(b"".join(parts))

    def _clean_chunks(self) -> Iterator[KeyChunk]:
        for region in self._source.regions(end_run=self._dirty_run):
            yield from self._chunks(region)

    def _chunks(self, region: memoryview, *, skips: Uint8s | None = None) -> Iterator[KeyChunk]:
        """The same ones at each pass over the same runs. Records of aborted transactions are as
        those without a key: they supersede none, and go."""
        for chunk in key_chunks(
            region,
            self._hash_key,
            chunk_bytes=self._chunk_bytes,
            keeps_opaque=True,
            skips=skips,
            arena=self._arena,
            subject=self._subject,
        ):
            rows = chunk.batches.rows[chunk.first : chunk.last]
            for at in self._transactions.aborted_rows(rows):
                chunk.has_key[chunk.bounds[at] : chunk.bounds[at + 1]] = 0
            yield chunk
