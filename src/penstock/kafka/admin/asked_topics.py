"""Topics that clients ask for by name, and that are created then (auto.create.topics.enable).

How many there may be: `kafka.topic_room`, of one request and in the cluster;
`kafka.auto_creation`, in a second. A client that gets LEADER_NOT_AVAILABLE asks
again, for as long as it likes.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.kafka.admin.lines import describe, note_changes
from penstock.kafka.admin.topic_plan import new_topic_id
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.outcomes import ItemError
from penstock.kafka.topic_room import TopicRoom
from penstock.model.errors import PenstockError
from penstock.model.topic_names import folded
from penstock.state.answers import Refused
from penstock.state.commands import CreateTopic

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Plan:
    """The plan for the topics that one request names."""

    commands: list[CreateTopic] = field(default_factory=list)
    refused: dict[str, ErrorCode] = field(default_factory=dict)
    """Errors of the topics that are not there in the end, by name."""
    full: list[str | None] = field(default_factory=list)
    """Why there is no room for some of them."""

    def put_off(self, names: Sequence[str]) -> None:
        """Have the client ask again for what is not created yet."""
        self.refused.update(dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE))


async def create_asked(context: RequestContext, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create the topics that a request for metadata names and that are not there.

    Args:
        names: valid ones, each once.

    Returns:
        By name, the errors of those that are not there yet.
    """
    plan = await _plan(context, names)
    _keep_to_rate(context, plan)
    if plan.commands:
        await _create(context, plan)
    if plan.full:
        _note_limited(context, len(plan.full), f"are refused: {plan.full[0]}", kind="topics_max")
    return plan.refused


async def _plan(context: RequestContext, names: Sequence[str]) -> _Plan:
    """Plan as many of the topics as one request may create and the cluster has room for."""
    broker, plan = context.broker, _Plan()
    partitions = broker.settings.default_partitions
    topics_max = max(1, broker.settings.create_partitions_max // partitions)
    room = TopicRoom(broker.view, broker.settings)
    others: dict[str, str] = {}
    late: list[str] = []
    async for name in broker.turns.each(names):
        fold = folded(name)
        if broker.view.similar_name(name) is not None or (fold and others.get(fold, name) != name):
            plan.refused[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            continue
        if len(plan.commands) == topics_max:
            late.append(name)
            continue
        try:
            room.take(partitions, topics=1)
        except ItemError as error:
            plan.refused[name] = error.outcome.error
            plan.full.append(error.outcome.message)
            continue
        if fold:
            others[fold] = name
        topic_id = new_topic_id(broker.random)
        plan.commands.append(CreateTopic(name=name, topic_id=topic_id, partitions=partitions))
    if late:
        setting = f"create_partitions_max = {broker.settings.create_partitions_max}"
        _note_limited(context, len(late), f"are not created yet: {setting}")
        plan.put_off(late)
    return plan


def _keep_to_rate(context: RequestContext, plan: _Plan) -> None:
    broker = context.broker
    allowed = broker.auto_creation.take(len(plan.commands), broker.clock.monotonic_s())
    late = [command.name for command in plan.commands[allowed:]]
    if late:
        del plan.commands[allowed:]
        setting = f"auto_create_topics_per_s = {broker.settings.auto_create_topics_per_s}"
        _note_limited(context, len(late), f"are not created yet: {setting}")
        plan.put_off(late)


async def _create(context: RequestContext, plan: _Plan) -> None:
    broker, commands = context.broker, plan.commands
    try:
        async with broker.creations.sending(commands):
            answers = await broker.committer.commit(commands)
    except ItemError as error:
        plan.refused.update((command.name, error.outcome.error) for command in commands)
        plan.full += [error.outcome.message] * len(commands)
        return
    except PenstockError as error:
        plan.refused.update((command.name, error_code(error)) for command in commands)
        return
    created = []
    for command, answer in zip(commands, answers, strict=True):
        if not isinstance(answer, Refused):
            created.append(describe(broker.view, command))
        elif broker.view.topic(command.name) is None:
            # Else another request created it meanwhile.
            plan.put_off([command.name])
    note_changes(context, created)


def _note_limited(
    context: RequestContext, count: int, what: str, *, kind: str = "auto_create_topics_per_s"
) -> None:
    broker = context.broker
    broker.instruments.count("limited_topics", count)
    if broker.seldom.due(kind):
        logger.warning(
            "%d topics that client %s at %s asks for %s",
            count,
            context.client_id,
            context.client_host,
            what,
        )
