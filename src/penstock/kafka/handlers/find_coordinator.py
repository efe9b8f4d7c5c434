"""FindCoordinator 0 to 6: which broker coordinates a group; many keys from version 4 on (KIP-699).

This agent coordinates all groups. Transactional ids are refused in the way InitProducerId refuses
them, so that a producer says at once that it can't work here rather than look for ever; share
groups (key type 2, version 6) are not served.
"""

from typing import Any, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import Outcome
from penstock.kafka.schema import build, response_types

API_KEY: Final = 10
VERSIONS: Final = (0, 6)

GROUP: Final = 0
TRANSACTION: Final = 1
MANY_KEYS_FROM: Final = 4
NO_NODE: Final = -1

_FOUND: Final = Outcome()
_NO_TRANSACTIONS: Final = Outcome(
    ErrorCode.UNSUPPORTED_VERSION, "There are no transactions here yet."
)
_UNKNOWN_TYPE: Final = Outcome(ErrorCode.INVALID_REQUEST, "There are no such coordinators here.")


async def handle(context: RequestContext, request: Any) -> Any:
    """Name this agent for groups."""
    types = response_types("find_coordinator", context.api_version)
    key_type = getattr(request, "key_type", GROUP)
    outcome = {GROUP: _FOUND, TRANSACTION: _NO_TRANSACTIONS}.get(key_type, _UNKNOWN_TYPE)
    broker = context.broker
    found = outcome.error is ErrorCode.NONE
    place = {
        "error_code": outcome.error,
        "error_message": outcome.message,
        "node_id": broker.node_id if found else NO_NODE,
        "host": broker.advertised_host if found else "",
        "port": broker.advertised_port if found else NO_NODE,
    }
    if context.api_version < MANY_KEYS_FROM:
        return build(types.FindCoordinatorResponse, **place)
    return build(
        types.FindCoordinatorResponse,
        coordinators=tuple(
            build(types.Coordinator, key=key, **place) for key in request.coordinator_keys
        ),
    )
