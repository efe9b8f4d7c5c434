"""DescribeClientQuotas 0 to 1: the quotas of the entities that a filter finds (docs/quotas.md)."""

from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.cluster_permission import cluster_refusal
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import CHEAP, ItemError, Outcome
from penstock.kafka.quota_entities import EntityFilter, filter_of
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.security.quota import QuotaEntity

if TYPE_CHECKING:
    from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest

ENTITY_BYTES: Final = 220
"""An entity in an answer, without its names: types, keys and values."""


async def handle(context: RequestContext, request: "DescribeClientQuotasRequest") -> Answer:
    """List quotas by entity."""
    types = response_types("describe_client_quotas", context.api_version)
    outcome = cluster_refusal(context, Operation.DESCRIBE_CONFIGS)
    wanted = EntityFilter({}, is_strict=False)
    if outcome is None:
        try:
            wanted = filter_of(request.components, is_strict=request.strict)
        except ItemError as error:
            outcome = error.outcome
    if outcome is None and not await fresh.confirm(context):
        outcome = Outcome(ErrorCode.REQUEST_TIMED_OUT, fresh.AWAY_TEXT)
    if outcome is not None:
        return build(
            types.DescribeClientQuotasResponse,
            error_code=outcome.error,
            error_message=outcome.message,
            entries=None,
        )
    turns = context.broker.turns
    every = list(context.broker.view.quotas.entities())
    if turns.spend(len(every) // CHEAP):
        await turns.wait()
    found = {entity: dict(own) async for entity, own in turns.each(every) if wanted.finds(entity)}
    named = [(entity.parts(), entity) for entity in found]
    ordered = [entity async for _, entity in turns.in_order(named)]
    waiting = context.reserve_answer(BASE_BYTES + sum(map(_bytes, ordered)))
    if waiting is not None:
        return waiting
    entries = ArrayWriter(types.EntryData)
    async for entity in turns.each(ordered):
        entries.add(
            entity=tuple(
                build(types.EntityData, entity_type=kind, entity_name=name or None)
                for kind, name in entity.parts()
            ),
            values=tuple(
                build(types.ValueData, key=key, value=value)
                for key, value in sorted(found[entity].items())
            ),
        )
    return build(
        types.DescribeClientQuotasResponse,
        error_code=ErrorCode.NONE,
        error_message=None,
        entries=entries.encoded(),
    )


def _bytes(entity: QuotaEntity) -> int:
    return ENTITY_BYTES + sum(text_bytes(name) for _, name in entity.parts())
