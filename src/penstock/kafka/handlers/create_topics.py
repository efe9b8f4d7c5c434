"""CreateTopics 2 to 7: all topics of a request in one commit; an outcome for each.

Ids are random UUIDs. A replication factor is kept, and shown by Metadata; see `topic_plan`.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import repeat
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.kafka import confirmed as fresh
from penstock.kafka.access import refusal_text
from penstock.kafka.admin.commit import commit
from penstock.kafka.admin.mutations import Mutations
from penstock.kafka.admin.resources import topic_entries
from penstock.kafka.admin.topic_plan import (
    DEFAULT,
    check_new_name,
    checked_configs,
    counts,
    new_topic_id,
)
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import ItemError, Outcome, duplicates
from penstock.kafka.shown_replicas import replicas_of
from penstock.kafka.topic_room import TopicRoom, check_request
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import EncodedParts, Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.model.topic_names import folded
from penstock.security.acl import Operation
from penstock.state.commands import CreateTopic
from penstock.state.schema import TRANSACTIONS_LEVEL

if TYPE_CHECKING:
    from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest


async def handle(context: RequestContext, request: "CreateTopicsRequest") -> Answer:
    """Create topics, or only check that they could be."""
    types = response_types("create_topics", context.api_version)
    turns = context.broker.turns
    twice = await turns.run(duplicates(topic.name for topic in request.topics))
    plans = await fresh.settled(context, partial(_plan_all, context, request, twice))
    mutations = Mutations(context, "create_topics")
    plans = [
        (mutations.refusal(plan.partitions) or plan) if isinstance(plan, CreateTopic) else plan
        async for plan in turns.each(plans)
    ]
    wanted = [plan async for plan in turns.each(plans) if isinstance(plan, CreateTopic)]
    answers: Iterator[Outcome] = repeat(Outcome())
    if not request.validate_only:
        answers = iter(await commit(context, wanted, request.timeout))
    shown: _Shown = {}
    results = [
        _result(
            context,
            types,
            topic.name,
            plan,
            next(answers) if isinstance(plan, CreateTopic) else plan,
            shown,
            validated_only=request.validate_only,
        )
        async for topic, plan in turns.each(zip(request.topics, plans, strict=True))
    ]
    return build(types.CreateTopicsResponse, topics=tuple(results))


_Shown = dict[tuple[tuple[str, str], ...], EncodedParts]
"""The encoded configs of topics, by the configs that a topic has of its own: most have the same."""


async def _plan_all(
    context: RequestContext,
    request: "CreateTopicsRequest",
    twice: AbstractSet[str],
    certainty: fresh.Certainty,
) -> list[CreateTopic | Outcome]:
    """For each topic the command, or why there is none."""
    plans: list[CreateTopic | Outcome] = []
    node_ids = {node.node_id for node in context.nodes.all()}
    others: dict[str, str] = {}
    # Who may create topics in the cluster needs no permission for each.
    create_error = context.access.cluster(Operation.CREATE)
    room = TopicRoom(context.broker.view, context.broker.settings)
    try:
        await _check_request(context, request)
    except ItemError as error:
        return [error.outcome] * len(request.topics)
    async for topic in context.broker.turns.each(request.topics):
        try:
            if topic.name in twice:
                raise ItemError(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
            refused = create_error and context.access.topic(Operation.CREATE, topic.name)
            if refused:
                raise ItemError(refused, refusal_text(refused))
            plans.append(_plan(context, topic, others, room, node_ids, certainty))
            others.setdefault(folded(topic.name) or "", topic.name)
        except ItemError as error:
            plans.append(error.outcome)
    return plans


async def _check_request(context: RequestContext, request: "CreateTopicsRequest") -> None:
    settings, partitions = context.broker.settings, 0
    async for topic in context.broker.turns.each(request.topics):
        if topic.assignments:
            partitions += len(topic.assignments)
        elif topic.num_partitions == DEFAULT:
            partitions += settings.default_partitions
        else:
            partitions += max(topic.num_partitions, 0)
    check_request(partitions, settings)


def _plan(
    context: RequestContext,
    topic: "CreatableTopic",
    others: Mapping[str, str],
    room: TopicRoom,
    node_ids: set[int],
    certainty: fresh.Certainty,
) -> CreateTopic:
    """The command for one topic.

    Args:
        others: names that the same request creates, by what is `folded` of them.

    Raises:
        ItemError: it cannot be created.
    """
    broker = context.broker
    if broker.view.topic(topic.name) is not None:
        exists = f"topic {topic.name!r} already exists"
        raise certainty.refusal(ItemError(ErrorCode.TOPIC_ALREADY_EXISTS, exists))
    fold = folded(topic.name)
    similar = broker.view.similar_name(topic.name) or (others.get(fold) if fold else None)
    try:
        check_new_name(topic.name, similar)
    except ItemError as error:
        # What it collides with may have been deleted.
        raise certainty.refusal(error) from None
    assignments: dict[int, Sequence[int]] = {
        one.partition_index: one.broker_ids for one in topic.assignments
    }
    if len(assignments) != len(topic.assignments):
        raise ItemError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    count, factor = counts(
        topic.num_partitions,
        topic.replication_factor,
        assignments,
        node_ids=node_ids,
        default=broker.settings.default_partitions,
        limit=broker.settings.topic_partitions_max,
    )
    configs = checked_configs((config.name, config.value) for config in topic.configs)
    try:
        room.take(count, topics=1)
    except ItemError as error:
        # Others may have been deleted.
        raise certainty.refusal(error) from None
    return CreateTopic(
        name=topic.name,
        topic_id=new_topic_id(broker.random),
        partitions=count,
        configs=configs,
        replication_factor=factor if broker.view.feature_level >= TRANSACTIONS_LEVEL else 0,
    )


def _result(
    context: RequestContext,
    types: ModuleType,
    name: str,
    plan: CreateTopic | Outcome,
    outcome: Outcome,
    shown: _Shown,
    *,
    validated_only: bool,
) -> Entity:
    if isinstance(plan, Outcome) or outcome.error is not ErrorCode.NONE:
        return build(
            types.CreatableTopicResult,
            name=name,
            topic_id=None,
            error_code=outcome.error,
            error_message=outcome.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )
    configs: tuple[Entity, ...] | EncodedParts = ()
    hidden = context.access.topic(Operation.DESCRIBE_CONFIGS, name)
    if context.api_version >= 5 and not hidden:
        own = tuple(plan.configs.items())
        if own not in shown:
            entries = topic_entries(plan.configs, context.broker.view.cluster_configs)
            encoded = ArrayWriter(types.CreatableTopicConfigs)
            for entry in entries:
                encoded.add(
                    name=entry.name,
                    value=entry.value,
                    read_only=entry.read_only,
                    config_source=entry.source,
                    is_sensitive=False,
                )
            shown[own] = encoded.encoded()
        configs = shown[own]
    return build(
        types.CreatableTopicResult,
        name=name,
        # A topic that is not there yet has no id yet.
        topic_id=None if validated_only else uuid.UUID(bytes=plan.topic_id),
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=-1 if hidden else plan.partitions,
        replication_factor=(-1 if hidden else replicas_of(context).count(plan.replication_factor)),
        topic_config_error_code=hidden,
        configs=configs,
    )
