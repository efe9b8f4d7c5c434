"""DescribeLogDirs 1 to 5: bytes per partition, shown as one log directory.

Sizes are those of the partitions' batches, wherever they lie (WAL or objects). In a cluster each
broker reports the partitions that it leads for clients without a zone, so that a tool that asks all
brokers counts each partition once. The volume's total and usable bytes are unknown (-1): most bytes
are in an object store, which has no size.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import CHEAP
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError
from penstock.model.ids import partition_key
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v5.request import DescribeLogDirsRequest

TOPIC_BYTES: Final = 8
PARTITION_BYTES: Final = 24
PAGE_PARTITIONS: Final = 250
"""Partitions whose sizes are looked up in one go."""


async def handle(context: RequestContext, request: "DescribeLogDirsRequest") -> Answer:
    """Sizes of the asked partitions; those that do not exist are left out, as in Kafka."""
    types = response_types("describe_log_dirs", context.api_version)
    view = context.broker.view
    turns = context.broker.turns
    refused = context.access.cluster(Operation.DESCRIBE)
    if refused:
        return build(types.DescribeLogDirsResponse, error_code=refused, results=())
    wanted = await _wanted(context, request)
    waiting = context.reserve_answer(await _bound(context, wanted))
    if waiting is not None:
        return waiting
    leaders, me = context.broker.nodes.leaders(""), context.broker.node_id
    error, topics = ErrorCode.NONE, ArrayWriter(types.DescribeLogDirsTopic)
    try:
        await context.broker.log.let_queries_find()
        async for name, indexes in turns.each(wanted.items()):
            known = view.topic(name)
            if known is None:  # deleted meanwhile
                continue
            shown = ArrayWriter(types.DescribeLogDirsPartition)
            for some in _pages(indexes if isinstance(indexes, range) else sorted(indexes)):
                keys = {
                    index: partition_key(known.topic_key, index)
                    for index in some
                    if leaders.sole is not None or leaders.leader(known.topic_id, index) == me
                }
                sizes = context.broker.log.partition_bytes(list(keys.values()))
                for index, key in keys.items():
                    shown.add(
                        partition_index=index,
                        partition_size=sizes.get(key, 0),
                        offset_lag=0,
                        is_future_key=False,
                    )
                if turns.spend(len(some), rows=len(keys)):
                    await turns.wait()
            topics.add(name=name, partitions=shown.encoded())
    except PenstockError as failure:
        error = error_code(failure)
    result = build(
        types.DescribeLogDirsResult,
        error_code=error,
        log_dir=context.broker.settings.log_dir,
        topics=topics.encoded() if error is ErrorCode.NONE else (),
    )
    return build(types.DescribeLogDirsResponse, error_code=ErrorCode.NONE, results=(result,))


async def _wanted(
    context: RequestContext, request: "DescribeLogDirsRequest"
) -> Mapping[str, Collection[int]]:
    """Partitions by their topic's name."""
    view, turns = context.broker.view, context.broker.turns
    if request.topics is None:
        # No sets: of all partitions of a cluster they would take more memory than the answer.
        every = turns.each(list(view.topics()))
        return {topic.name: range(topic.partitions) async for topic in every}
    wanted: dict[str, set[int]] = {}
    async for asked in turns.each(request.topics):
        known = view.topic(asked.topic)
        if known is not None:
            found = wanted.setdefault(asked.topic, set())
            found.update([index for index in asked.partitions if 0 <= index < known.partitions])
            if turns.spend(len(asked.partitions) // CHEAP):
                await turns.wait()
    return wanted


async def _bound(context: RequestContext, wanted: Mapping[str, Collection[int]]) -> int:
    """The most bytes of the answer."""
    found = BASE_BYTES + text_bytes(context.broker.settings.log_dir)
    async for name, indexes in context.broker.turns.each(wanted.items()):
        found += TOPIC_BYTES + text_bytes(name) + PARTITION_BYTES * len(indexes)
    return found


def _pages(indexes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut the indexes into pages of `PAGE_PARTITIONS`."""
    for start in range(0, len(indexes), PAGE_PARTITIONS):
        yield indexes[start : start + PAGE_PARTITIONS]
