"""AlterClientQuotas 0 to 1: give entities quotas, or take them away (docs/quotas.md).

An entity's changes are made together or not at all. An entity that a request names twice is
refused, where Kafka makes its first changes and answers with the refusal of the second.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.kafka.admin.commit import commit
from penstock.kafka.cluster_permission import cluster_refusal
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import ItemError, Outcome
from penstock.kafka.quota_entities import entity_of
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.security.quota import QuotaChange, QuotaEntity, entity_problem, value_problem
from penstock.state.quota_commands import AlterQuotas

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntryData

ENTITIES_MAX: Final = 100_000
"""Entities of the cluster that have quotas: each agent keeps them in memory."""
OPS_MAX: Final = 100
"""Changes of one entity: there are four keys."""
COMMAND_CHANGES: Final = 500
"""Changes of one command, and one entity's more."""
COMMAND_LENGTH: Final = 64 << 10
"""Characters of names in one command, and one entity's more."""


async def handle(context: RequestContext, request: "AlterClientQuotasRequest") -> Answer:
    """Check each entity and commit those that are right; an outcome for each."""
    types = response_types("alter_client_quotas", context.api_version)
    turns = context.broker.turns
    refused = cluster_refusal(context, Operation.ALTER_CONFIGS)
    plans = (
        [refused] * len(request.entries) if refused else await _plan_all(context, request.entries)
    )
    commands: list[AlterQuotas] = []
    places: list[int | None] = []
    length = COMMAND_LENGTH
    async for plan in turns.each(plans):
        if isinstance(plan, Outcome) or request.validate_only or not plan:
            places.append(None)
            continue
        if length >= COMMAND_LENGTH or len(commands[-1].changes) >= COMMAND_CHANGES:
            commands.append(AlterQuotas(changes=[]))
            length = 0
        commands[-1].changes.extend(plan)
        length += len(plan) * sum(len(name) for _, name in plan[0].entity.parts())
        places.append(len(commands) - 1)
    answers = await commit(context, commands)
    entries = ArrayWriter(types.EntryData)
    async for asked, plan, place in turns.each(zip(request.entries, plans, places, strict=True)):
        outcome = plan if isinstance(plan, Outcome) else Outcome()
        if place is not None:
            outcome = answers[place]
        entity = ArrayWriter(types.EntityData)
        async for one in turns.each(asked.entity):
            entity.add(entity_type=one.entity_type, entity_name=one.entity_name)
        entries.add(
            error_code=outcome.error, error_message=outcome.message, entity=entity.encoded()
        )
    return build(types.AlterClientQuotasResponse, entries=entries.encoded())


async def _plan_all(
    context: RequestContext, entries: "tuple[EntryData, ...]"
) -> list[list[QuotaChange] | Outcome]:
    turns, known = context.broker.turns, context.broker.view.quotas
    plans: list[list[QuotaChange] | Outcome] = []
    entities: list[QuotaEntity | None] = []
    new = 0
    async for entry in turns.each(entries):
        entity = None
        try:
            entity = entity_of((one.entity_type, one.entity_name) for one in entry.entity)
            plan = _plan(entity, entry)
            new += entity not in known and any(change.value is not None for change in plan)
            if entity not in known and len(known) + new > ENTITIES_MAX:
                raise ItemError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{len(known)} entities have quotas, {ENTITIES_MAX} may: use defaults",
                )
            plans.append(plan)
        except ItemError as error:
            plans.append(error.outcome)
        entities.append(entity)
    counts = Counter(entities)
    twice = Outcome(ErrorCode.INVALID_REQUEST, "the request names the entity twice")
    return [
        twice if entity is not None and counts[entity] > 1 else plan
        async for entity, plan in turns.each(zip(entities, plans, strict=True))
    ]


def _plan(entity: QuotaEntity, entry: "EntryData") -> list[QuotaChange]:
    if len(entry.ops) > OPS_MAX:
        raise ItemError(
            ErrorCode.INVALID_REQUEST,
            f"{len(entry.ops)} changes of {entity}, {OPS_MAX} are allowed at once",
        )
    changes = [
        QuotaChange(entity, one.key, None if one.remove else float(one.value)) for one in entry.ops
    ]
    problem = entity_problem(entity)
    if len({change.key for change in changes}) < len(changes):
        problem = problem or f"a key of {entity} is there twice"
    for change in changes:
        problem = problem or value_problem(change)
    if problem is not None:
        raise ItemError(ErrorCode.INVALID_REQUEST, problem)
    return changes
