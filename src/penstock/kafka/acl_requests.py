"""Access rules of requests: as the journal has them, and how many of them a command takes."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.kafka.answer_bounds import text_bytes
from penstock.kafka.cluster_permission import cluster_refusal
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import CHEAP, Outcome
from penstock.security.acl import AclBinding, AclFilter, Operation
from penstock.state.acl_commands import BINDINGS_MAX

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsFilter
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

ACLS_MAX: Final = 200_000
"""Access rules of the cluster, and of one answer; more are refused as POLICY_VIOLATION."""
COMMAND_BYTES_MAX: Final = 256 << 10
"""Texts of one command's rules, and one rule more."""
BINDING_BYTES: Final = 24
"""A rule in an answer, without its texts."""

DISABLED: Final = Outcome(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def filter_of(asked: "DescribeAclsRequest | DeleteAclsFilter") -> AclFilter:
    """Return a request's filter."""
    return AclFilter(
        resource_type=asked.resource_type_filter,
        name=asked.resource_name_filter,
        pattern_type=asked.pattern_type_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )


def refusal(context: RequestContext, operation: Operation) -> Outcome | None:
    """Return why nothing of a request about access rules is done; None: it is.

    Args:
        operation: that the client must be allowed on the cluster.
    """
    refused = cluster_refusal(context, operation)
    if refused is None and context.broker.authority is None:
        return DISABLED
    return refused


async def found_by(context: RequestContext, wanted: AclFilter) -> list[AclBinding]:
    """The bindings that a filter finds, in order."""
    turns = context.broker.turns
    every = list(context.broker.view.acls.bindings())
    if turns.spend(len(every) // CHEAP):
        await turns.wait()
    found = [binding async for binding in turns.each(every) if wanted.finds(binding)]
    return [binding async for binding in turns.in_order(found)]


def in_commands(bindings: Iterable[AclBinding]) -> Iterator[list[AclBinding]]:
    """Cut bindings into as many as one command takes."""
    some: list[AclBinding] = []
    byte_count = 0
    for binding in bindings:
        some.append(binding)
        byte_count += binding_bytes(binding)
        if len(some) >= BINDINGS_MAX or byte_count >= COMMAND_BYTES_MAX:
            yield some
            some, byte_count = [], 0
    if some:
        yield some


def binding_bytes(binding: AclBinding) -> int:
    """The most bytes of a rule in an answer."""
    texts = (binding.name, binding.principal, binding.host)
    return BINDING_BYTES + sum(map(text_bytes, texts))
