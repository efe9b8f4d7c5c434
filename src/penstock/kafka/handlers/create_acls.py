"""CreateAcls 1 to 3: add access rules; an outcome for each (docs/acls.md)."""

from typing import TYPE_CHECKING

from penstock.kafka.acl_requests import ACLS_MAX, in_commands, refusal
from penstock.kafka.admin.commit import commit
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import AclBinding, Operation, binding_problem
from penstock.state.acl_commands import CreateAcls

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import CreateAclsRequest


async def handle(context: RequestContext, request: "CreateAclsRequest") -> Answer:
    """Create what is valid; rules that are there already stay, and are as good as created."""
    types = response_types("create_acls", context.api_version)
    refused = refusal(context, Operation.ALTER)
    outcomes = [refused] * len(request.creations) if refused else await _outcomes(context, request)
    results = ArrayWriter(types.AclCreationResult)
    async for outcome in context.broker.turns.each(outcomes):
        results.add(error_code=outcome.error, error_message=outcome.message)
    return build(types.CreateAclsResponse, results=results.encoded())


async def _outcomes(context: RequestContext, request: "CreateAclsRequest") -> list[Outcome]:
    turns, known = context.broker.turns, context.broker.view.acls
    asked = [
        AclBinding(
            one.resource_type,
            one.resource_name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        async for one in turns.each(request.creations)
    ]
    found: dict[AclBinding, Outcome] = {}
    wanted: list[AclBinding] = []
    async for binding in turns.each(dict.fromkeys(asked)):
        problem = binding_problem(binding)
        if problem is not None:
            found[binding] = Outcome(ErrorCode.INVALID_REQUEST, problem)
        elif len(known) + len(wanted) >= ACLS_MAX and binding not in known:
            found[binding] = Outcome(
                ErrorCode.POLICY_VIOLATION,
                f"there are {len(known)} access rules, {ACLS_MAX} are allowed: delete some, or use"
                " prefixes",
            )
        else:
            wanted.append(binding)
    for some in in_commands(wanted):
        (outcome,) = await commit(context, [CreateAcls(bindings=some)])
        found.update(dict.fromkeys(some, outcome))
    return [found[binding] for binding in asked]
