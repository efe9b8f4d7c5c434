"""Runs of small batches become runs of large ones: the same records, for every reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError
from penstock.pipeline.api_messages import RUN_FIELDS, TopicState
from penstock.pipeline.compaction import job
from penstock.pipeline.compaction.growth import Stretch
from penstock.pipeline.compaction.incremental import Memory
from penstock.pipeline.compaction.items import (
    CompactionSettings,
    InputObject,
    ItemDone,
    ItemPartition,
    JoinItem,
)
from penstock.pipeline.compaction.join import join_runs
from penstock.pipeline.compaction.listing import PartitionRuns
from penstock.pipeline.compaction.merge import PartitionMerger
from penstock.pipeline.compaction.merge_plan import merging_of
from penstock.pipeline.engine import LocalEngine
from penstock.records.batch import stored_header
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.merging import AS_PRODUCED, Merging
from penstock.records.sums import partition_seed, run_sum
from support.api_server import NOW_MS, ApiServer, serve_in_thread
from support.compaction import MemoryItemStore, records_of
from support.examples import examples
from support.run_listings import topics

TOPIC = "00" * 15 + "07"
SEED = partition_seed(bytes.fromhex(TOPIC), 0)


def batch(offset: int, count: int, *, raw: bool) -> bytes:
    records = [
        Record(
            offset_delta=n,
            timestamp=1000 + offset + n,
            key=b"k",
            value=b"%d" % (offset + n),
            headers=(),
        )
        for n in range(count)
    ]
    return bytes(encode_batch(records, base_offset=0 if raw else offset, producer_id=9))


class World:
    """Runs of a partition in objects of their own."""

    def __init__(self) -> None:
        self.store = MemoryItemStore()
        self.objects: list[InputObject] = []
        self.inputs: list[int] = []
        self.sums: list[int] = []
        self.end = 5

    def add(self, counts: list[int], *, raw: int) -> None:
        base, parts = self.end, []
        for count in counts:
            parts.append(batch(self.end, count, raw=bool(raw)))
            self.end += count
        body = b"".join(parts)
        key = f"in-{len(self.objects)}"
        self.store.objects[key] = b"before" + body + b"after"
        self.inputs += [base, self.end, len(self.objects), 6, len(body)]
        self.objects.append(InputObject(key, raw))
        self.sums.append(
            run_sum(
                memoryview(body),
                SEED,
                base_offset=base if raw else None,
                leader_epoch=raw - 1,
            )
        )

    def run(self, *, log_start: int = 0) -> ItemDone:
        partition = ItemPartition(
            topic_id=TOPIC,
            partition=0,
            inputs=self.inputs,
            log_start=log_start,
            sums=self.sums,
            merging=Merging(),
        )
        item = JoinItem(objects=self.objects, partitions=[partition], reason="")
        return join_runs(item, self.store, merge=PartitionMerger())

    def output(self, done: ItemDone) -> bytes:
        _, _, _, position, length, _, _ = done.partitions[0].outputs
        return self.store.objects[done.objects[0].key][position : position + length]


runs = st.lists(
    st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(0, 2)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(1))
@given(runs=runs, trimmed=st.integers(0, 40))
def test_records_are_those_of_the_inputs(runs: list[tuple[list[int], int]], trimmed: int) -> None:
    world = World()
    for counts, raw in runs:
        world.add(counts, raw=raw)
    done = world.run(log_start=trimmed)
    (partition,) = done.partitions
    data = world.output(done)
    base, end, _, _, length, newest, count = partition.outputs
    found = records_of(data)
    # What lies wholly below the log's start may be left out, and nothing else.
    assert [offset for offset, _ in found] == list(range(base, world.end))
    assert all(record.value == b"%d" % offset for offset, record in found)
    assert all(record.timestamp == 1000 + offset for offset, record in found)
    assert base <= max(trimmed, 5) or base == found[0][0]
    assert (end, length, newest) == (world.end, len(data), 1000 + world.end - 1)
    assert partition.sums == [run_sum(memoryview(data), SEED)]
    before = sum(len(counts) for counts, _ in runs)
    assert count <= before
    assert partition.merged is (done.merged_batches > 0)
    if not partition.merged and base == 5:
        assert partition.sums == [sum(world.sums) & ((1 << 63) - 1)]


def test_batches_of_different_leader_epochs_stay_apart() -> None:
    world = World()
    for raw in (1, 1, 2, 2):
        world.add([1, 1], raw=raw)
    data = world.output(world.run())
    first = stored_header(data, 0)
    second = stored_header(data, first.length)
    assert (first.leader_epoch, first.record_count) == (0, 4)
    assert (second.leader_epoch, second.record_count) == (1, 4)
    assert first.length + second.length == len(data)


@pytest.mark.parametrize("kind", ["flipped", "other"])
def test_damage_is_named_by_object_and_place(kind: str) -> None:
    world = World()
    for raw in (0, 1):
        world.add([1] * 5, raw=raw)
    body = bytearray(world.store.objects["in-1"])
    if kind == "flipped":
        body[6 + 70] ^= 1
    else:
        other = World()
        other.end += 5
        other.add([1] * 5, raw=1)
        body = bytearray(other.store.objects["in-0"])
        world.sums[1] ^= 1
    world.store.objects["in-1"] = bytes(body)
    with pytest.raises(CorruptDataError, match="in-1" if kind == "flipped" else "sum differs"):
        world.run()


def _topic(configs: dict[str, str]) -> TopicState:
    (topic,) = topics(1, 1, **configs).values()
    return topic


# -- planning --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, Merging()),
        ({"compression.type": "producer"}, Merging(codec=AS_PRODUCED)),
        ({"compression.type": "uncompressed"}, Merging(codec=0)),
        (
            {"compression.type": "zstd", "compression.zstd.level": "1"},
            Merging(codec=4, zstd_level=1),
        ),
        (
            {"compression.type": "lz4", "compression.lz4.level": "3", "max.message.bytes": "999"},
            Merging(codec=3, lz4_level=3, bytes_max=999),
        ),
        (
            {"compression.type": "gzip", "compression.gzip.level": "9"},
            Merging(codec=1, gzip_level=9),
        ),
    ],
)
def test_the_form_is_that_of_the_topics_configs(configs: dict[str, str], expected: Merging) -> None:
    listed = PartitionRuns(batches=[3, 100, 100])
    topic = _topic(configs)
    assert merging_of(topic, listed, Stretch(1, 3, 20_000, ""), CompactionSettings()) == expected


def test_batches_that_are_long_on_average_are_copied() -> None:
    listed, topic = PartitionRuns(batches=[1, 9]), _topic({})
    for size, merges in (((16 << 10) * 10 - 1, True), ((16 << 10) * 10, False)):
        found = merging_of(topic, listed, Stretch(0, 2, size, ""), CompactionSettings())
        assert (found is not None) is merges
    alone = PartitionRuns(batches=[1])
    assert merging_of(topic, alone, Stretch(0, 1, 100, ""), CompactionSettings()) is None


# -- a whole server --------------------------------------------------------------------------------


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data", segment_age_ms=3_600_000) as api:
        yield api


@pytest.mark.slow
def test_every_reader_gets_the_same_before_and_after(api: ApiServer) -> None:
    topic_id = api.create("small", 2)
    for number in range(6):
        for partition in range(2):
            for at in range(7):
                api.produce(
                    "small",
                    partition,
                    count=1 + at % 2,
                    value=b"%d-%d" % (number, at),
                    timestamp_ms=NOW_MS + 1000 * number + at,
                )
        api.drain()
    api.produce("small", 0, count=2)  # stays in the WAL
    (state, _) = api.client.topics(topic_ids=[topic_id]).topics[0].partitions
    end = state.high_watermark

    times = [(topic_id, 0, NOW_MS + step * 250) for step in range(30)]

    def seen() -> object:
        """From each offset, and by time; a record's place in its batch may change."""
        reads = [
            [
                (offset, dataclasses.replace(record, offset_delta=0))
                for offset, record in records_of(api.read(topic_id, 0, start, end))
                if offset >= start
            ]
            for start in range(end)
        ]
        return reads, api.client.offsets(times)

    before = seen()
    summary = job.compact(api.client, LocalEngine(1), CompactionSettings())
    assert (summary.failures, summary.refused) == ([], [])
    assert summary.merged_batches == 2 * 6 * 7
    assert seen() == before
    batches = [
        page.rows[at + 7]
        for page in api.client.runs(with_wal=False)
        for at in range(0, len(page.rows), RUN_FIELDS)
    ]
    assert batches == [1, 1]
    again = job.compact(api.client, LocalEngine(1), CompactionSettings())
    assert again.planned_items == 0


@pytest.mark.slow
def test_long_runs_of_small_batches_are_rewritten_once(api: ApiServer) -> None:
    """No join would take the only run of a partition."""
    topic_id = api.create("alone", 1)
    for at in range(120):
        api.produce("alone", 0, count=1, value=b"%d" % at)
    api.drain()
    before = records_of(api.read(topic_id, 0, 0, 120))
    summary = job.compact(api.client, LocalEngine(1), CompactionSettings())
    assert (summary.items, summary.merged_batches, summary.rounds) == (1, 120, 2)
    after = records_of(api.read(topic_id, 0, 0, 120))
    assert [(offset, one.value) for offset, one in after] == [
        (offset, one.value) for offset, one in before
    ]
    again = job.compact(api.client, LocalEngine(1), CompactionSettings())
    assert again.planned_items == 0


@pytest.mark.slow
def test_runs_that_can_not_be_merged_are_tried_once(api: ApiServer) -> None:
    """Each batch is larger than half of what one may be."""
    api.create("tight", 1, {"max.message.bytes": "200"})
    for _ in range(120):
        api.produce("tight", 0, count=1, value=b"x" * 100)
    api.drain()
    memory = Memory()
    first = job.compact(api.client, LocalEngine(1), CompactionSettings(), memory=memory)
    assert (first.items, first.merged_batches, first.rounds) == (1, 0, 2)
    second = job.compact(api.client, LocalEngine(1), CompactionSettings(), memory=memory)
    assert second.planned_items == 0
