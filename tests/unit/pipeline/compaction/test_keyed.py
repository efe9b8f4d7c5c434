"""Cleaning by key does what a plain model of Kafka's cleaner does, on histories at random."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.pipeline.compaction.items import (
    CompactionSettings,
    InputObject,
    ItemDone,
    ItemPartition,
    KeyedItem,
)
from penstock.pipeline.compaction.keyed import clean_partition
from penstock.pipeline.compaction.plan import plan
from penstock.records.batch import stored_header
from penstock.records.decode import CODECS, Record
from penstock.records.encode import encode_batch
from support.batches import make_batch
from support.cleaned_partition import TOPIC_ID, CleanedPartition, MemoryStore
from support.examples import examples
from support.kafka_cleaner_model import (
    ModelConfig,
    ModelLog,
    ModelSegment,
    clean,
)

START_MS = 1_790_000_000_000
KEYS = (b"a", b"b", b"c", b"d", b"", b"a longer key than sixteen bytes", None)


@dataclass
class Consumer:
    """Reads on from where it was, some records at a time, and keeps the last value of each key."""

    position: int
    started_ms: int
    values: dict[bytes, bytes | None] = field(default_factory=dict)


class History:
    """A partition and the model of it, through the same events."""

    def __init__(self, seed: int, config: ModelConfig, *, map_bytes: int, run_bytes: int) -> None:
        self.random = Random(seed)
        self.config = config
        self.now_ms = START_MS
        self.partition = CleanedPartition(
            MemoryStore(self.random),
            self.random,
            configs={
                "min.cleanable.dirty.ratio": str(config.min_cleanable_dirty_ratio),
                "min.compaction.lag.ms": str(config.min_compaction_lag_ms),
                "max.compaction.lag.ms": str(config.max_compaction_lag_ms),
                "delete.retention.ms": str(config.delete_retention_ms),
            },
        )
        self.model = ModelLog()
        self.sequences: dict[int, tuple[int, int, int]] = {}
        """Of active producers by id: epoch, last sequence, last offset."""
        self.written: dict[int, tuple[int, int]] = {}
        """By producer id: epoch and last sequence, also of those that are forgotten."""
        self.truth: dict[bytes, tuple[int, bytes | None]] = {}
        self.consumers: list[Consumer] = []
        self.cleanings = 0
        self._map_bytes = map_bytes
        self._settings = CompactionSettings(run_bytes_target=run_bytes)

    def append(self) -> None:
        random = self.random
        delta, records = -1, []
        for _ in range(random.randrange(1, 6)):
            delta += 1
            key = random.choice(KEYS)
            value = None if random.random() < 0.3 else random.randbytes(random.randrange(40))
            headers = (("h", random.choice((None, b"x"))),) if random.random() < 0.2 else ()
            stamp = self.now_ms - random.randrange(3_000)
            records.append(
                Record(offset_delta=delta, timestamp=stamp, key=key, value=value, headers=headers)
            )
        producer = random.choice((-1, -1, 1, 2, 3))
        epoch, sequence = -1, -1
        if producer >= 0:
            # Near the end of what a sequence can be: it begins again at 0.
            epoch, last = self.written.get(producer, (0, 2**31 - 6))
            sequence = (last + 1) % 2**31
            if random.random() < 0.1:
                epoch, sequence = epoch + 1, 0
        batch = encode_batch(
            records,
            codec=random.choice(CODECS),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        base_offset = self.partition.append(batch)
        if producer >= 0:
            last = (sequence + delta) % 2**31
            self.written[producer] = epoch, last
            self.sequences[producer] = epoch, last, base_offset + delta
        for record in records:
            if record.key is not None:
                self.truth[record.key] = base_offset + record.offset_delta, record.value

    def upload(self) -> None:
        self.partition.upload()

    def wait(self) -> None:
        self.now_ms += self.random.choice((1, 500, 3_000, 20_000))

    def trim(self) -> None:
        """DeleteRecords at any offset, within a batch or a gap too."""
        ends = self.partition.high_watermark
        start = self.partition.log_start
        if ends > start:
            self._sync_model()
            self.partition.trim(start + self.random.randrange(ends - start))
            self.model.log_start = self.partition.log_start

    def expire_producer(self) -> None:
        if self.sequences:
            del self.sequences[self.random.choice(sorted(self.sequences))]

    def forget_checkpoint(self) -> None:
        """The cleaner begins anew, as after the loss of its checkpoint."""
        self.partition.clean_end = self.model.clean_end = -1

    def start_consumer(self) -> None:
        self.consumers.append(Consumer(self.partition.log_start, self.now_ms))

    def read_some(self) -> None:
        for consumer in self.consumers:
            self._read(consumer, self.random.randrange(1, 8))

    def clean(self) -> None:
        """One round of both, ours perhaps twice before it is committed."""
        partition = self.partition
        self._sync_model()
        item = self.plan()
        active_from = next((run.base_offset for run in partition.runs if not run.key), 2**62)
        cleaned = clean(
            self.model,
            self.config,
            now_ms=self.now_ms,
            active_from=active_from,
            producers={number: last for number, (_, _, last) in self.sequences.items()},
        )
        assert cleaned == (item is not None)
        if item is None:
            return
        self.cleanings += 1
        if self.random.random() < 0.3:
            self.run(item)  # an attempt that was killed before its commit
        partition.replace(item, self.run(item))
        self.check()

    def plan(self) -> KeyedItem | None:
        found = plan(
            [self.partition.page()],
            {TOPIC_ID: self.partition.topic()},
            self._settings,
            now_ms=self.now_ms,
            whole=False,
        )
        for item in found.items:
            if isinstance(item, KeyedItem):
                triples = [
                    number
                    for producer, (epoch, sequence, _) in self.sequences.items()
                    for number in (producer, epoch, sequence)
                ]
                return msgspec.structs.replace(item, producers=triples)
        return None

    def run(self, item: KeyedItem) -> ItemDone:
        return clean_partition(
            item,
            self.partition.store,
            map_bytes=self._map_bytes,
            lot_bytes=self.random.choice((70, 300, 1 << 20)),
            chunk_bytes=self.random.choice((1, 200, 1 << 20)),
        )

    def check(self) -> None:
        start = self.partition.log_start
        ours, theirs = self.partition.batches(), self.model.batches()
        assert [record for batch in ours for record in batch.records if record.offset >= start] == [
            record for batch in theirs for record in batch.records if record.offset >= start
        ]
        # Of one that the log's start cuts, what is below it may be there or not.
        assert [batch for batch in ours if batch.base_offset >= start] == [
            batch for batch in theirs if batch.base_offset >= start
        ]
        assert self.model.clean_end == self.partition.clean_end

    def finish(self) -> None:
        """What everybody may rely on, whatever happened."""
        start = self.partition.log_start
        last = {
            record.key: (record.offset, record.value)
            for batch in self.partition.batches()
            for record in batch.records
            if record.offset >= start and record.key is not None
        }
        for key, (offset, value) in self.truth.items():
            if offset >= start and value is not None:
                assert last[key] == (offset, value), "a key's newest value is lost"
            elif key in last:
                assert last[key][0] <= offset
        for consumer in self.consumers:
            while consumer.position < self.partition.high_watermark:
                self._read(consumer, 1 << 30)
            in_time = self.now_ms - consumer.started_ms < self.config.delete_retention_ms
            for key, (offset, value) in self.truth.items():
                if offset >= start and (value is not None or in_time):
                    assert consumer.values.get(key) == value, "a consumer has missed a value"

    def _read(self, consumer: Consumer, count: int) -> None:
        consumer.position = max(consumer.position, self.partition.log_start)
        for batch in self.partition.batches():
            for record in batch.records:
                if record.offset >= consumer.position and count:
                    count -= 1
                    consumer.position = record.offset + 1
                    if record.key is not None:
                        consumer.values[record.key] = record.value
            if count:
                consumer.position = max(consumer.position, batch.last_offset + 1)

    def _sync_model(self) -> None:
        """Give the model what was appended, and the runs as its segments."""
        known = {
            batch.base_offset: batch for segment in self.model.segments for batch in segment.batches
        }
        end = max((batch.last_offset + 1 for batch in known.values()), default=0)
        for batch in self.partition.batches():
            if batch.base_offset >= end:
                known[batch.base_offset] = batch
        self.model.log_start = self.partition.log_start
        self.model.segments = [
            ModelSegment(
                [b for at, b in sorted(known.items()) if run.base_offset <= at < run.end_offset],
                run.length,
                run.newest,
            )
            for run in self.partition.runs
        ]
        self.model.segments = [segment for segment in self.model.segments if segment.batches]


EVENTS = (
    ("append",) * 8
    + ("upload",) * 4
    + ("clean",) * 4
    + ("wait",) * 3
    + ("trim", "expire_producer", "forget_checkpoint", "start_consumer", "read_some")
)
CONFIGS = st.builds(
    ModelConfig,
    min_cleanable_dirty_ratio=st.sampled_from((0.0, 0.3, 0.5)),
    min_compaction_lag_ms=st.sampled_from((0, 0, 2_000, 10_000)),
    max_compaction_lag_ms=st.sampled_from((2**63 - 1, 15_000)),
    delete_retention_ms=st.sampled_from((0, 5_000, 86_400_000)),
)


@settings(max_examples=examples(2))
@given(
    st.integers(1, 70),
    CONFIGS,
    st.integers(0, 2**32),
    st.sampled_from((1, 8 << 20)),
    st.sampled_from((1, 500, 64 << 20)),
)
def test_histories_end_as_in_the_model(
    event_count: int, config: ModelConfig, seed: int, map_bytes: int, run_bytes: int
) -> None:
    history = History(seed, config, map_bytes=map_bytes, run_bytes=run_bytes)
    history.start_consumer()
    for _ in range(event_count):
        getattr(history, history.random.choice(EVENTS))()
    history.upload()
    history.clean()
    history.finish()


def partition_of(*batches: bytearray, **configs: str) -> tuple[CleanedPartition, MemoryStore]:
    random = Random(3)
    store = MemoryStore(random)
    partition = CleanedPartition(
        store, random, configs={"min.cleanable.dirty.ratio": "0"} | configs
    )
    for batch in batches:
        partition.append(batch)
        partition.upload()
    return partition, store


def item_of(partition: CleanedPartition) -> KeyedItem:
    (item,) = plan(
        [partition.page()],
        {TOPIC_ID: partition.topic()},
        CompactionSettings(),
        now_ms=START_MS,
        whole=False,
    ).items
    assert isinstance(item, KeyedItem)
    return item


def new_batch(*rows: tuple[bytes | None, bytes | None], codec: str = "none") -> bytearray:
    keys, values = zip(*rows, strict=True)
    return make_batch(*values, keys=keys, time=START_MS, codec=codec)


@pytest.mark.parametrize("codec", CODECS)
def test_what_nobody_can_decode_is_kept_as_it_is(codec: str) -> None:
    """Stored by a client while the topic wasn't compacted: not one byte of it was looked at."""
    garbage = new_batch((b"k", b"1"), (b"k", b"2"), codec=codec)
    garbage[61:] = b"\xff" * (len(garbage) - 61)
    garbage[17:21] = crc32c(memoryview(garbage)[21:]).to_bytes(4, "big")
    partition, store = partition_of(
        new_batch((b"k", b"old"), (b"l", b"kept")), garbage, new_batch((b"k", b"new"))
    )
    item = item_of(partition)
    partition.replace(item, clean_partition(item, store))
    body = store.objects[partition.runs[0].key]
    assert bytes(garbage[61:]) in body
    assert stored_header(body, 16).record_count == 1
    assert stored_header(body, partition.runs[0].position).end_offset == 2
    assert partition.runs[0].batches == 3


def test_where_nothing_is_dirty_nothing_changes() -> None:
    partition, store = partition_of(new_batch((b"k", b"1"), (b"l", None)), new_batch((b"k", b"2")))
    for _ in range(2):
        item = item_of(partition)
        partition.replace(item, clean_partition(item, store))
        before = partition.batches()
        again = msgspec.structs.replace(
            item,
            partition=inputs_of(partition),
            objects=[InputObject(partition.runs[0].key, 0)],
            clean_end=3,
        )
        partition.replace(again, clean_partition(again, store))
        assert partition.batches() == before
        partition.clean_end = -1


def inputs_of(partition: CleanedPartition) -> ItemPartition:
    (run,) = partition.runs
    inputs = [run.base_offset, run.end_offset, 0, run.position, run.length]
    return ItemPartition(topic_id=TOPIC_ID, partition=0, inputs=inputs)


def test_damage_fails_the_item_and_puts_nothing() -> None:
    partition, store = partition_of(new_batch((b"k", b"1")), new_batch((b"k", b"2")))
    run = partition.runs[0]
    damaged = bytearray(store.objects[run.key])
    damaged[run.position + 65] ^= 1
    store.objects[run.key] = bytes(damaged)
    before = len(store.objects)
    with pytest.raises(CorruptDataError, match="CRC"):
        clean_partition(item_of(partition), store)
    assert len(store.objects) == before


def test_an_input_that_is_gone_is_told() -> None:
    partition, store = partition_of(new_batch((b"k", b"1")))
    item = item_of(partition)
    store.objects.clear()
    with pytest.raises(NotFoundError):
        clean_partition(item, store)


def test_other_batches_than_the_journal_names_are_refused() -> None:
    for number, change in ((1, 1), (4, -1), (3, 1)):
        partition, store = partition_of(new_batch((b"k", b"1")), new_batch((b"k", b"2")))
        item = item_of(partition)
        item.partition.inputs[number] += change
        with pytest.raises(CorruptDataError):
            clean_partition(item, store)


@pytest.mark.parametrize("lot_bytes", [64, 1 << 20])
def test_whole_batches_of_another_run_are_refused_and_not_made_right(lot_bytes: int) -> None:
    """An older object under the key, with the same offsets and lengths: cleaned, its batches would
    get a sum of their own."""
    batches = [new_batch((b"k", b"1")), new_batch((b"k", b"2"))]
    partition, store = partition_of(*batches)
    other, older = partition_of(new_batch((b"k", b"3")), new_batch((b"k", b"4")))
    for run, theirs in zip(partition.runs, other.runs, strict=True):
        run.raw, run.position = theirs.raw, theirs.position
        store.objects[run.key] = older.objects[theirs.key]
    before = set(store.objects)
    with pytest.raises(CorruptDataError, match=r"not the batches of offsets 0 to 0: their sum"):
        clean_partition(item_of(partition), store, lot_bytes=lot_bytes)
    assert set(store.objects) == before


def test_a_client_can_choose_no_colliding_keys() -> None:
    """Hashes are keyed by what the attempt has drawn at random."""
    partition, store = partition_of(new_batch((b"k", b"1")))
    drawn: list[bytes] = []
    token_bytes = store.token_bytes

    def note(count: int) -> bytes:
        drawn.append(token_bytes(count))
        return drawn[-1]

    store.token_bytes = note  # type: ignore[method-assign]
    item = item_of(partition)
    clean_partition(item, store)
    clean_partition(item, store)
    assert len(set(drawn)) == 2
    assert {len(token) for token in drawn} == {16}


@pytest.mark.slow
def test_memory_is_bounded_however_many_keys_and_bytes_there_are() -> None:
    """A partition of 8 MB with 20,000 keys, in less than its size: pieces, small maps, several
    passes, and outputs that are put as they fill."""
    random = Random(1)
    batches = []
    for _ in range(200):
        rows = [(random.randbytes(12), random.randbytes(380)) for _ in range(100)]
        batches.append(new_batch(*rows))
    partition, store = partition_of(*batches)
    del batches
    item = msgspec.structs.replace(item_of(partition), run_bytes_target=512 << 10)
    # Whatever is compiled at the first call is compiled now, by the same way through the item.
    few = [[(random.randbytes(12), random.randbytes(380)) for _ in range(100)] for _ in range(12)]
    warm, warm_store = partition_of(*(new_batch(*rows) for rows in few))
    warm_item = msgspec.structs.replace(item_of(warm), run_bytes_target=64 << 10)
    clean_partition(
        warm_item, warm_store, map_bytes=16 << 10, lot_bytes=8 << 10, chunk_bytes=16 << 10
    )
    stored = item.size_bytes
    put = 0

    def discard(parts: Sequence[Buffer]) -> str:
        nonlocal put
        put += sum(memoryview(part).nbytes for part in parts)
        return f"put-{put}"

    store.put = discard  # type: ignore[method-assign]
    tracemalloc.start()
    try:
        done = clean_partition(
            item, store, map_bytes=128 << 10, lot_bytes=64 << 10, chunk_bytes=128 << 10
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert put >= stored, "all keys differ: nothing was dropped"
    assert done.dropped_records == 0
    assert done.read_bytes > 8 * stored, "20,000 keys of 24 bytes don't fit into 128 KiB"
    assert len(done.objects) > 10
    assert peak < stored / 3
