"""AddRaftVoter 0 to 1: there is no KRaft quorum whose voters change (KIP-853).

The order of things is the journal's, and each agent that joins the cluster follows it. Kafka
refuses the request with UNSUPPORTED_VERSION where `kraft.version` is 0, and so does this.
"""

from typing import TYPE_CHECKING

from penstock.kafka.context import RequestContext
from penstock.kafka.handlers.describe_quorum import refuse_voter
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import response_types

if TYPE_CHECKING:
    from kio.schema.add_raft_voter.v1.request import AddRaftVoterRequest


async def handle(
    context: RequestContext,
    request: "AddRaftVoterRequest",  # noqa: ARG001 - the same for any voter
) -> Answer:
    """Refuse."""
    types = response_types("add_raft_voter", context.api_version)
    return refuse_voter(context, types.AddRaftVoterResponse)
