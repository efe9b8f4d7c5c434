"""ElectLeaders 0 to 2: no partition needs an election, since any agent serves any partition.

A partition that exists has ELECTION_NOT_NEEDED, as in Kafka where the preferred leader leads. Where
all partitions are asked for, Kafka names those whose leaders have changed: there are none.
"""

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
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest

PREFERRED: Final = 0
UNCLEAN: Final = 1
NOT_NEEDED: Final = Outcome(
    ErrorCode.ELECTION_NOT_NEEDED, "any agent serves the partition: nothing is elected"
)


async def handle(context: RequestContext, request: "ElectLeadersRequest") -> Answer:
    """Say of each asked partition that it needs no election."""
    types = response_types("elect_leaders", context.api_version)
    failure = cluster_refusal(context, Operation.ALTER)
    if failure is None and request.election_type not in (PREFERRED, UNCLEAN):
        text = f"election type {request.election_type} is neither 0 (preferred) nor 1 (unclean)"
        failure = Outcome(ErrorCode.INVALID_REQUEST, text)
    turns = context.broker.turns
    topics = ArrayWriter(types.ReplicaElectionResult)
    async for asked in turns.each(request.topic_partitions or ()):
        partitions = ArrayWriter(types.PartitionResult)
        async for index in turns.each(asked.partitions):
            known = find_partition(context.broker.view, asked.topic, index)
            outcome = failure or (UNKNOWN_PARTITION if known is None else NOT_NEEDED)
            partitions.add(
                partition_id=index, error_code=outcome.error, error_message=outcome.message
            )
        topics.add(topic=asked.topic, partition_result=partitions.encoded())
    return build(
        types.ElectLeadersResponse,
        error_code=ErrorCode.NONE if failure is None else failure.error,
        replica_election_results=topics.encoded(),
    )
