"""DescribeAcls 1 to 3: the access rules that a filter finds, by resource (docs/acls.md)."""

from typing import TYPE_CHECKING

from penstock.kafka import confirmed as fresh
from penstock.kafka.acl_requests import binding_bytes, filter_of, found_by, refusal
from penstock.kafka.answer_bounds import BASE_BYTES
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import AclBinding, Operation, filter_problem

if TYPE_CHECKING:
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest


async def handle(context: RequestContext, request: "DescribeAclsRequest") -> Answer:
    """List rules."""
    types = response_types("describe_acls", context.api_version)
    wanted = filter_of(request)
    problem = filter_problem(wanted)
    outcome = refusal(context, Operation.DESCRIBE)
    if outcome is None and problem is not None:
        outcome = Outcome(ErrorCode.INVALID_REQUEST, problem)
    if outcome is None and not await fresh.confirm(context):
        outcome = Outcome(ErrorCode.REQUEST_TIMED_OUT, fresh.AWAY_TEXT)
    if outcome is not None:
        return build(
            types.DescribeAclsResponse,
            error_code=outcome.error,
            error_message=outcome.message,
            resources=(),
        )
    turns = context.broker.turns
    found = await found_by(context, wanted)
    bound = BASE_BYTES
    by_resource: dict[tuple[int, str, int], list[AclBinding]] = {}
    async for binding in turns.each(found):
        bound += binding_bytes(binding)
        resource = (binding.resource_type, binding.name, binding.pattern_type)
        by_resource.setdefault(resource, []).append(binding)
    waiting = context.reserve_answer(bound)
    if waiting is not None:
        return waiting
    resources = ArrayWriter(types.DescribeAclsResource)
    async for (kind, name, pattern), bindings in turns.each(by_resource.items()):
        acls = ArrayWriter(types.AclDescription)
        async for binding in turns.each(bindings):
            acls.add(
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
        resources.add(
            resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls.encoded()
        )
    return build(
        types.DescribeAclsResponse,
        error_code=ErrorCode.NONE,
        error_message=None,
        resources=resources.encoded(),
    )
