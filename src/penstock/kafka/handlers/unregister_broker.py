"""UnregisterBroker 0: an agent leaves when it stops; nothing is registered that must be removed.

An agent that is known can't be unregistered from outside, since it would register again: stop it,
and `penstock agent` takes over what it has left (docs/operations.md).
"""

from typing import TYPE_CHECKING

from penstock.kafka.cluster_permission import cluster_refusal
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest


async def handle(context: RequestContext, request: "UnregisterBrokerRequest") -> Answer:
    """Refuse: with BROKER_ID_NOT_REGISTERED where Kafka does."""
    types = response_types("unregister_broker", context.api_version)
    asked = request.broker_id
    refusal = cluster_refusal(context, Operation.ALTER)
    if refusal is None and any(node.node_id == asked for node in context.broker.nodes.all()):
        text = f"agent {asked} is alive: it leaves the cluster when it is stopped"
        refusal = Outcome(ErrorCode.INVALID_REQUEST, text)
    elif refusal is None:
        refusal = Outcome(ErrorCode.BROKER_ID_NOT_REGISTERED, f"no agent has the id {asked}")
    return build(
        types.UnregisterBrokerResponse, error_code=refusal.error, error_message=refusal.message
    )
