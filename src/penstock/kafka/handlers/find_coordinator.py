"""FindCoordinator 0 to 6: which broker coordinates a group, or a transactional id; many keys from
version 4 on (KIP-699).

A server that stands alone coordinates all groups. In a cluster the owner of the group's shard
coordinates it; while the shard has no owner, clients get an error after which they ask again.
Any agent serves any transactional id: a producer is sent to one of its zone, always the same. Below
the feature level of transactions they are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the
one error that every client takes for final at once: after UNSUPPORTED_VERSION librdkafka asks again
until its time is over. A share partition (key type 2, version 6: group, topic id and number) is its
group's: the agent that coordinates the group owns it.
"""

from typing import TYPE_CHECKING, Final

from penstock.kafka.access import refusal_text
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.net.unserved import Unserved, note_unserved
from penstock.kafka.nodes import Node
from penstock.kafka.outcomes import Outcome
from penstock.kafka.transactions import serves_transactions
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.placement.zones import zone_of
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.find_coordinator import v3, v6


GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2
NO_NODE: Final = -1

_FOUND: Final = Outcome()
_BEING_FOUND: Final = Outcome(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator of this group is being found."
)
_NONE_LIVES: Final = Outcome(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "No agent is known to be alive at the moment."
)
_NO_TRANSACTIONS: Final = Outcome(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "Transactions need a feature level that is not on: upgrade the agents that know less.",
)
_UNKNOWN_TYPE: Final = Outcome(
    ErrorCode.INVALID_REQUEST, "This server coordinates groups and transactions alone."
)
_NO_SHARE_KEY: Final = Outcome(
    ErrorCode.INVALID_REQUEST, "The key of a share partition is group:topicId:partition."
)

_UNSERVED: Final = {
    _NO_TRANSACTIONS: (Unserved.TRANSACTIONS, "transactions"),
    _UNKNOWN_TYPE: (Unserved.COORDINATOR, "groups of another kind"),
}


async def handle(
    context: RequestContext, request: "v3.FindCoordinatorRequest | v6.FindCoordinatorRequest"
) -> Answer:
    """Name the agents of groups."""
    types = response_types("find_coordinator", context.api_version)
    if not hasattr(request, "coordinator_keys"):
        return build(
            types.FindCoordinatorResponse, **_place(context, request.key_type, request.key)
        )
    coordinators = ArrayWriter(types.Coordinator)
    async for key in context.broker.turns.each(dict.fromkeys(request.coordinator_keys)):
        coordinators.add(key=key, **_place(context, request.key_type, key))
    return build(types.FindCoordinatorResponse, coordinators=coordinators.encoded())


def _refused(context: RequestContext, key_type: int, key: str) -> ErrorCode:
    if key_type == GROUP:
        return context.access.group(Operation.DESCRIBE, key)
    if key_type == TRANSACTION:
        return context.access.transaction(Operation.DESCRIBE, key)
    # Brokers ask for coordinators of share groups' partitions.
    return context.access.cluster(Operation.CLUSTER_ACTION)


def _place(context: RequestContext, key_type: int, key: str) -> dict[str, object]:
    refused = _refused(context, key_type, key)
    if refused:
        return _answer(Outcome(refused, refusal_text(refused)))
    if key_type == SHARE:
        group_id = key.rsplit(":", 2)[0]
        outcome = _FOUND if key.count(":") >= 2 and group_id else _NO_SHARE_KEY
        key_type, key = GROUP, group_id
    else:
        outcome = _FOUND if key_type in {GROUP, TRANSACTION} else _UNKNOWN_TYPE
    if key_type == TRANSACTION and not serves_transactions(context.broker.view):
        outcome = _NO_TRANSACTIONS
    node: Node | None = None
    if outcome is _NO_SHARE_KEY:
        pass
    elif outcome in _UNSERVED:
        note_unserved(
            context.broker,
            *_UNSERVED[outcome],
            f"a coordinator of {key!r}",
            client_id=context.client_id,
            client=context.client_host,
        )
    elif key_type == GROUP:
        node = context.nodes.coordinator(key)
        outcome = _FOUND if node is not None else _BEING_FOUND
    else:
        node = context.nodes.transaction_coordinator(key, zone_of(context.client_id))
        outcome = _FOUND if node is not None else _NONE_LIVES
    return _answer(outcome, node)


def _answer(outcome: Outcome, node: Node | None = None) -> dict[str, object]:
    return {
        "error_code": outcome.error,
        "error_message": outcome.message,
        "node_id": NO_NODE if node is None else node.node_id,
        "host": "" if node is None else node.host,
        "port": NO_NODE if node is None else node.port,
    }
