"""A partition's batches are described for a segment in steps, between which others have a turn."""

import asyncio
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.log.upload import uploader as uploader_module
from penstock.log.upload.plan import PartitionMove
from penstock.log.upload.segments import VIEWS_AT_ONCE, segment_run, segment_run_by_steps
from penstock.metadata.answers import BatchStatus
from penstock.metadata.rows import StoredRun
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey
from penstock.segment import SegmentRun
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


@pytest.mark.parametrize("count", [1, VIEWS_AT_ONCE, 2 * VIEWS_AT_ONCE + 1])
def test_steps_are_short_and_come_to_the_same(count: int) -> None:
    move, views = batches(count)
    steps = segment_run_by_steps(PLACE, move, views)
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            by_steps: SegmentRun = end.value
            break
        taken += 1
    assert taken == -(-count // VIEWS_AT_ONCE)
    whole = segment_run(PLACE, move, views)
    assert by_steps == whole
    assert (whole.record_count, whole.end_offset) == (count, count)
    assert b"".join(map(bytes, whole.parts)) == b"".join(views)


def test_what_does_not_follow_on_is_no_run() -> None:
    move, views = batches(3)
    with pytest.raises(CorruptDataError):
        segment_run(PLACE, move, [views[0], views[2], views[1]])


def test_others_have_a_turn_between_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def telling(*arguments: Any) -> Generator[None, None, SegmentRun]:
        steps = segment_run_by_steps(*arguments)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                run: SegmentRun = end.value
                return run
            seen.append("step")
            yield

    monkeypatch.setattr(uploader_module, "segment_run_by_steps", telling)

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
            if not draining.done() and seen.count("step") < 3:
                cluster.loop.call_soon(other)

        other()
        assert await draining
        steps = [index for index, what in enumerate(seen) if what == "step"]
        assert len(steps) == 3
        assert all("other" in seen[a:b] for a, b in pairwise(steps))
        assert len(await one.read_all(key)) == count

    run_cluster(tmp_path, test)
