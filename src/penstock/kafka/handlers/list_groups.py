"""ListGroups 0 to 5: the groups that this broker coordinates; filtered by state from version 4 on
(KIP-518), by type from 5 on (KIP-848). Filters don't look at upper and lower case, as in Kafka."""

from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.groups.ownership import told
from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError
from penstock.security.acl import Operation
from penstock.state.rows import GroupKind

if TYPE_CHECKING:
    from kio.schema.list_groups.v5.request import ListGroupsRequest


TYPES: Final = {
    GroupKind.CLASSIC: "classic",
    GroupKind.CONSUMER: "consumer",
    GroupKind.SHARE: "share",
    GroupKind.STREAMS: "streams",
}
GROUP_BYTES: Final = 40
"""State, type and tags."""


async def handle(context: RequestContext, request: "ListGroupsRequest") -> Answer:
    """List the groups that pass the filters; no filter passes all."""
    types = response_types("list_groups", context.api_version)
    states = {state.lower() for state in request.states_filter}
    kinds = {kind.lower() for kind in request.types_filter}
    if kinds and kinds.isdisjoint(TYPES.values()):
        return build(types.ListGroupsResponse, error_code=GroupError.NONE, groups=())
    if not await fresh.confirm(context):
        return build(
            types.ListGroupsResponse, error_code=GroupError.COORDINATOR_NOT_AVAILABLE, groups=()
        )
    try:
        waiting = context.reserve_answer(await _bound(context))
        if waiting is not None:
            return waiting
        access = context.access
        # Who may describe the cluster sees all groups; others those that they may describe.
        is_hiding = bool(access.cluster(Operation.DESCRIBE))
        groups = ArrayWriter(types.ListedGroup)
        async for group in context.broker.turns.each(context.broker.groups.overviews()):
            if is_hiding and access.group(Operation.DESCRIBE, group.group_id):
                continue
            if (not states or group.state.value.lower() in states) and (
                not kinds or TYPES[group.kind] in kinds
            ):
                groups.add(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state.value,
                    group_type=TYPES[group.kind],
                )
    except PenstockError as error:
        return build(types.ListGroupsResponse, error_code=told(error), groups=())
    return build(types.ListGroupsResponse, error_code=GroupError.NONE, groups=groups.encoded())


async def _bound(context: RequestContext) -> int:
    """The most bytes of the answer.

    Raises:
        PenstockError: the groups can't be listed.
    """
    found = BASE_BYTES
    async for group in context.broker.turns.each(context.broker.groups.overviews()):
        found += GROUP_BYTES + text_bytes(group.group_id) + text_bytes(group.protocol_type)
    return found
