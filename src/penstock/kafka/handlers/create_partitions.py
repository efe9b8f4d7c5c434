"""CreatePartitions 0 to 3: raise partition counts. They are never lowered, as in Kafka."""

from typing import Any, Final

from penstock.kafka.admin import commit
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError, Outcome, duplicates
from penstock.kafka.resources import unknown_topic
from penstock.kafka.schema import build, response_types
from penstock.kafka.topic_plan import added_partitions
from penstock.metadata.commands import CreatePartitions

API_KEY: Final = 37
VERSIONS: Final = range(4)


async def handle(context: RequestContext, request: Any) -> Any:
    """Add partitions in one commit, or only check; an outcome per topic."""
    types = response_types("create_partitions", context.api_version)
    twice = duplicates(topic.name for topic in request.topics)
    outcomes: list[Outcome | None] = []
    commands = []
    for topic in request.topics:
        try:
            if topic.name in twice:
                raise ItemError(ErrorCode.INVALID_REQUEST, "the request names the topic twice")
            command = _plan(context, topic)
        except ItemError as error:
            outcomes.append(error.outcome)
            continue
        if request.validate_only:
            outcomes.append(Outcome())
        else:
            commands.append(command)
            outcomes.append(None)
    answers = iter(await commit(context, commands, request.timeout))
    finished = [next(answers) if outcome is None else outcome for outcome in outcomes]
    return build(
        types.CreatePartitionsResponse,
        results=tuple(
            build(
                types.CreatePartitionsTopicResult,
                name=topic.name,
                error_code=outcome.error,
                error_message=outcome.message,
            )
            for topic, outcome in zip(request.topics, finished, strict=True)
        ),
    )


def _plan(context: RequestContext, topic: Any) -> CreatePartitions:
    broker = context.broker
    known = broker.view.topic(topic.name)
    if known is None:
        raise unknown_topic(topic.name)
    assignments = None
    if topic.assignments is not None:
        assignments = [assignment.broker_ids for assignment in topic.assignments]
    added_partitions(
        topic.count,
        known.partitions,
        assignments,
        node_id=broker.node_id,
        limit=broker.settings.partitions_max,
    )
    return CreatePartitions(topic_id=known.topic_id, partitions=topic.count)
