"""Cleaning by key drops aborted records, and markers once nothing of their transactions is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.index import index_batches
from penstock.pipeline.compaction.items import CompactionSettings, KeyedItem
from penstock.pipeline.compaction.keyed import clean_partition
from penstock.pipeline.compaction.plan import plan
from penstock.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    TRANSACTIONAL,
    StoredHeader,
    crc_is_right,
    patch_base_offset,
    stored_header,
)
from penstock.records.decode import Record, decode_batch
from penstock.records.encode import encode_batch
from penstock.records.markers import is_abort, marker_batch, marker_with_horizon
from support.cleaned_partition import TOPIC_ID, CleanedPartition, MemoryStore
from support.examples import examples

START_MS = 1_790_000_000_000
RETENTION_MS = 1_000


@dataclass
class Transactional:
    """A partition into which producers with transactions write; `now_ms` is the journal's time."""

    random: Random
    map_bytes: int = 1 << 20
    chunk_bytes: int = 1 << 20
    now_ms: int = START_MS
    first_open: dict[int, int] = field(default_factory=dict)
    aborted: list[int] = field(default_factory=list)
    committed: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    """Offset, key and value of what a reader of committed records has to find."""
    pending: dict[int, list[tuple[int, bytes, bytes | None]]] = field(default_factory=dict)
    active: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.random)
        self.partition = CleanedPartition(
            self.store,
            self.random,
            configs={
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(RETENTION_MS),
            },
        )

    def write(self, producer: int, key: bytes, value: bytes | None) -> int:
        """A batch of one record; of a transaction where the producer's id is above 0."""
        record = Record(offset_delta=0, timestamp=self.now_ms, key=key, value=value, headers=())
        batch = encode_batch(
            [record],
            producer_id=producer,
            producer_epoch=0 if producer > 0 else -1,
            base_sequence=7 if producer > 0 else -1,
            attributes=TRANSACTIONAL if producer > 0 else 0,
        )
        offset = self.partition.append(batch)
        if producer > 0:
            self.first_open.setdefault(producer, offset)
            self.pending.setdefault(producer, []).append((offset, key, value))
        else:
            self.committed.append((offset, key, value))
        return offset

    def end(self, producer: int, *, commits: bool) -> int:
        marker = marker_batch(
            base_offset=0,
            leader_epoch=0,
            producer_id=producer,
            producer_epoch=0,
            commits=commits,
            time_ms=self.now_ms,
        )
        offset = self.partition.append(bytearray(marker))
        first = self.first_open.pop(producer)
        records = self.pending.pop(producer)
        if commits:
            self.committed = sorted([*self.committed, *records])
        else:
            self.aborted += (producer, first, offset)
        return offset

    @property
    def last_stable(self) -> int:
        return min(self.first_open.values(), default=self.partition.high_watermark)

    def item(self) -> KeyedItem | None:
        self.partition.stable_end = self.last_stable
        items = plan(
            [self.partition.page()],
            {TOPIC_ID: self.partition.topic()},
            CompactionSettings(run_bytes_target=300),
            now_ms=self.now_ms,
            whole=False,
        ).items
        found = [item for item in items if isinstance(item, KeyedItem)]
        if not found:
            return None
        return msgspec.structs.replace(found[0], aborted=self.aborted, producers=self.active)

    def clean(self) -> bool:
        self.partition.upload()
        item = self.item()
        if item is None:
            return False
        done = clean_partition(
            item, self.store, map_bytes=self.map_bytes, chunk_bytes=self.chunk_bytes
        )
        self.partition.replace(item, done)
        at = iter(self.aborted)
        (replaced,) = done.partitions
        assert all(marker < replaced.clean_end for marker in replaced.markers)
        self.aborted = [
            number
            for row in zip(at, at, at, strict=True)
            if row[2] not in replaced.markers
            for number in row
        ]
        return True

    def batches(self) -> list[tuple[StoredHeader, memoryview]]:
        found = []
        for run in self.partition.runs:
            body = bytearray(
                run.wal or self.store.objects[run.key][run.position : run.position + run.length]
            )
            at, offset = 0, run.base_offset
            while at < len(body):
                if run.raw:
                    patch_base_offset(memoryview(body)[at:], offset, 0)
                header = stored_header(body, at)
                batch = memoryview(body)[at : at + header.length]
                assert crc_is_right(batch)
                found.append((header, batch))
                at, offset = at + header.length, header.end_offset
        return found

    def is_aborted(self, header: StoredHeader) -> bool:
        at = iter(self.aborted)
        return any(
            header.producer_id == producer and first <= header.base_offset < marker
            for producer, first, marker in zip(at, at, at, strict=True)
        )

    def read_committed(self) -> list[tuple[int, bytes, bytes | None]]:
        """What a consumer of committed records reads, which has the list of aborted transactions.

        Source: Kafka's CompletedFetch.nextFetchedRecord.
        """
        at = iter(self.aborted)
        listed = sorted((first, producer) for producer, first, _ in zip(at, at, at, strict=True))
        skipped: set[int] = set()
        found = []
        for header, batch in self.batches():
            if header.base_offset >= self.last_stable:
                break
            while listed and listed[0][0] < header.end_offset:
                skipped.add(listed.pop(0)[1])
            if header.attributes & CONTROL:
                if header.record_count and is_abort(batch):
                    skipped.discard(header.producer_id)
                continue
            if not header.record_count:
                continue
            if header.attributes & TRANSACTIONAL and header.producer_id in skipped:
                continue
            for record in decode_batch(batch):
                assert record.key is not None
                found.append((header.base_offset + record.offset_delta, record.key, record.value))
        return found

    def markers(self) -> list[int]:
        return [
            header.base_offset
            for header, _ in self.batches()
            if header.attributes & CONTROL and header.record_count
        ]


def latest(records: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes]:
    values: dict[bytes, bytes | None] = {}
    for _, key, value in records:
        values[key] = value
    return {key: value for key, value in values.items() if value is not None}


def written(*, commits: bool) -> Transactional:
    """Offset 0 plain, 1 of a transaction with the same key, 2 its marker, 3 plain."""
    log = Transactional(Random(1))
    log.write(-1, b"k", b"plain")
    log.write(5, b"k", b"of a transaction")
    log.end(5, commits=commits)
    log.write(-1, b"other", b"x")
    return log


def test_an_aborted_record_supersedes_none_and_goes() -> None:
    log = written(commits=False)
    assert log.clean()
    assert log.read_committed() == [(0, b"k", b"plain"), (3, b"other", b"x")]
    offsets = [header.base_offset for header, _ in log.batches()]
    # The marker stays until a pass has met nothing of its transaction.
    assert offsets == [0, 2, 3]


def test_a_marker_goes_when_it_is_as_old_as_a_tombstone_must_be() -> None:
    for commits in (False, True):
        log = written(commits=commits)
        log.clean()
        if commits:
            log.write(-1, b"k", b"newer")
            log.clean()
            assert [header.base_offset for header, _ in log.batches()] == [2, 3, 4]
        log.write(-1, b"more", b"1")
        log.clean()
        (marker,) = [header for header, _ in log.batches() if header.attributes & CONTROL]
        assert marker.attributes & DELETE_HORIZON
        assert (marker.base_timestamp, marker.max_timestamp) == (
            log.now_ms + RETENTION_MS,
            START_MS,
        )
        log.now_ms += RETENTION_MS - 1
        log.write(-1, b"more", b"2")
        log.clean()
        assert log.markers() == [2]
        log.now_ms += 1
        log.write(-1, b"more", b"3")
        log.clean()
        assert log.markers() == []
        assert log.aborted == []


def test_what_a_producer_commits_after_an_abort_is_read_once_its_marker_is_gone() -> None:
    log = written(commits=False)
    for number in range(3):
        log.now_ms += RETENTION_MS
        log.write(-1, b"more", b"%d" % number)
        log.clean()
    assert log.markers() == []
    offset = log.write(5, b"later", b"committed")
    log.end(5, commits=True)
    assert (offset, b"later", b"committed") in log.read_committed()


def test_a_marker_stays_as_long_as_a_record_of_its_transaction() -> None:
    log = written(commits=True)
    for number in range(4):
        log.now_ms += 2 * RETENTION_MS
        log.write(-1, b"more", b"%d" % number)
        log.clean()
    assert log.markers() == [2]
    (marker,) = [header for header, _ in log.batches() if header.attributes & CONTROL]
    assert not marker.attributes & DELETE_HORIZON


def test_nothing_is_cleaned_past_the_last_stable_offset() -> None:
    log = Transactional(Random(1))
    log.write(-1, b"k", b"old")
    log.partition.upload()
    log.write(5, b"k", b"open")
    log.partition.upload()
    log.write(-1, b"k", b"new")
    assert log.clean()
    assert log.partition.clean_end == 1
    assert [header.base_offset for header, _ in log.batches()] == [0, 1, 2]
    log.end(5, commits=True)
    assert log.clean()
    assert [header.base_offset for header, _ in log.batches()] == [2, 3]


def test_the_header_of_an_active_producer_s_last_batch_stays() -> None:
    log = written(commits=False)
    log.active = [5, 0, 7]
    log.clean()
    assert [(h.base_offset, h.record_count) for h, _ in log.batches()] == [
        (0, 1),
        (1, 0),
        (2, 1),
        (3, 1),
    ]
    assert log.read_committed() == [(0, b"k", b"plain"), (3, b"other", b"x")]


def test_a_marker_with_a_horizon_keeps_its_record() -> None:
    for time_ms, horizon_ms in ((0, 0), (START_MS, START_MS + 1), (START_MS, 5), (5, 1 << 62)):
        marker = marker_batch(
            base_offset=9,
            leader_epoch=3,
            producer_id=8,
            producer_epoch=2,
            commits=True,
            time_ms=time_ms,
        )
        changed = marker_with_horizon(marker, horizon_ms)
        header = stored_header(changed, 0)
        assert crc_is_right(changed)
        assert header.length == len(changed)
        assert header.attributes == stored_header(marker, 0).attributes | DELETE_HORIZON
        (before,), (after,) = decode_batch(memoryview(marker)), decode_batch(changed)
        assert (after.key, after.value, after.timestamp) == (before.key, before.value, time_ms)
        assert len(index_batches(changed, subject="test").rows) == 1


@pytest.mark.slow
@given(
    seed=st.integers(0, 1 << 32),
    events=st.integers(1, 60),
    map_bytes=st.sampled_from([1, 1 << 20]),
    chunk_bytes=st.sampled_from([1, 200, 1 << 20]),
)
@settings(max_examples=examples(1))
def test_a_reader_of_committed_records_finds_the_same_latest_values(
    seed: int, events: int, map_bytes: int, chunk_bytes: int
) -> None:
    random = Random(seed)
    log = Transactional(random, map_bytes=map_bytes, chunk_bytes=chunk_bytes)
    for _ in range(events):
        step = random.randrange(10)
        producer = random.choice((1, 2, 3))
        if step < 3:
            log.write(-1, random.choice((b"a", b"b", b"c")), random.choice((b"x", b"y", None)))
        elif step < 6:
            log.write(producer, random.choice((b"a", b"b", b"c")), random.randbytes(2))
        elif step < 8 and log.first_open:
            log.end(random.choice(sorted(log.first_open)), commits=random.random() < 0.5)
        elif step == 8:
            log.now_ms += random.choice((1, RETENTION_MS))
            log.partition.upload()
        else:
            log.clean()
        _check(log)
    for producer in sorted(log.first_open):
        log.end(producer, commits=False)
    # Until all have been met by no pass, and are old enough.
    for number in range(6):
        log.now_ms += RETENTION_MS
        log.write(-1, b"last", b"%d" % number)
        log.clean()
        _check(log)
    kept = {header.producer_id for header, _ in log.batches() if _is_data(header)}
    left = {header.producer_id for header, _ in log.batches() if header.attributes & CONTROL}
    assert left <= kept


def _is_data(header: StoredHeader) -> bool:
    return bool(header.attributes & TRANSACTIONAL) and not header.attributes & CONTROL


def _check(log: Transactional) -> None:
    stable = log.last_stable
    assert latest(log.read_committed()) == latest(
        [record for record in log.committed if record[0] < stable]
    )
    for header, _ in log.batches():
        if header.end_offset <= log.partition.clean_end and log.is_aborted(header):
            assert header.attributes & CONTROL or not header.record_count
    # What is past the last stable offset is all there.
    offsets = {header.base_offset for header, _ in log.batches()}
    assert offsets >= {offset for offset, *_ in log.committed if offset >= stable}
    assert offsets >= {offset for records in log.pending.values() for offset, *_ in records}
