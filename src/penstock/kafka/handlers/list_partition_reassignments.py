"""ListPartitionReassignments 0: none is ever under way, since there are no replicas to move."""

from typing import TYPE_CHECKING

from penstock.kafka.cluster_permission import cluster_refusal
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0.request import (
        ListPartitionReassignmentsRequest,
    )


async def handle(
    context: RequestContext,
    request: "ListPartitionReassignmentsRequest",  # noqa: ARG001 - the same for any topics
) -> Answer:
    """Answer with an empty list."""
    types = response_types("list_partition_reassignments", context.api_version)
    outcome = cluster_refusal(context, Operation.DESCRIBE) or Outcome()
    return build(
        types.ListPartitionReassignmentsResponse,
        error_code=outcome.error,
        error_message=outcome.message,
        topics=(),
    )
