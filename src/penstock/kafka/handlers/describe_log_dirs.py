"""DescribeLogDirs 1 to 4: bytes per partition, shown as one log directory.

Sizes are those of the partitions' batches, wherever they lie (WAL or objects). In a cluster each
broker tells of those that it is shown to lead (to clients without a zone), so that a tool that
asks all of them counts each once. The volume's total
and usable bytes are unknown (-1): most bytes are in an object store, which has no size.
"""

from typing import Any, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.schema import build, response_types
from penstock.model.errors import PenstockError
from penstock.model.ids import partition_key

API_KEY: Final = 35
VERSIONS: Final = range(1, 5)


async def handle(context: RequestContext, request: Any) -> Any:
    """Sizes of the asked partitions; those that do not exist are left out, as in Kafka."""
    types = response_types("describe_log_dirs", context.api_version)
    view = context.broker.view
    wanted: dict[str, range | set[int] | list[int]]
    if request.topics is None:
        wanted = {topic.name: range(topic.partitions) for topic in view.topics()}
    else:
        wanted = {}
        for asked in request.topics:
            known = view.topic(asked.topic)
            if known is not None:
                wanted[asked.topic] = {
                    index for index in asked.partitions if 0 <= index < known.partitions
                }
    leaders, me = context.broker.nodes.leaders(""), context.broker.node_id
    if leaders.sole is None:
        for name, indexes in wanted.items():
            topic = view.topic(name)
            assert topic is not None
            wanted[name] = [n for n in indexes if leaders.leader(topic.topic_id, n) == me]
    keys = {}
    for name, indexes in wanted.items():
        topic = view.topic(name)
        assert topic is not None
        for index in indexes:
            keys[name, index] = partition_key(topic.topic_key, index)
    error, sizes = ErrorCode.NONE, {}
    try:
        sizes = context.broker.log.partition_bytes(list(keys.values()))
    except PenstockError as failure:
        error = error_code(failure)
    topics = tuple(
        build(
            types.DescribeLogDirsTopic,
            name=name,
            partitions=tuple(
                build(
                    types.DescribeLogDirsPartition,
                    partition_index=index,
                    partition_size=sizes.get(keys[name, index], 0),
                    offset_lag=0,
                    is_future_key=False,
                )
                for index in sorted(indexes)
            ),
        )
        for name, indexes in wanted.items()
    )
    result = build(
        types.DescribeLogDirsResult,
        error_code=error,
        log_dir=context.broker.settings.log_dir,
        topics=topics if error is ErrorCode.NONE else (),
    )
    return build(types.DescribeLogDirsResponse, error_code=ErrorCode.NONE, results=(result,))
