"""A member of a consumer or share group needs to read by the group, and to see its topics."""

from collections.abc import Sequence

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.security.acl import Operation


async def member_refusal(
    context: RequestContext, group_id: str, topics: Sequence[str] | None
) -> ErrorCode:
    """The error of a member that may not read by a group, or not see what it subscribes to."""
    access = context.access
    refused = access.group(Operation.READ, group_id)
    if refused or access.is_unbounded:
        return refused
    async for name in context.broker.turns.each(topics or ()):
        refused = access.topic(Operation.DESCRIBE, name)
        if refused:
            break
    return refused
