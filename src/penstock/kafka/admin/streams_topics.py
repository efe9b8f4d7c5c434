"""Internal topics of Kafka Streams programs are made when a heartbeat finds that they are missing.

They are in the next heartbeat's catalog, so that a program's tasks run one heartbeat later.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from penstock.groups.streams.configured import Status, StatusCode
from penstock.groups.streams.topology import InternalTopic
from penstock.kafka.admin.commit import commit
from penstock.kafka.admin.topic_plan import (
    DEFAULT,
    check_new_name,
    checked_configs,
    counts,
    new_topic_id,
)
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.kafka.topic_room import TopicRoom
from penstock.model.errors import InvalidRequestError
from penstock.security.acl import Operation
from penstock.state.commands import CreateTopic
from penstock.state.schema import TRANSACTIONS_LEVEL

TIMEOUT: Final = timedelta(seconds=10)
ERRORS_SHOWN: Final = 3


async def create_internal(
    context: RequestContext, topics: Sequence[InternalTopic], statuses: Sequence[Status]
) -> tuple[Status, ...]:
    """Make the topics that a streams group lacks.

    Returns: the statuses; MISSING_INTERNAL_TOPICS says why they can't be made.
    """
    access = context.access
    hidden = []
    if access.cluster(Operation.CREATE):
        hidden = [one.name for one in topics if access.topic(Operation.CREATE, one.name)]
    if hidden:
        return _with(statuses, f"; Unauthorized to CREATE on topics {', '.join(hidden)}.")
    room = TopicRoom(context.broker.view, context.broker.settings)
    commands, failures = [], []
    async for topic in context.broker.turns.each(topics):
        if context.broker.view.topic(topic.name) is not None:
            # Another member's heartbeat made it meanwhile.
            continue
        try:
            commands.append(_plan(context, topic, room))
        except (ItemError, InvalidRequestError) as error:
            failures.append(f"{topic.name} ({_text(error)})")
    outcomes = await commit(context, commands, TIMEOUT)
    for command, outcome in zip(commands, outcomes, strict=True):
        if outcome.error not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
            failures.append(f"{command.name} ({outcome.message or outcome.error.name})")
    if not failures:
        return tuple(statuses)
    more = len(failures) - ERRORS_SHOWN
    shown = ", ".join(failures[:ERRORS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return _with(statuses, f"; Creation failed: {shown}.")


def _plan(context: RequestContext, topic: InternalTopic, room: TopicRoom) -> CreateTopic:
    broker = context.broker
    check_new_name(topic.name, broker.view.similar_name(topic.name))
    count, factor = counts(
        topic.partitions,
        topic.replication_factor or DEFAULT,
        {},
        node_ids={node.node_id for node in context.nodes.all()},
        default=broker.settings.default_partitions,
        limit=broker.settings.topic_partitions_max,
    )
    room.take(count, topics=1)
    return CreateTopic(
        name=topic.name,
        topic_id=new_topic_id(broker.random),
        partitions=count,
        configs=checked_configs(topic.configs),
        replication_factor=factor if broker.view.feature_level >= TRANSACTIONS_LEVEL else 0,
    )


def _with(statuses: Sequence[Status], more: str) -> tuple[Status, ...]:
    return tuple(
        one._replace(detail=one.detail + more)
        if one.code is StatusCode.MISSING_INTERNAL_TOPICS
        else one
        for one in statuses
    )


def _text(error: ItemError | InvalidRequestError) -> str:
    if isinstance(error, ItemError):
        return error.outcome.message or error.outcome.error.name
    return str(error)
