"""DescribeQuorum 0 to 2: the journal, as tools look at a KRaft quorum.

All agents are voters, the controller that clients are shown leads, and the offsets are the
journal's position that the asked agent has applied: what others have applied is known to them. No
fetch of a voter has a time (-1: unknown). An election has no epoch here: it is 0.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.answer_bounds import BASE_BYTES, NODE_BYTES
from penstock.kafka.cluster_permission import cluster_refusal
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.placement.zones import zone_of
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest, TopicData

METADATA_TOPIC: Final = "__cluster_metadata"
LISTENER: Final = "CONTROLLER"
UNKNOWN_TEXT: Final = "the quorum is that of __cluster_metadata, partition 0, alone"
NO_VOTERS: Final = Outcome(
    ErrorCode.UNSUPPORTED_VERSION,
    "there is no KRaft quorum (kraft.version is 0): an agent that is started joins the cluster",
)


async def handle(context: RequestContext, request: "DescribeQuorumRequest") -> Answer:
    """Describe the agents as the quorum of the metadata topic's only partition."""
    types = response_types("describe_quorum", context.api_version)
    refused = cluster_refusal(context, Operation.DESCRIBE)
    if refused:
        return build(
            types.DescribeQuorumResponse,
            error_code=refused.error,
            error_message=refused.message,
            topics=(),
            nodes=(),
        )
    nodes = context.broker.nodes.all() if _is_of_metadata(request.topics) else ()
    waiting = context.reserve_answer(BASE_BYTES + NODE_BYTES * len(nodes))
    if waiting is not None:
        return waiting
    topics: Any
    if nodes:
        position = context.broker.position()
        voter = {"log_end_offset": position, "replica_directory_id": None}
        voters = [build(types.ReplicaState, replica_id=node.node_id, **voter) for node in nodes]
        partition = build(
            types.PartitionData,
            partition_index=0,
            error_code=ErrorCode.NONE,
            error_message="",
            leader_id=context.broker.nodes.controller(zone_of(context.client_id)),
            leader_epoch=0,
            high_watermark=position,
            current_voters=tuple(voters),
            observers=(),
        )
        topics = (build(types.TopicData, topic_name=METADATA_TOPIC, partitions=(partition,)),)
    else:
        topics = await _unknown(context, request.topics)
    shown = []
    if context.api_version > 1:
        for node in nodes:
            listener = build(types.Listener, name=LISTENER, host=node.host, port=node.port)
            shown.append(build(types.Node, node_id=node.node_id, listeners=(listener,)))
    return build(
        types.DescribeQuorumResponse,
        error_code=ErrorCode.NONE,
        error_message="",
        topics=topics,
        nodes=tuple(shown),
    )


def refuse_voter(context: RequestContext, response_type: type[Entity]) -> Answer:
    """Answer that no voter can be added or removed."""
    refusal = cluster_refusal(context, Operation.ALTER) or NO_VOTERS
    return build(response_type, error_code=refusal.error, error_message=refusal.message)


def _is_of_metadata(topics: "Sequence[TopicData]") -> bool:
    return (
        len(topics) == 1
        and topics[0].topic_name == METADATA_TOPIC
        and [one.partition_index for one in topics[0].partitions] == [0]
    )


async def _unknown(context: RequestContext, asked: "Sequence[TopicData]") -> Any:
    """Answer each partition with UNKNOWN_TOPIC_OR_PARTITION."""
    types = response_types("describe_quorum", context.api_version)
    turns = context.broker.turns
    topics = ArrayWriter(types.TopicData)
    async for topic in turns.each(asked):
        partitions = ArrayWriter(types.PartitionData)
        async for one in turns.each(topic.partitions):
            partitions.add(
                partition_index=one.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=UNKNOWN_TEXT,
                leader_id=0,
                leader_epoch=0,
                high_watermark=0,
                current_voters=(),
                observers=(),
            )
        topics.add(topic_name=topic.topic_name, partitions=partitions.encoded())
    return topics.encoded()
