"""These calls of the pipeline API only read: topics, offsets, runs, producers, records.

Every answer is as new as a head of the journal that was read after the request came.
"""

import re
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.app.api.calls import Call, message, read_message
from penstock.app.api.objects import sign_or_none
from penstock.app.api.sources import PipelineSources
from penstock.app.http.callers import Caller
from penstock.app.http.guard import caller_of
from penstock.log import Log
from penstock.model.errors import InvalidRequestError, NotFoundError, RetryableError
from penstock.model.ids import PartitionKey, partition_key, partition_of, topic_key_of
from penstock.model.topic_configs import TOPIC_CONFIGS, effective
from penstock.pipeline import api_messages as api
from penstock.pipeline.api_messages import (
    API_VERSION,
    ITEMS_MAX,
    Info,
    Offsets,
    OffsetsRequest,
    PartitionState,
    Producers,
    ProducersRequest,
    RunPage,
    RunsRequest,
    Topics,
    TopicsRequest,
    TopicState,
)
from penstock.records.batch import stored_header
from penstock.security.acl import Operation, ResourceType
from penstock.state.leader_epochs import FIRST_EPOCH
from penstock.state.read.queries import Queries
from penstock.state.read.view import Topic
from penstock.state.rows import RunRows
from penstock.state.transactions import AbortedRange

RUNS_MAX: Final = 100_000
"""A page has at most this many runs, which make about 10 MB of JSON."""
RECORDS_BYTES_MAX: Final = 64 << 20
_PATTERN_LENGTH_MAX: Final = 1000
_AFTER: Final = re.compile(r"(\d{1,19}):(\d{1,19})", re.ASCII)
_WAL: Final = -1
_ENCODE: Final = msgspec.json.encode
"""Encodes a page of runs in the pool, where its rows were read."""


def calls(sources: PipelineSources) -> Sequence[Call]:
    """See `pipeline_routes`."""
    reads = _Reads(sources)
    return [
        (api.INFO_PATH, "GET", "info", reads.info),
        (api.TOPICS_PATH, "POST", "topics", reads.topics),
        (api.OFFSETS_PATH, "POST", "offsets", reads.offsets),
        (api.RUNS_PATH, "POST", "runs", reads.runs),
        (api.PRODUCERS_PATH, "POST", "producers", reads.producers),
        (api.RECORDS_PATH, "GET", "records", reads.records),
    ]


class _Reads:
    def __init__(self, sources: PipelineSources) -> None:
        self._sources = sources
        self._signs: bool | None = None

    def _now(self, queries: Queries) -> tuple[int, int]:
        """Return the position, and the time in ms by which drivers measure ages."""
        return queries.position(), self._sources.ages.least_ms(queries.time_ms())

    async def info(self, request: Request) -> Response:
        caller_of(request).ask_nothing()
        sources = self._sources
        await sources.confirm()
        if self._signs is None:
            # Signing is tried once. It makes no request to the store, except for credentials.
            self._signs = bool((await sign_or_none(sources.store, "GET", ["probe"], 1))[0])
        position, time_ms = await sources.ask(self._now)
        return message(
            Info(
                cluster_id=sources.cluster_id,
                version=sources.version,
                api_version=API_VERSION,
                feature_level=sources.view.feature_level,
                position=position,
                time_ms=time_ms,
                objects="presigned" if self._signs else "agent",
                objects_url=sources.objects_url,
                block_bytes=sources.block_bytes,
            )
        )

    async def topics(self, request: Request) -> Response:
        wanted = await read_message(request, TopicsRequest)
        pattern = _pattern(wanted.pattern)
        sources = self._sources
        await sources.confirm()
        caller = caller_of(request)
        caller.ask_nothing()
        topics = [
            topic
            for topic in sources.view.topics()
            if _is_wanted(topic, wanted, pattern)
            and caller.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        ]
        states = {
            partition_key(topic.topic_key, number): sources.view.head(
                partition_key(topic.topic_key, number)
            )
            for topic in topics
            for number in range(topic.partitions)
        }
        # The heads are read before the queries, which may wait: the answer then has at least
        # everything up to its position.
        heads = {
            key: (head.log_start, head.next_offset, head.last_stable)
            for key, head in states.items()
            if head
        }
        cluster_configs = sources.view.cluster_configs
        configs = [
            {
                name: effective(config, topic.configs, cluster_configs)
                for name, config in TOPIC_CONFIGS.items()
            }
            for topic in topics
        ]
        keys = list(heads)

        def look(
            queries: Queries,
        ) -> tuple[int, int, dict[PartitionKey, int], dict[PartitionKey, int]]:
            with queries.moment():
                sizes = queries.partition_bytes(keys)
                clean = {key: row.clean_end for key, row in queries.clean_rows(keys).items()}
                return (*self._now(queries), sizes, clean)

        position, time_ms, sizes, clean = await sources.ask(look)

        def state(key: PartitionKey) -> PartitionState:
            log_start, next_offset, last_stable = heads[key]
            starts = sources.view.epoch_starts(key)
            return PartitionState(
                log_start=log_start,
                high_watermark=next_offset,
                size_bytes=sizes.get(key, 0),
                clean_end=clean.get(key, -1),
                epoch_starts=[] if starts == FIRST_EPOCH else list(starts),
                last_stable=last_stable,
            )

        return message(
            Topics(
                position=position,
                time_ms=time_ms,
                topics=[
                    TopicState(
                        name=topic.name,
                        topic_id=topic.topic_id.hex(),
                        configs=config,
                        partitions=[
                            state(partition_key(topic.topic_key, number))
                            for number in range(topic.partitions)
                        ],
                    )
                    for topic, config in zip(topics, configs, strict=True)
                ],
                level=sources.view.feature_level,
            )
        )

    async def offsets(self, request: Request) -> Response:
        wanted = await read_message(request, OffsetsRequest)
        _check_count(len(wanted.items))
        sources = self._sources
        await sources.confirm()
        found: list[int] = []
        topics = {topic_id for topic_id, _, _ in wanted.items}
        self._need_topics(caller_of(request), topics, Operation.DESCRIBE)
        for topic_id, partition, time_ms in wanted.items:
            key = sources.partition(topic_id, partition)
            at = await sources.log.offset_for_time(key, time_ms)
            found.append(-1 if at is None else at[0])
        return message(Offsets(offsets=found))

    async def producers(self, request: Request) -> Response:
        wanted = await read_message(request, ProducersRequest)
        _check_count(len(wanted.partitions))
        sources = self._sources
        await sources.confirm()
        topics = {topic_id for topic_id, _ in wanted.partitions}
        self._need_topics(caller_of(request), topics, Operation.READ)
        keys = [sources.partition(*each) for each in wanted.partitions]

        def look(queries: Queries) -> list[list[int]]:
            return [
                [
                    number
                    for producer in queries.producers_of(key)
                    for number in (producer.producer_id, producer.epoch, producer.last_sequence)
                ]
                for key in keys
            ]

        return message(Producers(producers=await sources.ask(look)))

    async def runs(self, request: Request) -> Response:
        wanted = await read_message(request, RunsRequest)
        if wanted.limit < 1:
            raise InvalidRequestError(
                "list", "runs", f"the limit is {wanted.limit}, 1 to {RUNS_MAX} are possible"
            )
        limit = min(wanted.limit, RUNS_MAX)
        after = _after(wanted.after)
        sources = self._sources
        await sources.confirm()
        caller = caller_of(request)
        if wanted.ranges is None:
            caller.need_cluster(Operation.DESCRIBE)
            for topic in sources.view.topics():
                caller.need_topic(topic.name, Operation.READ)
            return _json(
                await sources.ask(
                    lambda queries: _ENCODE(
                        _all(queries, after, limit=limit, with_wal=wanted.with_wal)
                    )
                )
            )
        self._need_topics(caller, {each.topic_id for each in wanted.ranges}, Operation.READ)
        ranges = [
            (sources.partition(each.topic_id, each.partition), each.start, each.end)
            for each in wanted.ranges
        ]
        return _json(
            await sources.ask(
                lambda queries: _ENCODE(
                    _within(
                        queries,
                        ranges,
                        after,
                        limit=limit,
                        with_wal=wanted.with_wal,
                        with_aborted=wanted.aborted,
                    )
                )
            )
        )

    async def records(self, request: Request) -> Response:
        topic_id = request.query_params.get("topic_id", "")
        partition, start, end = (_number(request, name) for name in ("partition", "start", "end"))
        bytes_max = min(_number(request, "bytes_max", RECORDS_BYTES_MAX), RECORDS_BYTES_MAX)
        sources = self._sources
        await sources.confirm()
        caller = caller_of(request)
        self._need_topics(caller, {topic_id}, Operation.READ)
        key = sources.partition(topic_id, partition)
        log = sources.log
        subject = f"partition {partition} of topic {topic_id}"
        _check_start(log, key, start, subject)
        end = min(end, log.high_watermark(key))
        body = bytearray()
        offset = start
        while offset < end and len(body) < bytes_max:
            read = await log.reader.read_loaded(key, offset, bytes_max - len(body))
            if read is None:
                await self._check_gap(key, offset, end, subject)
                offset = end
                break
            kept_from = len(body)
            for view in read.views:
                body += view
            offset = read.end_offset
            if offset > end:
                offset = _cut(body, kept_from, end)
        # The start is checked again: records that retention removed meanwhile look like a gap.
        _check_start(log, key, start, subject)
        # So is what is allowed: reads may have waited for the store.
        self._need_topics(caller, {topic_id}, Operation.READ)
        return Response(
            bytes(body),
            media_type="application/octet-stream",
            headers={api.NEXT_OFFSET_HEADER: str(offset)},
        )

    def _need_topics(
        self, caller: Caller, topic_ids: Collection[str], operation: Operation
    ) -> None:
        """Raises: DeniedError: it isn't allowed; NotFoundError: there is no such topic, which ids
        do not keep secret."""
        caller.ask_nothing()
        for topic_id in topic_ids:
            topic = self._sources.topic(topic_id)
            if topic is None:
                raise NotFoundError("look up", f"topic {topic_id}", "there is no such topic")
            caller.need_topic(topic.name, operation)

    async def _check_gap(self, key: PartitionKey, offset: int, end: int, subject: str) -> None:
        """Check that a read found nothing because the range holds no records.

        Raises:
            RetryableError: the range holds records.
            NotFoundError: the log begins later by now, or the partition is gone.
        """
        sources = self._sources
        _check_start(sources.log, key, offset, subject)
        await sources.log.let_queries_find()
        runs = await sources.ask(
            lambda queries: queries.run_rows_within(key, offset, end, limit=1).rows
        )
        if runs:
            sources.log.reader.forget_places(key)
            raise RetryableError(
                "read", subject, f"the records at offset {offset} are being moved to another object"
            )


def _cut(body: bytearray, position: int, end: int) -> int:
    """Drop all batches that begin at `end` or later; return the offset of the next read.

    Args:
        position: the byte from which the body is looked through.
    """
    following = end
    while position < len(body):
        header = stored_header(body, position)
        if header.base_offset >= end:
            del body[position:]
            break
        position += header.length
        following = max(end, header.end_offset)
    return following


def _check_start(log: Log, key: PartitionKey, offset: int, subject: str) -> None:
    log_start = log.log_start(key)
    if offset < log_start:
        raise NotFoundError("read", subject, f"offset {offset}; the log begins at {log_start}")


def _all(queries: Queries, after: tuple[int, int] | None, *, limit: int, with_wal: bool) -> RunPage:
    with queries.moment():
        found = queries.run_rows(after or (-1, -1), limit=limit, with_wal=with_wal)
        ids = {key: topic_id for key, topic_id, *_ in queries.topic_rows()}
    following = ""
    if len(found.rows) >= limit:
        key, base_offset = found.rows[-1][:2]
        following = f"{key}:{base_offset}"
    return _page(found, ids, following)


def _within(
    queries: Queries,
    ranges: list[tuple[PartitionKey, int, int]],
    after: tuple[int, int] | None,
    *,
    limit: int,
    with_wal: bool,
    with_aborted: bool,
) -> RunPage:
    index, offset = after or (0, 0)
    rows: list[tuple[int, ...]] = []
    found = RunRows(0, rows, {})
    following = ""
    aborted: list[tuple[PartitionKey, AbortedRange]] = []
    with queries.moment():
        ids = {key: topic_id for key, topic_id, *_ in queries.topic_rows()}
        found.objects.clear()
        for number in range(index, len(ranges)):
            key, start, end = ranges[number]
            start = max(start, offset) if number == index else start
            part = queries.run_rows_within(
                key, start, end, limit=limit - len(rows), with_wal=with_wal
            )
            rows += part.rows
            if with_aborted and part.rows:
                listed = part.rows[-1][2]
                aborted += [(key, each) for each in queries.aborted_between(key, start, listed)]
            found.objects.update(part.objects)
            if len(rows) >= limit:
                following = f"{number}:{rows[-1][2]}"
                break
        position = queries.position()
    return _page(RunRows(position, rows, found.objects), ids, following, aborted)


def _page(
    found: RunRows,
    topic_ids: dict[int, bytes],
    after: str,
    aborted: Sequence[tuple[PartitionKey, AbortedRange]] = (),
) -> RunPage:
    partitions: dict[int, int] = {}
    objects = {object_id: index for index, object_id in enumerate(found.objects)}
    objects[0] = _WAL
    flat: list[int] = []
    sums: list[int] = []
    add = flat.extend
    for key, base, end, _, object_id, position, length, newest, batches, number in found.rows:
        index = partitions.setdefault(key, len(partitions))
        add((index, base, end, objects[object_id], position, length, newest, batches))
        sums.append(number)
    places = list(found.objects.values())
    return RunPage(
        position=found.position,
        partitions=[
            (topic_ids[topic_key_of(PartitionKey(key))].hex(), partition_of(PartitionKey(key)))
            for key in partitions
        ],
        object_keys=[place.key for place in places],
        object_bytes=[place.size_bytes for place in places],
        object_raw=[place.raw for place in places],
        object_origins=[place.origin for place in places],
        rows=flat,
        sums=sums,
        after=after,
        aborted=[
            number
            for key, each in aborted
            for number in (
                partitions[key],
                each.producer_id,
                each.first_offset,
                each.marker_offset,
            )
        ],
    )


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _is_wanted(topic: Topic, wanted: TopicsRequest, pattern: re.Pattern[str] | None) -> bool:
    if wanted.names is None and wanted.topic_ids is None and pattern is None:
        return True
    return (
        (wanted.names is not None and topic.name in wanted.names)
        or (wanted.topic_ids is not None and topic.topic_id.hex() in wanted.topic_ids)
        or (pattern is not None and pattern.fullmatch(topic.name) is not None)
    )


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    if len(text) > _PATTERN_LENGTH_MAX:
        raise InvalidRequestError(
            "list topics", "pattern", f"it is longer than {_PATTERN_LENGTH_MAX} characters"
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRequestError("list topics", f"pattern {text!r}", str(error)) from error


def _check_count(count: int) -> None:
    if count > ITEMS_MAX:
        raise InvalidRequestError("look up", f"{count} items", f"a call takes at most {ITEMS_MAX}")


def _after(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    match = _AFTER.fullmatch(text)
    if match is None:
        raise InvalidRequestError(
            "list", "runs", f"after = {text!r} was not given by an earlier page"
        )
    return int(match[1]), int(match[2])


def _number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
        raise InvalidRequestError("read", request.url.path, f"{name} = {text!r} is not a number")
    return int(text)
