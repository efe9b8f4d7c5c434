"""The offsets of a share group may change while the group has no members (KIP-932)."""

from dataclasses import dataclass

from penstock.groups.errors import GroupError
from penstock.groups.sharing import OpenShare
from penstock.kafka import confirmed as fresh
from penstock.kafka.access import refusal_text
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.security.acl import Operation


@dataclass(frozen=True, slots=True)
class Refusal:
    """Says why the offsets of a whole group can't change."""

    error: GroupError | ErrorCode
    message: str | None


async def open_without_members(
    context: RequestContext, operation: Operation, group_id: str
) -> OpenShare | Refusal:
    """Open a group for a change of its offsets, which needs an operation's permission."""
    refused = context.access.group(operation, group_id)
    if refused:
        return Refusal(refused, refusal_text(refused))
    await fresh.confirm(context)
    group = context.broker.groups.shares.open(group_id)
    if isinstance(group, GroupError):
        return Refusal(group, f"Group {group_id} is not a share group.")
    if group.machine.roster.members:
        return Refusal(GroupError.NON_EMPTY_GROUP, f"Group {group_id} has members.")
    return group
