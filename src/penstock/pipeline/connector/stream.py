"""Reading topics as a stream, in Spark's micro-batches.

What is remembered from batch to batch is in the offsets that Spark keeps in the checkpoint
(`offsets`), and nowhere else: Spark's `commit` may come late or never, so nothing hangs on it but
what tools for lag are shown (`group_commits`).

From Spark 4.2 on the engine says where a batch begins and how much it may hold, so that limits and
`trigger(availableNow=True)` are Spark's own. On 4.1 the limit is kept here, and the first batch
after a restart isn't limited: Spark 4.1 doesn't tell where it begins.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.model.errors import NotFoundError
from penstock.pipeline.api_messages import TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.connector import stream_plan
from penstock.pipeline.connector.group_commits import GroupCommits, check_installed
from penstock.pipeline.connector.losses import Losses
from penstock.pipeline.connector.offsets import StreamOffsets, TopicOffsets, from_json, to_json
from penstock.pipeline.connector.offsets_wanted import (
    TopicRange,
    check_each,
    choose,
    starts,
    taken,
)
from penstock.pipeline.connector.options import ReadOptions
from penstock.pipeline.connector.read import (
    ReadPartition,
    division,
    find_topics,
    read_partition,
)
from penstock.pipeline.connector.read_plan import divide
from penstock.pipeline.connector.union_stream_plan import check_log_alone
from penstock.system.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ImportError:  # pyspark 4.1
    HAS_LIMITS = False


class StreamPlanner:
    """The driver's side of a stream, whatever the version of Spark that asks.

    It lives as long as the query runs, in a Python process of its own.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        self._client: PipelineClient | None = None
        self._topics: Sequence[TopicState] = ()
        self._last: stream_plan.Ends | None = None
        self._triggered_s: float | None = None

    def initial(self) -> StreamOffsets:
        """Return the start of a query without a checkpoint."""
        topics = self._find()
        chosen = choose(self._options, topics)
        check_each(self._options, chosen)
        first = starts(self._options, chosen, self._api().offsets, self._losses())
        return stream_plan.begin(chosen, first)

    def freeze(self) -> None:
        """From now on the stream ends where the log ends now."""
        self._last = stream_plan.high_watermarks(self._find())

    def advance(
        self, start: StreamOffsets, *, rows_max: int | None, rows_min: int | None
    ) -> StreamOffsets:
        """Return the end of the batch that begins at `start`; `start`: there is no batch yet."""
        topics = self._find()
        known = self.followed(start)
        for name in self._options.names or self._options.assigned or ():
            if name not in known.topics and name not in {topic.name for topic in topics}:
                raise NotFoundError("read stream", f"topic {name!r}", "there is no such topic")
        if self._waits(known, topics, rows_min):
            return start
        end = stream_plan.advance(
            known,
            topics,
            self._losses(),
            assigned=self._options.assigned,
            rows_max=rows_max,
            last=self._last,
        )
        if end is known:
            return start
        self._triggered_s = self._clock.monotonic_s()
        # What isn't subscribed any more stays known, so that coming back to it loses nothing.
        return StreamOffsets(topics={**start.settled().topics, **end.topics})

    def partitions(self, start: StreamOffsets, end: StreamOffsets) -> list[InputPartition]:
        """The tasks of a batch."""
        return self._tasks(start, end, self._losses()) if start != end else []

    def partitions_after(
        self, start: StreamOffsets, end: StreamOffsets
    ) -> tuple[list[InputPartition], StreamOffsets]:
        """The tasks of a batch whose end may have been planned without its start, and what is known
        once they are done."""
        losses = self._losses()
        stream_plan.check_start(self.followed(start), self._find(), losses)
        tasks = self._tasks(start, end, losses)
        return tasks, stream_plan.remembered(start, end, losses.records)

    def newest(self) -> StreamOffsets:
        """Return the present ends of all that is subscribed."""
        self._find()
        return self.latest()

    def latest(self) -> StreamOffsets:
        """Return the ends of all that is subscribed, as last asked for; for a query's progress."""
        topics = {topic.name: topic for topic in self._topics}
        return StreamOffsets(
            topics={
                name: TopicOffsets(
                    topic_id=topic.topic_id,
                    partitions={
                        partition: state.high_watermark
                        for partition, state in taken(self._options.assigned, topic)
                    },
                )
                for name, topic in topics.items()
            }
        )

    def followed(self, offsets: StreamOffsets) -> StreamOffsets:
        """Return the offsets of topics that are subscribed now."""
        topics = {name: topic for name, topic in offsets.topics.items() if self._follows(name)}
        return StreamOffsets(topics=topics, initial=offsets.initial)

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[TopicRange]:
        """The offsets of a batch."""
        return self._ranges(start, end, self._losses())

    def _ranges(self, start: StreamOffsets, end: StreamOffsets, losses: Losses) -> list[TopicRange]:
        return stream_plan.ranges(start, self.followed(end), self._find(), losses)

    def _tasks(
        self, start: StreamOffsets, end: StreamOffsets, losses: Losses
    ) -> list[InputPartition]:
        ranges = self._ranges(start, end, losses)
        tasks = divide(ranges, division(self._options), self._api().runs)
        api = self._options.api
        return [ReadPartition(task, api) for task in tasks]

    def _waits(
        self, start: StreamOffsets, topics: Sequence[TopicState], rows_min: int | None
    ) -> bool:
        if rows_min is None or self._last is not None or self._triggered_s is None:
            return False
        waited_ms = (self._clock.monotonic_s() - self._triggered_s) * 1000
        if waited_ms >= self._options.trigger_delay_ms:
            return False
        return stream_plan.available(start, topics, self._options.assigned) < rows_min

    def _follows(self, name: str) -> bool:
        if self._options.pattern is not None:
            return re.fullmatch(self._options.pattern, name) is not None
        return name in (self._options.names or self._options.assigned or ())

    def _find(self) -> Sequence[TopicState]:
        self._topics = find_topics(self._api(), self._options)
        return self._topics

    def _losses(self) -> Losses:
        return Losses(allowed=not self._options.fail_on_data_loss)

    def _api(self) -> PipelineClient:
        if self._client is None:
            self._client = PipelineClient(self._options.api)
        return self._client


class _StreamReader(DataSourceStreamReader):
    """The common part of both versions of the reader."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._planner = StreamPlanner(options)
        self._group = GroupCommits(options.commits_to)
        if options.commits_to is not None:
            check_installed()

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends the reader to tasks, which have no use for connections and what they learnt.
        return {"_options": self._options, "_columns": self._columns}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._planner = StreamPlanner(self._options)
        self._group = GroupCommits(self._options.commits_to)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return to_json(self._planner.initial())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._planner.partitions(_kept(start), _kept(end))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Let tools that watch lag know. Nothing else hangs on it: Spark doesn't call it for the
        last batch of a query."""
        self._group.commit(self._planner.followed(_kept(end)))

    def stop(self) -> None:
        self._group.close()
        self._planner.close()


if HAS_LIMITS:

    class LimitedStreamReader(_StreamReader, SupportsTriggerAvailableNow):
        """For Spark 4.2 and later, whose engine hands over start and limit."""

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            """Return the end of the batch that begins at `start`."""
            if isinstance(limit, ReadAllAvailable):
                rows_max = rows_min = None
            else:
                rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
                rows_min = self._options.offsets_min
            before = _kept(start)
            end = self._planner.advance(before, rows_max=rows_max, rows_min=rows_min)
            return start if end is before else to_json(end)

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            """Return the batch size of the options."""
            if self._options.offsets_max is not None:
                return ReadMaxRows(self._options.offsets_max)
            if self._options.offsets_min is not None:
                return ReadMinRows(self._options.offsets_min)
            return ReadAllAvailable()

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            """Return the log's end, for the query's progress."""
            return to_json(self._planner.latest())

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """End where the log ends now."""
            self._planner.freeze()


class PlainStreamReader(_StreamReader):
    """For Spark 4.1, whose engine asks for the latest offset and says nothing."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._end: StreamOffsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a query without a checkpoint."""
        self._end = self._planner.initial()
        return to_json(self._end)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Return the end of the next batch."""
        if self._end is None:
            # After a restart, before the first batch: where it begins isn't known.
            self._end = self._planner.newest()
        else:
            self._end = self._planner.advance(
                self._end, rows_max=self._options.offsets_max, rows_min=self._options.offsets_min
            )
        return to_json(self._end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch; its end is where the next one begins."""
        tasks, self._end = self._planner.partitions_after(_kept(start), _kept(end))
        return tasks


def stream_reader(options: ReadOptions, columns: Sequence[str]) -> DataSourceStreamReader:
    """The reader that this Spark can drive."""
    if HAS_LIMITS:
        return LimitedStreamReader(options, columns)
    return PlainStreamReader(options, columns)


def _kept(offsets: dict[str, Any]) -> StreamOffsets:
    """Offsets out of a checkpoint. Raises: InvalidRequestError: they are of a table, too."""
    return check_log_alone(from_json(offsets))
