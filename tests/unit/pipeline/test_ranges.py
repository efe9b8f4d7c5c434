"""Ranges of records, whatever their runs look like and whatever happens to them meanwhile."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError, NotFoundError, RetryableError
from penstock.pipeline.api_messages import PartitionState, Range, RunPage, Topics, TopicState
from penstock.pipeline.ranges import ASKED_AGAIN_MAX, LogTruncatedError, RangePart, read_range
from penstock.records.batch import patch_base_offset
from penstock.records.sums import partition_seed
from penstock.segment import RunDescriber, SegmentRun, build_segment
from support.api_server import NOW_MS, offsets_in
from support.batches import make_batch

TOPIC_ID = "ab" * 16


@dataclass
class FakeRun:
    """Batches (base offset, count) one behind the other, maybe with gaps, and where they lie."""

    batches: list[tuple[int, int]]
    kind: str  # wal, final or raw
    end: int
    key: str = ""
    position: int = 0
    body: bytes = b""
    sum: int = -1

    @property
    def base(self) -> int:
        return self.batches[0][0]


@dataclass
class FakeLog:
    """A partition, which is both `PipelineClient` and `ObjectAccess` of a test."""

    runs_now: list[FakeRun]
    log_start: int = 0
    deleted: bool = False
    objects: dict[str, bytes] = field(default_factory=dict)
    page_runs: int = 1000
    before_read: Callable[[FakeLog], None] = lambda _: None
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    rests: list[int] = field(default_factory=list)
    names: int = 0

    def __post_init__(self) -> None:
        for run in self.runs_now:
            self.place(run)

    def place(self, run: FakeRun) -> None:
        """Lay a run down where its kind says."""
        parts = []
        for base, count in run.batches:
            batch = make_batch(*[b"v" * (base % 50)] * count, time=NOW_MS)
            if run.kind != "raw":
                patch_base_offset(memoryview(batch), base, 0)
            parts.append(batch)
        run.body = b"".join(bytes(part) for part in parts)
        if run.kind == "wal":
            return
        self.names += 1
        run.key = f"segments/{self.names}"
        seed = partition_seed(bytes.fromhex(TOPIC_ID), 0)
        described = RunDescriber(base_offset=run.base, operation="test", subject="run", seed=seed)
        described.add(
            memoryview(bytearray(run.body)), raw_offset=run.base if run.kind == "raw" else -1
        )
        whole = described.describe(bytes.fromhex(TOPIC_ID), 0)
        run.sum = whole.sum
        segment = build_segment(
            [
                SegmentRun(
                    topic_id=whole.topic_id,
                    partition=0,
                    base_offset=run.base,
                    end_offset=whole.end_offset,
                    record_count=whole.record_count,
                    batch_count=whole.batch_count,
                    max_timestamp=whole.max_timestamp,
                    parts=[run.body],
                    length=len(run.body),
                    marks=whole.marks,
                )
            ],
            offsets_final=run.kind == "final",
        )
        run.position = segment.positions[0]
        self.objects[run.key] = b"".join(bytes(part) for part in segment.parts)

    # -- as PipelineClient ----------------------------------------------------------------------

    def topics(self, topic_ids: Sequence[str]) -> Topics:
        assert list(topic_ids) == [TOPIC_ID]
        states = [PartitionState(log_start=self.log_start, high_watermark=1 << 40, size_bytes=0)]
        found = [TopicState(name="t", topic_id=TOPIC_ID, configs={}, partitions=states)]
        return Topics(position=1, time_ms=1, topics=[] if self.deleted else found)

    def runs(self, ranges: Sequence[Range]) -> Iterator[RunPage]:
        (wanted,) = ranges
        found = [run for run in self.runs_now if run.end > wanted.start and run.base < wanted.end]
        for at in range(0, len(found), self.page_runs):
            yield self._page(found[at : at + self.page_runs])

    def _page(self, runs: list[FakeRun]) -> RunPage:
        keys = [run.key for run in runs if run.key]
        rows: list[int] = []
        for run in runs:
            index = keys.index(run.key) if run.key else -1
            rows += [0, run.base, run.end, index, run.position, len(run.body), 0, len(run.batches)]
        return RunPage(
            position=1,
            partitions=[(TOPIC_ID, 0)],
            object_keys=keys,
            object_bytes=[len(self.objects.get(key, b"")) for key in keys],
            object_raw=[int(run.kind == "raw") for run in runs if run.key],
            object_origins=[""] * len(keys),
            rows=rows,
            sums=[run.sum for run in runs],
        )

    def records(
        self, topic_id: str, partition: int, start: int, end: int, *, bytes_max: int
    ) -> tuple[bytes, int]:
        self.before_read(self)
        if start < self.log_start:
            raise NotFoundError("read", "t", "trimmed")
        body, following = b"", start
        for run in self.runs_now:
            for base, count in run.batches:
                if base + count <= start or base >= end or len(body) >= bytes_max:
                    continue
                batch = make_batch(*[b"v" * (base % 50)] * count, time=NOW_MS)
                patch_base_offset(memoryview(batch), base, 0)
                body += batch
                following = base + count
        return body, following if body else end

    def rest(self, count: int) -> None:
        self.rests.append(count)

    # -- as ObjectAccess ---------------------------------------------------------------------------

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> bytes:
        self.before_read(self)
        self.reads.append((key, start, end))
        if key not in self.objects:
            raise NotFoundError("read", key, "gone")
        data = self.objects[key][start:end]
        assert len(data) == end - start
        return data

    def get_views(self, items: Sequence[tuple[Any, ...]]) -> list[memoryview]:
        return [memoryview(self.get_range(*item[:3])) for item in items]


def parts_of(log: FakeLog, start: int, end: int, bytes_max: int = 1 << 20) -> Iterator[RangePart]:
    wanted = Range(TOPIC_ID, 0, start, end)
    return read_range(log, log, wanted, bytes_max=bytes_max)  # type: ignore[arg-type]


@st.composite
def logs(draw: st.DrawFn, *, gaps: bool = True) -> FakeLog:
    runs: list[FakeRun] = []
    offset = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["wal", "final", "final", "raw"]))
        batches = []
        for _ in range(draw(st.integers(1, 8))):
            if gaps and kind == "final":
                offset += draw(st.sampled_from([0, 0, 0, 3]))
            count = draw(st.integers(1, 4))
            batches.append((offset, count))
            offset += count
        end = offset + (2 if gaps and kind == "final" and draw(st.booleans()) else 0)
        runs.append(FakeRun(batches, kind, end))
        offset = end
    return FakeLog(runs, page_runs=draw(st.integers(1, 4)))


def expected(log: FakeLog, start: int, end: int) -> list[int]:
    """Offsets of the batches that hold any of [start, end)."""
    return [
        offset
        for run in log.runs_now
        for base, count in run.batches
        if start < end and base + count > start and base < end
        for offset in range(base, base + count)
    ]


@given(logs(), st.data())
def test_any_range_is_read_whole_and_in_order(log: FakeLog, data: st.DataObject) -> None:
    last = log.runs_now[-1].end
    start = data.draw(st.integers(0, last))
    end = data.draw(st.integers(start, last))
    bytes_max = data.draw(st.sampled_from([1, 100, 300, 1000, 1 << 20]))
    parts = list(parts_of(log, start, end, bytes_max))
    found = offsets_in(b"".join(part.body for part in parts))
    wanted = expected(log, start, end)
    assert found == wanted
    nexts = [part.next_offset for part in parts]
    assert nexts == sorted(nexts)
    for part in parts:
        assert offsets_in(part.body)[-1] < part.next_offset


@given(logs(), st.data())
def test_runs_that_move_while_one_reads_are_asked_for_again(
    log: FakeLog, data: st.DataObject
) -> None:
    """Compaction joins objects, and the WAL moves into them: nothing is missed or read twice."""
    last = log.runs_now[-1].end
    wanted = expected(log, 0, last)
    left = [data.draw(st.integers(1, 4))]

    def move(log: FakeLog) -> None:
        if not left[0] or not data.draw(st.booleans()):
            return
        left[0] -= 1
        first = data.draw(st.integers(0, len(log.runs_now) - 1))
        count = data.draw(st.integers(1, len(log.runs_now) - first))
        joined = log.runs_now[first : first + count]
        for run in joined:
            log.objects.pop(run.key, None)
        batches = [batch for run in joined for batch in run.batches]
        run = FakeRun(batches, "final", joined[-1].end)
        log.place(run)
        log.runs_now[first : first + count] = [run]

    log.before_read = move
    parts = list(parts_of(log, 0, last, data.draw(st.sampled_from([100, 1000]))))
    assert offsets_in(b"".join(part.body for part in parts)) == wanted


@pytest.mark.parametrize("kind", ["final", "raw"])
@pytest.mark.parametrize("bytes_max", [100, 1 << 20])
def test_a_run_of_another_object_is_an_error(kind: str, bytes_max: int) -> None:
    """With the same offsets, lengths and right CRCs: in one part, and in several."""
    log = FakeLog([FakeRun([(0, 1), (1, 1), (2, 1)], kind, 3)])
    assert b"".join(bytes(part.body) for part in parts_of(log, 0, 3, bytes_max))
    (run,) = log.runs_now
    body = bytearray(log.objects[run.key])
    # The first batch is one of another time: its CRC is right, too.
    older = make_batch(b"", time=1)
    assert len(older) < len(run.body)
    body[run.position : run.position + len(older)] = older
    log.objects[run.key] = bytes(body)
    with pytest.raises(CorruptDataError, match=r"not the batches of offsets 0 to 2: their sum"):
        list(parts_of(log, 0, 3, bytes_max))
    # Of a run of an older release nobody knows the sum.
    run.sum = -1
    assert list(parts_of(log, 0, 3, bytes_max))


def test_what_never_comes_back_is_an_error_and_not_a_gap() -> None:
    log = FakeLog([FakeRun([(0, 2)], "final", 2), FakeRun([(2, 2)], "final", 4)])
    del log.objects["segments/2"]
    parts = parts_of(log, 0, 4, 60)
    assert offsets_in(next(parts).body) == [0, 1]
    with pytest.raises(RetryableError, match="at offset 2"):
        list(parts)
    assert len(log.rests) == ASKED_AGAIN_MAX + 1


def test_a_log_start_that_passes_the_reader_is_told() -> None:
    log = FakeLog([FakeRun([(0, 2)], "final", 2), FakeRun([(2, 2)], "final", 4)])
    parts = parts_of(log, 0, 4, 60)
    assert offsets_in(next(parts).body) == [0, 1]
    log.log_start = 3
    log.objects.clear()
    with pytest.raises(LogTruncatedError) as caught:
        list(parts)
    assert (caught.value.wanted, caught.value.available) == (2, 3)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.topic_id, again.partition, again.wanted, again.available) == (TOPIC_ID, 0, 2, 3)
    assert str(again) == str(caught.value)


def test_a_log_that_starts_later_is_told_before_anything_is_read() -> None:
    log = FakeLog([FakeRun([(0, 10)], "final", 10)], log_start=5)
    with pytest.raises(LogTruncatedError):
        next(parts_of(log, 4, 10))
    assert not log.reads
    assert offsets_in(next(parts_of(log, 5, 10)).body) == list(range(10))


def test_a_topic_that_is_deleted_meanwhile_is_not_found() -> None:
    log = FakeLog([FakeRun([(0, 2)], "final", 2), FakeRun([(2, 2)], "final", 4)])
    parts = parts_of(log, 0, 4, 60)
    next(parts)
    log.deleted = True
    log.objects.clear()
    with pytest.raises(NotFoundError, match="deleted"):
        list(parts)


def test_the_middle_of_a_large_run_is_found_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.segment.runs.MARK_BYTES", 4096)
    monkeypatch.setattr("penstock.pipeline.ranges._INDEX_FROM_BYTES", 1 << 16)
    run = FakeRun([(number * 3, 3) for number in range(2000)], "final", 6000)
    log = FakeLog([run])
    (part, *_) = parts_of(log, 4500, 4510, 1 << 14)
    assert 4500 in offsets_in(part.body)
    data_reads = [read for read in log.reads if read[2] <= run.position + len(run.body)]
    assert sum(end - start for _, start, end in data_reads) < len(run.body) // 4
