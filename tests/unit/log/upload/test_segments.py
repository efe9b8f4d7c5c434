"""Batches are described for a segment in slices, between which others have a turn."""

import asyncio
from itertools import groupby
from pathlib import Path

import pytest

from penstock.log.upload.plan import PartitionMove
from penstock.log.upload.segments import VIEWS_AT_ONCE, segment_run, segment_runs
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey
from penstock.segment import RunDescriber, SegmentRun
from penstock.state.answers import BatchStatus
from penstock.state.rows import StoredRun
from support.cluster_rig import Cluster, one_batch, run_cluster

KEY = PartitionKey(1 << 20)
PLACE = (bytes(16), 0)


def batches(count: int) -> tuple[PartitionMove, list[memoryview]]:
    views = []
    for offset in range(count):
        batch = one_batch(b"%d" % offset)
        batch[:8] = offset.to_bytes(8, "big")
        views.append(memoryview(batch))
    runs = tuple(
        StoredRun(KEY, offset, offset + 1, 1, "", 0, len(view), -1, 1)
        for offset, view in enumerate(views)
    )
    return PartitionMove(partition_key=KEY, runs=runs, length=sum(map(len, views))), views


@pytest.mark.parametrize("counts", [[1], [VIEWS_AT_ONCE], [2 * VIEWS_AT_ONCE + 1], [70, 70, 70]])
def test_turns_are_short_and_come_to_the_same(counts: list[int]) -> None:
    items = [(PLACE, *batches(count)) for count in counts]

    steps = segment_runs(items)
    taken = []
    while True:
        try:
            taken.append(next(steps))
        except StopIteration as end:
            in_turns: list[SegmentRun] = end.value
            break
    assert taken == [VIEWS_AT_ONCE] * (sum(counts) // VIEWS_AT_ONCE)
    assert in_turns == [segment_run(*item) for item in items]
    for (_, _, views), run in zip(items, in_turns, strict=True):
        assert (run.record_count, run.end_offset) == (len(views), len(views))
        assert b"".join(map(bytes, run.parts)) == b"".join(views)


def test_what_does_not_follow_on_is_no_run() -> None:
    move, views = batches(3)
    with pytest.raises(CorruptDataError):
        segment_run(PLACE, move, [views[0], views[2], views[1]])


@pytest.mark.slow
def test_others_have_a_turn_between_two_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    add = RunDescriber.add

    def telling(described: RunDescriber, view: memoryview) -> None:
        seen.append("view")
        add(described, view)

    monkeypatch.setattr(RunDescriber, "add", telling)

    async def test(cluster: Cluster) -> None:
        one = await cluster.agent(1, wal=True, durability="wal")
        (key,) = await one.topic("t")
        count = 3 * VIEWS_AT_ONCE
        sent = [one.send((key, b"%d" % number), timeout_ms=60_000) for number in range(count)]
        for number, answer in enumerate(sent):
            (append,) = await answer
            assert (append.status, append.base_offset) == (BatchStatus.STORED, number)
        uploader = one.log.uploader
        assert uploader is not None
        draining = asyncio.ensure_future(uploader.drain(60))

        def other() -> None:
            seen.append("other")
            if not draining.done() and seen.count("view") < count:
                cluster.loop.call_soon(other)

        other()
        assert await draining
        slices = [len(list(run)) for what, run in groupby(seen) if what == "view"]
        assert slices == [VIEWS_AT_ONCE] * 3
        assert len(await one.read_all(key)) == count

    run_cluster(tmp_path, test)
