"""AlterPartitionReassignments 0 to 1: what it may ask is checked, and nothing has to move.

A partition's bytes lie in the object store, and any agent serves them. So brokers that exist may be
asked for, and the reassignment has ended when it is answered: replicas stay those that placement
shows (`penstock.placement.replicas`), in the number that the topic was created with. A cancellation
finds no reassignment under way. Refused is what Kafka refuses, with its codes.
"""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from penstock.kafka.cluster_permission import cluster_refusal
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.partitions import UNKNOWN_PARTITION, find_partition
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
    )

DONE: Final = Outcome()
NOTHING_TO_CANCEL: Final = Outcome(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
NO_REPLICAS: Final = Outcome(
    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas is empty: name at least one broker"
)
TWICE: Final = Outcome(
    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the list of replicas names a broker twice"
)


async def handle(context: RequestContext, request: "AlterPartitionReassignmentsRequest") -> Answer:
    """Check each reassignment; an outcome per partition."""
    types = response_types("alter_partition_reassignments", context.api_version)
    broker, turns = context.broker, context.broker.turns
    failure = cluster_refusal(context, Operation.ALTER)
    node_ids = {node.node_id for node in broker.nodes.all()}
    topics = ArrayWriter(types.ReassignableTopicResponse)
    async for topic in turns.each(request.topics):
        partitions = ArrayWriter(types.ReassignablePartitionResponse)
        async for asked in turns.each(topic.partitions):
            known = find_partition(broker.view, topic.name, asked.partition_index)
            here = UNKNOWN_PARTITION if known is None else _outcome(asked, node_ids)
            outcome = failure or here
            partitions.add(
                partition_index=asked.partition_index,
                error_code=outcome.error,
                error_message=outcome.message,
            )
        topics.add(name=topic.name, partitions=partitions.encoded())
    whole = failure or DONE
    return build(
        types.AlterPartitionReassignmentsResponse,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=whole.error,
        error_message=whole.message,
        responses=topics.encoded(),
    )


def _outcome(asked: "ReassignablePartition", node_ids: AbstractSet[int]) -> Outcome:
    replicas = asked.replicas
    if replicas is None:
        return NOTHING_TO_CANCEL
    if not replicas:
        return NO_REPLICAS
    unknown = next((broker for broker in replicas if broker not in node_ids), None)
    if unknown is not None:
        text = f"broker {unknown} does not exist"
        return Outcome(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return TWICE if len(set(replicas)) < len(replicas) else DONE
