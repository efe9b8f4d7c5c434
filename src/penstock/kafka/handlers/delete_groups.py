"""DeleteGroups 0 to 2: delete groups without members, with their offsets."""

from typing import Any, Final

from penstock.kafka import fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.schema import build, response_types

API_KEY: Final = 42
VERSIONS: Final = (0, 2)


async def handle(context: RequestContext, request: Any) -> Any:
    """Delete in one commit; an outcome for each."""
    types = response_types("delete_groups", context.api_version)
    group_ids = list(dict.fromkeys(request.groups_names))
    errors = await context.broker.groups.delete_groups(group_ids)
    errors = [
        await fresh.group_error(context, group_id, error) if error else error
        for group_id, error in zip(group_ids, errors, strict=True)
    ]
    return build(
        types.DeleteGroupsResponse,
        results=tuple(
            build(types.DeletableGroupResult, group_id=group_id, error_code=error)
            for group_id, error in zip(group_ids, errors, strict=True)
        ),
    )
