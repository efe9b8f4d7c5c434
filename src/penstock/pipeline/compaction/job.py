"""The compaction job: plan at a position, run items on an engine, commit each as it finishes.

The order of effects: the job is registered -> runs are listed -> items put objects under names of
their own -> one `ReplaceRequest` per item makes them live, and is refused for each partition whose
inputs changed meanwhile. A process that dies leaves objects that nothing names; agents condemn and
delete them once the job is closed, and its commits are refused from then on. So drivers may run at
the same time: the first commit of a partition wins, and the other's work for it is wasted.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import chain
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace as with_changes

from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.pipeline.api_messages import ABORTED_FIELDS, Range, TopicState
from penstock.pipeline.client import PipelineClient, RefusedError
from penstock.pipeline.compaction.commit import Committer
from penstock.pipeline.compaction.incremental import Memory
from penstock.pipeline.compaction.items import CompactionSettings, Item, ItemDone, KeyedItem
from penstock.pipeline.compaction.plan import Plan, plan
from penstock.pipeline.compaction.task import (
    ACCESSES,
    CompactionTask,
    ItemFailed,
    ItemGone,
    Outcome,
)
from penstock.pipeline.engine import Engine
from penstock.pipeline.lease import JobLease
from penstock.state.schema import MERGING_LEVEL

logger = logging.getLogger(__name__)

KIND: Final = "compaction"
ROUNDS_MAX: Final = 5
_PRODUCERS_AT_ONCE: Final = 1000
_INPUT_FIELDS: Final = 5
_OUTPUT_FIELDS: Final = 7

Watch = Callable[[int, int, int], None]
"""Called with progress: bytes done, bytes in all, items done."""


class Stopping(Protocol):
    """Says whether to end early; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """It is."""
        ...


class RefusedPartition(Struct, frozen=True, kw_only=True):
    """Work that wasn't needed any more: `code` as in `penstock.pipeline.api_messages.Replaced`."""

    topic: str
    partition: int
    code: str


class Summary(Struct, kw_only=True):
    """The result of a job. `partitions`, runs and dropped records count what took effect; bytes
    count everything that items read and wrote."""

    job: int = 0
    rounds: int = 0
    planned_items: int = 0
    items: int = 0
    """Committed, at least in part."""
    left_items: int = 0
    """Planned in the last round, and not done."""
    partitions: int = 0
    runs_before: int = 0
    runs_after: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    dropped_records: int = 0
    merged_batches: int = 0
    """Batches that became part of a larger one."""
    refused: list[RefusedPartition] = []
    gone_items: int = 0
    """Items whose inputs were deleted before they were read."""
    failures: list[str] = []
    """Items that can't be done: damaged inputs, refused objects."""
    seconds: float = 0.0


def plan_compaction(
    client: PipelineClient,
    settings: CompactionSettings,
    names: Sequence[str] | None = None,
    memory: Memory | None = None,
) -> tuple[Plan, dict[str, TopicState]]:
    """Plan at the position of now.

    Args:
        names: of topics; None: all.
        memory: of plans for all topics; what nothing has changed in isn't listed again.

    Returns:
        The plan, and the topics by id.

    Raises:
        NotFoundError: a named topic isn't there.
    """
    # Up to the last stable offset: what is past it may be aborted yet.
    assert client.options.reads_committed
    answer = client.topics(names=names)
    topics = {topic.topic_id: topic for topic in answer.topics}
    ranges: list[Range] | None = None
    if names is None:
        if memory is not None:
            ranges = memory.ranges(answer.topics, now_ms=answer.time_ms)
    else:
        missing = set(names) - {topic.name for topic in topics.values()}
        if missing:
            raise NotFoundError("compact", ", ".join(sorted(missing)), "no such topic")
        ranges = [
            Range(topic.topic_id, partition, state.log_start, state.high_watermark)
            for topic in topics.values()
            for partition, state in enumerate(topic.partitions)
            if state.log_start < state.high_watermark
        ]
    # Without any range there is nothing to list; None would mean all.
    pages = client.runs(ranges) if ranges is None or ranges else iter(())
    planned = plan(
        pages,
        topics,
        settings,
        now_ms=answer.time_ms,
        whole=ranges is None,
        merges=answer.level >= MERGING_LEVEL,
        tried=() if memory is None else memory.tried,
    )
    if memory is not None and names is None:
        memory.note(answer.topics, planned.seen)
    return planned, topics


def compact(
    client: PipelineClient,
    engine: Engine,
    settings: CompactionSettings,
    *,
    names: Sequence[str] | None = None,
    job_name: str = "penstock pipeline compact",
    rounds_max: int = ROUNDS_MAX,
    watch: Watch | None = None,
    stopping: Stopping | None = None,
    memory: Memory | None = None,
) -> Summary:
    """Compact until there is nothing more to do, planning at most `rounds_max` times.

    Args:
        names: names of topics; None: all topics.
        watch: called with progress.
        stopping: looked at after each item; items that aren't committed then stay undone.
        memory: kept for the next time, so that not all runs are listed again.

    Raises:
        FencedError: another process closed the job: uncommitted work is lost.
        NotFoundError: a named topic isn't there.
        RetryableError: agents or store didn't answer for too long.
    """
    started_s = client.clock.monotonic_s()
    with (
        ACCESSES.held(client.options),
        JobLease(client, kind=KIND, name=job_name) as lease,
    ):
        job = _Job(client, engine, settings, names, lease, watch, stopping, memory)
        for _ in range(rounds_max):
            if job.is_stopping or not job.run_round():
                break
    job.summary.seconds = client.clock.monotonic_s() - started_s
    return job.summary


class _Job:
    def __init__(
        self,
        client: PipelineClient,
        engine: Engine,
        settings: CompactionSettings,
        names: Sequence[str] | None,
        lease: JobLease,
        watch: Watch | None,
        stopping: Stopping | None,
        memory: Memory | None,
    ) -> None:
        self.summary = Summary(job=lease.job)
        self._client = client
        self._engine = engine
        self._settings = settings
        self._names = names
        self._lease = lease
        self._watch = watch
        self._stopping = stopping
        self._memory = Memory(whole_ms=0) if memory is None else memory
        self._committer = Committer(client, lease.job)

    @property
    def is_stopping(self) -> bool:
        """Whether the job is to end early."""
        return self._stopping is not None and self._stopping.is_set()

    def run_round(self) -> bool:
        """Plan, and do it. Returns: whether planning again may find more."""
        planned, topics = plan_compaction(self._client, self._settings, self._names, self._memory)
        items = with_producers(self._client, planned.items)
        summary = self._summary_of_round(len(items))
        if not items:
            return False
        task = CompactionTask(self._client.options, self._lease.job)
        done_bytes = done_items = 0
        before = summary.partitions
        # Closed whatever happens: what still runs is cancelled before the job is closed.
        with closing(self._engine.run(task, items)) as outcomes:
            for index, outcome in outcomes:
                self._lease.check()
                self._take(outcome, topics)
                done_bytes += items[index].size_bytes
                done_items += 1
                summary.left_items -= 1
                if self._watch is not None:
                    self._watch(done_bytes, planned.planned_bytes, done_items)
                if self.is_stopping:
                    break
        return summary.partitions > before

    def _summary_of_round(self, item_count: int) -> Summary:
        summary = self.summary
        summary.rounds += 1
        summary.planned_items += item_count
        summary.left_items = item_count
        return summary

    def _take(self, outcome: Outcome, topics: dict[str, TopicState]) -> None:
        summary = self.summary
        match outcome:
            case ItemGone(detail=detail):
                summary.gone_items += 1
                logger.info("an item is of no use any more: %s", detail)
            case ItemFailed(detail=detail):
                summary.failures.append(detail)
                logger.error("an item can't be compacted: %s", detail)
            case ItemDone():
                summary.read_bytes += outcome.read_bytes
                summary.written_bytes += outcome.written_bytes
                self._commit(outcome, topics)

    def _commit(self, done: ItemDone, topics: dict[str, TopicState]) -> None:
        summary = self.summary
        self._memory.forget((one.topic_id, one.partition) for one in done.partitions)
        for one in done.partitions:
            # Whether it was merged or not: there is nothing more to merge.
            self._memory.note_tried((one.topic_id, one.partition), one.outputs[0], one.outputs[1])
        try:
            codes = self._committer.commit(done).codes
        except (RefusedError, InvalidRequestError) as error:
            summary.failures.append(str(error))
            logger.error("a commit was refused: %s", error)  # noqa: TRY400 - its text says all
            return
        took_effect = 0
        for code, partition in zip(codes, done.partitions, strict=True):
            if code:
                topic = topics.get(partition.topic_id)
                summary.refused.append(
                    RefusedPartition(
                        topic=topic.name if topic else partition.topic_id,
                        partition=partition.partition,
                        code=code,
                    )
                )
                continue
            took_effect += 1
            summary.runs_before += len(partition.inputs) // _INPUT_FIELDS
            summary.runs_after += len(partition.outputs) // _OUTPUT_FIELDS
        summary.partitions += took_effect
        if took_effect:
            summary.items += 1
            summary.dropped_records += done.dropped_records
            summary.merged_batches += done.merged_batches


def with_producers(client: PipelineClient, items: Sequence[Item]) -> list[Item]:
    """Items by key with what is known of their partitions' producers and of aborted transactions
    now, asked for after the runs were listed: what is in a listed run is known here."""
    found = list(items)
    keyed = [(at, item) for at, item in enumerate(found) if isinstance(item, KeyedItem)]
    for start in range(0, len(keyed), _PRODUCERS_AT_ONCE):
        some = keyed[start : start + _PRODUCERS_AT_ONCE]
        places = [(item.partition.topic_id, item.partition.partition) for _, item in some]
        producers = client.producers(places).producers
        for (at, item), flat in zip(some, producers, strict=True):
            found[at] = with_changes(item, producers=flat, aborted=_aborted(client, item))
    return found


def _aborted(client: PipelineClient, item: KeyedItem) -> list[int]:
    """The aborted transactions of an item, as it has them."""
    partition = item.partition
    wanted = Range(partition.topic_id, partition.partition, partition.inputs[0], item.cleanable_end)
    found: list[int] = []
    for page in client.runs([wanted], with_wal=False):
        fields = [page.aborted[field::ABORTED_FIELDS] for field in range(1, ABORTED_FIELDS)]
        found += chain.from_iterable(zip(*fields, strict=True))
    return found
