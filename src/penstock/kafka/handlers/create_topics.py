"""CreateTopics 2 to 7: all topics of a request in one commit; an outcome for each.

Ids are random UUIDs. A replication factor other than 1 or -1 is refused, as by a Kafka of one
broker; see `topic_plan`.
"""

import uuid
from collections.abc import Sequence
from typing import Any, Final

from penstock.kafka.admin import commit
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError, Outcome, duplicates
from penstock.kafka.resources import topic_entries
from penstock.kafka.schema import build, response_types
from penstock.kafka.topic_plan import (
    REPLICATION_FACTOR,
    check_new_name,
    checked_configs,
    new_topic_id,
    partition_count,
)
from penstock.metadata.commands import CreateTopic

API_KEY: Final = 19
VERSIONS: Final = range(2, 8)


async def handle(context: RequestContext, request: Any) -> Any:
    """Create topics, or only check that they could be."""
    types = response_types("create_topics", context.api_version)
    twice = duplicates(topic.name for topic in request.topics)
    outcomes: list[Outcome | None] = []
    commands: list[CreateTopic | None] = []
    for topic in request.topics:
        try:
            if topic.name in twice:
                raise ItemError(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
            others = [command.name for command in commands if command is not None]
            commands.append(_plan(context, topic, others))
            outcomes.append(None)
        except ItemError as error:
            commands.append(None)
            outcomes.append(error.outcome)
    if not request.validate_only:
        wanted = [command for command in commands if command is not None]
        answers = iter(await commit(context, wanted, request.timeout))
        outcomes = [next(answers) if outcome is None else outcome for outcome in outcomes]
    results = [
        _result(
            context,
            types,
            topic.name,
            command,
            outcome or Outcome(),
            validated_only=request.validate_only,
        )
        for topic, command, outcome in zip(request.topics, commands, outcomes, strict=True)
    ]
    return build(types.CreateTopicsResponse, topics=tuple(results))


def _plan(context: RequestContext, topic: Any, others: Sequence[str]) -> CreateTopic:
    """The command for one topic.

    Args:
        others: names that the same request creates.

    Raises:
        ItemError: it cannot be created.
    """
    broker = context.broker
    if broker.view.topic(topic.name) is not None:
        raise ItemError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} already exists")
    existing = [known.name for known in broker.view.topics()]
    check_new_name(topic.name, [*existing, *others])
    assignments = {one.partition_index: one.broker_ids for one in topic.assignments}
    if len(assignments) != len(topic.assignments):
        raise ItemError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    count = partition_count(
        topic.num_partitions,
        topic.replication_factor,
        assignments,
        node_id=broker.node_id,
        default=broker.settings.default_partitions,
        limit=broker.settings.partitions_max,
    )
    configs = checked_configs((config.name, config.value) for config in topic.configs)
    return CreateTopic(
        name=topic.name,
        topic_id=new_topic_id(broker.random),
        partitions=count,
        configs=configs,
    )


def _result(
    context: RequestContext,
    types: Any,
    name: str,
    command: CreateTopic | None,
    outcome: Outcome,
    *,
    validated_only: bool,
) -> Any:
    if command is None or outcome.error is not ErrorCode.NONE:
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
    configs: tuple[Any, ...] = ()
    if context.api_version >= 5:
        entries = topic_entries(command.configs, context.broker.view.cluster_configs)
        configs = tuple(
            build(
                types.CreatableTopicConfigs,
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in entries
        )
    return build(
        types.CreatableTopicResult,
        name=name,
        # A topic that is not there yet has no id yet.
        topic_id=None if validated_only else uuid.UUID(bytes=command.topic_id),
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=command.partitions,
        replication_factor=REPLICATION_FACTOR,
        configs=configs,
    )
