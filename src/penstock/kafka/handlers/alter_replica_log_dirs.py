"""AlterReplicaLogDirs 1 to 2: there is one log directory, where all partitions are already."""

from typing import TYPE_CHECKING

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.partitions import find_partition
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest


async def handle(context: RequestContext, request: "AlterReplicaLogDirsRequest") -> Answer:
    """Answer NONE for partitions that exist, if they are to move to where they are."""
    types = response_types("alter_replica_log_dirs", context.api_version)
    broker, turns = context.broker, context.broker.turns
    refused = context.access.cluster(Operation.ALTER)
    results = ArrayWriter(types.AlterReplicaLogDirTopicResult)
    async for directory in turns.each(request.dirs):
        failure = refused
        if not failure and directory.path != broker.settings.log_dir:
            failure = ErrorCode.LOG_DIR_NOT_FOUND
        async for topic in turns.each(directory.topics):
            partitions = ArrayWriter(types.AlterReplicaLogDirPartitionResult)
            async for index in turns.each(topic.partitions):
                error = failure
                if not error and find_partition(broker.view, topic.name, index) is None:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                partitions.add(partition_index=index, error_code=error)
            results.add(topic_name=topic.name, partitions=partitions.encoded())
    return build(types.AlterReplicaLogDirsResponse, results=results.encoded())
