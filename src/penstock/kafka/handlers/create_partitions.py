"""CreatePartitions 0 to 3: raise partition counts. They are never lowered, as in Kafka."""

from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING

from penstock.kafka import confirmed as fresh
from penstock.kafka.access import refusal_text
from penstock.kafka.admin.commit import commit
from penstock.kafka.admin.mutations import Mutations
from penstock.kafka.admin.resources import unknown_topic
from penstock.kafka.admin.topic_plan import added_partitions
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import ItemError, Outcome, duplicates
from penstock.kafka.topic_room import TopicRoom
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.state.commands import CreatePartitions

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import (
        CreatePartitionsRequest,
        CreatePartitionsTopic,
    )


async def handle(context: RequestContext, request: "CreatePartitionsRequest") -> Answer:
    """Add partitions in one commit, or only check; an outcome per topic."""
    types = response_types("create_partitions", context.api_version)
    turns = context.broker.turns
    twice = await turns.run(duplicates(topic.name for topic in request.topics))
    plans = await fresh.settled(context, partial(_plan_all, context, request, twice))
    outcomes: list[Outcome | None] = []
    commands: list[CreatePartitions] = []
    mutations = Mutations(context, "create_partitions")
    async for plan in turns.each(plans):
        if isinstance(plan, Outcome):
            outcomes.append(plan)
            continue
        refused = mutations.refusal(_added(context, plan))
        if refused is not None or request.validate_only:
            outcomes.append(refused or Outcome())
        else:
            commands.append(plan)
            outcomes.append(None)
    answers = iter(await commit(context, commands, request.timeout))
    results = ArrayWriter(types.CreatePartitionsTopicResult)
    async for topic, early in turns.each(zip(request.topics, outcomes, strict=True)):
        outcome = next(answers) if early is None else early
        results.add(name=topic.name, error_code=outcome.error, error_message=outcome.message)
    return build(types.CreatePartitionsResponse, results=results.encoded())


def _added(context: RequestContext, plan: CreatePartitions) -> int:
    known = context.broker.view.topic_by_id(plan.topic_id)
    return plan.partitions - (0 if known is None else known.partitions)


async def _plan_all(
    context: RequestContext,
    request: "CreatePartitionsRequest",
    twice: AbstractSet[str],
    certainty: fresh.Certainty,
) -> list[CreatePartitions | Outcome]:
    """For each topic the command, or why there is none."""
    plans: list[CreatePartitions | Outcome] = []
    node_ids = {node.node_id for node in context.nodes.all()}
    room = TopicRoom(context.broker.view, context.broker.settings)
    async for topic in context.broker.turns.each(request.topics):
        try:
            if topic.name in twice:
                raise ItemError(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
            plans.append(_plan(context, topic, room, node_ids, certainty))
        except ItemError as error:
            plans.append(error.outcome)
    return plans


def _plan(
    context: RequestContext,
    topic: "CreatePartitionsTopic",
    room: TopicRoom,
    node_ids: set[int],
    certainty: fresh.Certainty,
) -> CreatePartitions:
    broker = context.broker
    refused = context.access.topic(Operation.ALTER, topic.name)
    if refused:
        raise ItemError(refused, refusal_text(refused))
    known = broker.view.topic(topic.name)
    if known is None:
        raise certainty.refusal(unknown_topic(topic.name))
    assignments = None
    if topic.assignments is not None:
        assignments = [assignment.broker_ids for assignment in topic.assignments]
    added_partitions(
        topic.count,
        known.partitions,
        assignments,
        node_ids=node_ids,
        limit=broker.settings.topic_partitions_max,
    )
    try:
        room.take(topic.count - known.partitions, topics=0)
    except ItemError as error:
        # Others may have been deleted.
        raise certainty.refusal(error) from None
    return CreatePartitions(topic_id=known.topic_id, partitions=topic.count)
