"""Quotas of a cluster: list, set and take them away, at any server of Kafka's protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from penstock.cli.client.cluster import Client
from penstock.cli.client.errors import check
from penstock.kafka.quota_entities import DEFAULTS, EXACT, entity_of
from penstock.kafka.wire.schema import build
from penstock.security.quota import QuotaEntity


def alter_quotas(client: Client, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
    """Give an entity quotas by key; None takes one away.

    Raises:
        RefusedError: the server refuses one; then none is changed.
    """

    def request(types: ModuleType) -> Any:
        entry = build(
            types.EntryData,
            entity=tuple(
                build(types.EntityData, entity_type=kind, entity_name=name or None)
                for kind, name in entity.parts()
            ),
            ops=tuple(
                build(types.OpData, key=key, value=value or 0.0, remove=value is None)
                for key, value in changes.items()
            ),
        )
        return build(types.AlterClientQuotasRequest, entries=(entry,), validate_only=False)

    (result,) = client.connection().request("alter_client_quotas", request).entries
    check("set quota", str(entity), result.error_code, result.error_message)


def describe_quotas(
    client: Client, entity: QuotaEntity
) -> Sequence[tuple[QuotaEntity, Mapping[str, float]]]:
    """List the entities that have these names, and maybe others, with their quotas by key.

    Raises:
        RefusedError: the server refuses to list them.
    """

    def request(types: ModuleType) -> Any:
        components = tuple(
            build(
                types.ComponentData,
                entity_type=kind,
                match_type=EXACT if name else DEFAULTS,
                match=name or None,
            )
            for kind, name in entity.parts()
        )
        return build(types.DescribeClientQuotasRequest, components=components, strict=False)

    response = client.connection().request("describe_client_quotas", request)
    check("list quotas", "the cluster", response.error_code, response.error_message)
    found = [
        (
            entity_of((one.entity_type, one.entity_name) for one in entry.entity),
            {one.key: one.value for one in entry.values},
        )
        for entry in response.entries or ()
    ]
    return sorted(found, key=lambda one: one[0].parts())
