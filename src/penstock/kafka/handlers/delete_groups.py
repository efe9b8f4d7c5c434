"""DeleteGroups 0 to 2: delete groups without members, with their offsets."""

from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.kafka import confirmed as fresh
from penstock.kafka.admin.lines import LINES_MAX, note_changes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

COMMIT_GROUPS: Final = 250
"""Groups that one deadline of the journal is for."""


async def handle(context: RequestContext, request: "DeleteGroupsRequest") -> Answer:
    """Delete some in each commit; an outcome for each."""
    types = response_types("delete_groups", context.api_version)
    asked = list(dict.fromkeys(request.groups_names))
    turns = context.broker.turns
    access, refused = context.access, dict[str, ErrorCode]()
    async for name in turns.each(asked):
        error = access.group(Operation.DELETE, name)
        if error:
            refused[name] = error
    group_ids = [name for name in asked if name not in refused]
    errors: list[GroupError] = []
    for start in range(0, len(group_ids), COMMIT_GROUPS):
        some = group_ids[start : start + COMMIT_GROUPS]
        errors += await context.broker.groups.delete_groups(some)
    errors = await fresh.group_errors(context, group_ids, errors)
    gone = (name for name, error in zip(group_ids, errors, strict=True) if not error)
    first = [f"deleted group {name!r}" for name in islice(gone, LINES_MAX)]
    note_changes(context, first, count=errors.count(GroupError.NONE))
    results = ArrayWriter(types.DeletableGroupResult)
    found = dict(zip(group_ids, errors, strict=True))
    async for group_id in turns.each(asked):
        results.add(group_id=group_id, error_code=refused.get(group_id) or found[group_id])
    return build(types.DeleteGroupsResponse, results=results.encoded())
