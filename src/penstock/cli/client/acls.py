"""Access rules of a cluster: list, create and delete them, at any server of Kafka's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from penstock.cli.client.cluster import Client
from penstock.cli.client.errors import check
from penstock.kafka.wire.schema import build
from penstock.security.acl import AclBinding, AclFilter


def create_acls(client: Client, bindings: Sequence[AclBinding]) -> None:
    """Create rules; those that are there already stay.

    Raises:
        RefusedError: the server refuses one; others may have been created.
    """

    def request(types: ModuleType) -> Any:
        creations = [
            build(
                types.AclCreation,
                resource_type=binding.resource_type,
                resource_name=binding.name,
                resource_pattern_type=binding.pattern_type,
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
            for binding in bindings
        ]
        return build(types.CreateAclsRequest, creations=tuple(creations))

    response = client.connection().request("create_acls", request)
    for binding, result in zip(bindings, response.results, strict=True):
        subject = f"{binding.principal} on {binding.name}"
        check("create access rule", subject, result.error_code, result.error_message)


def describe_acls(client: Client, wanted: AclFilter) -> list[AclBinding]:
    """List the rules that a filter finds.

    Raises:
        RefusedError: the server has no authorizer, or refuses to list them.
    """
    response = client.connection().request(
        "describe_acls", lambda types: build(types.DescribeAclsRequest, **_fields(wanted))
    )
    check("list access rules", "the cluster", response.error_code, response.error_message)
    return sorted(
        AclBinding(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    )


def delete_acls(client: Client, wanted: AclFilter) -> list[AclBinding]:
    """Delete the rules that a filter finds; return them.

    Raises:
        RefusedError: the server refuses; some may be deleted.
    """

    def request(types: ModuleType) -> Any:
        one = build(types.DeleteAclsFilter, **_fields(wanted))
        return build(types.DeleteAclsRequest, filters=(one,))

    (result,) = client.connection().request("delete_acls", request).filter_results
    check("delete access rules", "the cluster", result.error_code, result.error_message)
    for row in result.matching_acls:
        subject = f"{row.principal} on {row.resource_name}"
        check("delete access rule", subject, row.error_code, row.error_message)
    return sorted(
        AclBinding(
            row.resource_type,
            row.resource_name,
            row.pattern_type,
            row.principal,
            row.host,
            row.operation,
            row.permission_type,
        )
        for row in result.matching_acls
    )


def _fields(wanted: AclFilter) -> dict[str, object]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }
