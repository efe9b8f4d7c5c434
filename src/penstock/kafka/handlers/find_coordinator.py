"""FindCoordinator 0 to 6: which broker coordinates a group; many keys from version 4 on (KIP-699).

A server that stands alone coordinates all groups; in a cluster it is the owner of the group's
shard, and while there is none, clients are told to ask again. Transactional ids are refused in
the way InitProducerId refuses them, so that a producer says at once that it can't work here
rather than look for ever; share groups (key type 2, version 6) are not served.
"""

from typing import Any, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.nodes import Node
from penstock.kafka.outcomes import Outcome
from penstock.kafka.schema import build, response_types

API_KEY: Final = 10
VERSIONS: Final = (0, 6)

GROUP: Final = 0
TRANSACTION: Final = 1
MANY_KEYS_FROM: Final = 4
NO_NODE: Final = -1

_FOUND: Final = Outcome()
_BEING_FOUND: Final = Outcome(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator of this group is being found."
)
_NO_TRANSACTIONS: Final = Outcome(
    ErrorCode.UNSUPPORTED_VERSION, "There are no transactions here yet."
)
_UNKNOWN_TYPE: Final = Outcome(ErrorCode.INVALID_REQUEST, "There are no such coordinators here.")


async def handle(context: RequestContext, request: Any) -> Any:
    """Name the agents of groups."""
    types = response_types("find_coordinator", context.api_version)
    key_type = getattr(request, "key_type", GROUP)
    if context.api_version < MANY_KEYS_FROM:
        return build(types.FindCoordinatorResponse, **_place(context, key_type, request.key))
    return build(
        types.FindCoordinatorResponse,
        coordinators=tuple(
            build(types.Coordinator, key=key, **_place(context, key_type, key))
            for key in request.coordinator_keys
        ),
    )


def _place(context: RequestContext, key_type: int, key: str) -> dict[str, Any]:
    outcome = {GROUP: _FOUND, TRANSACTION: _NO_TRANSACTIONS}.get(key_type, _UNKNOWN_TYPE)
    node: Node | None = None
    if outcome is _FOUND:
        node = context.broker.nodes.coordinator(key)
        if node is None:
            outcome = _BEING_FOUND
    return {
        "error_code": outcome.error,
        "error_message": outcome.message,
        "node_id": NO_NODE if node is None else node.node_id,
        "host": "" if node is None else node.host,
        "port": NO_NODE if node is None else node.port,
    }
