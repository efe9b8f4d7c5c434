"""DeleteAcls 1 to 3: remove the access rules that filters find (docs/acls.md).

What is deleted is what the filters find here once the journal's head is confirmed. The command
names each rule, so that it means the same wherever it is applied, and once more if it comes again.
"""

from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.acl_requests import (
    ACLS_MAX,
    binding_bytes,
    filter_of,
    found_by,
    in_commands,
    refusal,
)
from penstock.kafka.admin.commit import commit
from penstock.kafka.answer_bounds import BASE_BYTES, TEXT_BYTES
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import AclBinding, Operation, filter_problem
from penstock.state.acl_commands import DeleteAcls

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest

_Found = list[AclBinding] | Outcome

TOO_MANY: Final = Outcome(
    ErrorCode.POLICY_VIOLATION,
    f"the filters of the request find more than {ACLS_MAX} access rules: send fewer at a time",
)


async def handle(context: RequestContext, request: "DeleteAclsRequest") -> Answer:
    """Delete what each filter finds; a rule that several find is in the answer of each."""
    types = response_types("delete_acls", context.api_version)
    turns = context.broker.turns
    refused = refusal(context, Operation.ALTER)
    if refused is None and not await fresh.confirm(context):
        refused = Outcome(ErrorCode.REQUEST_TIMED_OUT, fresh.AWAY_TEXT)
    found: list[_Found] = []
    wanted: dict[AclBinding, None] = {}
    bound, count = BASE_BYTES, 0
    async for one in turns.each(request.filters):
        here = refused or (TOO_MANY if count > ACLS_MAX else await _find(context, one))
        found.append(here)
        bound += TEXT_BYTES
        if isinstance(here, list):
            count += len(here)
            async for binding in turns.each(here):
                bound += TEXT_BYTES + binding_bytes(binding)
                wanted[binding] = None
    waiting = context.reserve_answer(bound)
    if waiting is not None:
        return waiting
    outcomes: dict[AclBinding, Outcome] = {}
    for some in in_commands(wanted):
        (outcome,) = await commit(context, [DeleteAcls(bindings=some)])
        outcomes.update(dict.fromkeys(some, outcome))
    results = ArrayWriter(types.DeleteAclsFilterResult)
    async for here in turns.each(found):
        matching = ArrayWriter(types.DeleteAclsMatchingAcl)
        async for binding in turns.each(here if isinstance(here, list) else ()):
            matching.add(
                error_code=outcomes[binding].error,
                error_message=outcomes[binding].message,
                resource_type=binding.resource_type,
                resource_name=binding.name,
                pattern_type=binding.pattern_type,
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
        failure = here if isinstance(here, Outcome) else Outcome()
        results.add(
            error_code=failure.error,
            error_message=failure.message,
            matching_acls=matching.encoded(),
        )
    return build(types.DeleteAclsResponse, filter_results=results.encoded())


async def _find(context: RequestContext, asked: "DeleteAclsFilter") -> _Found:
    wanted = filter_of(asked)
    problem = filter_problem(wanted)
    if problem is not None:
        return Outcome(ErrorCode.INVALID_REQUEST, problem)
    return await found_by(context, wanted)
