"""Cleaning partitions of a log in this process: what the compaction job does, without an API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

from penstock.model.ids import PartitionKey
from penstock.pipeline.compaction.items import InputObject, ItemPartition, KeyedItem
from penstock.pipeline.compaction.keyed import clean_partition
from penstock.ports.objects import ObjectStore
from penstock.segment import job_object_key
from penstock.state.answers import JobOpened, RunsReplaced
from penstock.state.pipeline_commands import (
    CloseJob,
    OpenJob,
    OutputObject,
    ReplacedPartition,
    ReplaceRuns,
)
from penstock.system.randomness import SystemRandom
from support.log_rig import Rig

T = TypeVar("T")
RUNS_MAX = 10_000


class LoopStore:
    """A log's store for a thread that cleans. Implements `ItemStore`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: ObjectStore, job: int) -> None:
        self._loop = loop
        self._store = store
        self._job = job
        self._random = SystemRandom()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def get_range(self, key: str, start: int, end: int, *, origin: str = "") -> Buffer:
        del origin
        return self._wait(self._store.get_range(key, start, end))

    def read_into(self, space: memoryview, ranges: Sequence[tuple[str, int, int, str]]) -> None:
        at = 0
        for key, start, end, _ in ranges:
            body = self.get_range(key, start, end)
            size = memoryview(body).nbytes
            space[at : at + size] = body
            at += size
        assert at == space.nbytes

    def put(self, parts: Sequence[Buffer]) -> str:
        key = job_object_key(job=self._job, name=self.token_bytes(16).hex())
        self._wait(self._store.put(key, parts, if_absent=True))
        return key

    def token_bytes(self, count: int) -> bytes:
        return self._random.token_bytes(count)


async def clean(
    rig: Rig,
    key: PartitionKey,
    *,
    run_bytes: int = 64 << 20,
    delete_retention_ms: int = 86_400_000,
    before_commit: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Clean all runs of a partition that lie in objects before the first in the WAL; whether there
    was one, and nothing had changed it meanwhile.

    Args:
        before_commit: what others do when the objects have been put.
    """
    item = clean_item(rig, key, run_bytes=run_bytes, delete_retention_ms=delete_retention_ms)
    if item is None:
        return False
    (opened,) = await rig.log.commit(
        [OpenJob(kind="test", name="test", lease_ms=60_000, age_max_ms=600_000)]
    )
    assert isinstance(opened, JobOpened), opened
    store = LoopStore(asyncio.get_running_loop(), rig.store, opened.job)
    # Runs end where chunks do.
    done = await asyncio.to_thread(clean_partition, item, store, chunk_bytes=run_bytes)
    if before_commit is not None:
        await before_commit()
    (partition,) = done.partitions
    replaced, _ = await rig.log.commit(
        [
            ReplaceRuns(
                job=opened.job,
                n=1,
                input_keys=done.input_keys,
                objects=[
                    OutputObject(key=each.key, size_bytes=each.size_bytes) for each in done.objects
                ],
                partitions=[
                    ReplacedPartition(
                        partition_key=key,
                        inputs=partition.inputs,
                        outputs=partition.outputs,
                        clean_end=partition.clean_end,
                    )
                ],
            ),
            CloseJob(job=opened.job),
        ]
    )
    assert isinstance(replaced, RunsReplaced), replaced
    return replaced.codes == [0]


def clean_item(
    rig: Rig, key: PartitionKey, *, run_bytes: int, delete_retention_ms: int
) -> KeyedItem | None:
    """What is to be cleaned."""
    queries = rig.queries()
    runs = []
    for run in queries.runs_from(key, rig.log.log_start(key), limit=RUNS_MAX):
        if run.generation:
            break
        runs.append(run)
    if not runs:
        return None
    clean_row = queries.clean_rows([key]).get(key)
    objects = list(dict.fromkeys((run.object_key, run.raw) for run in runs))
    inputs: list[int] = []
    for run in runs:
        at = objects.index((run.object_key, run.raw))
        inputs += [run.base_offset, run.end_offset, at, run.position, run.length]
    producers = [
        number
        for each in queries.producers_of(key)
        for number in (each.producer_id, each.epoch, each.last_sequence)
    ]
    return KeyedItem(
        objects=[InputObject(name, raw) for name, raw in objects],
        partition=ItemPartition(
            topic_id="ab" * 16, partition=0, inputs=inputs, log_start=rig.log.log_start(key)
        ),
        clean_end=-1 if clean_row is None else clean_row.clean_end,
        cleanable_end=runs[-1].end_offset,
        young_ms=2**63 - 1,
        now_ms=rig.clock.now_ms(),
        delete_retention_ms=delete_retention_ms,
        producers=producers,
        run_bytes_target=run_bytes,
        reason="a test",
    )
