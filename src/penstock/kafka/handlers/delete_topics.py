"""DeleteTopics 1 to 6: by name, from version 6 on also by id."""

import uuid
from typing import TYPE_CHECKING, NamedTuple

from penstock.kafka import confirmed as fresh
from penstock.kafka.access import refusal_text
from penstock.kafka.admin.commit import commit
from penstock.kafka.admin.mutations import Mutations
from penstock.kafka.admin.resources import unknown_topic
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import Outcome, duplicates
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.state.commands import DeleteTopic

if TYPE_CHECKING:
    from kio.schema.delete_topics import v5, v6


class _Asked(NamedTuple):
    name: str | None
    topic_id: uuid.UUID | None


async def handle(
    context: RequestContext, request: "v5.DeleteTopicsRequest | v6.DeleteTopicsRequest"
) -> Answer:
    """Delete topics in one commit; an outcome for each."""
    types = response_types("delete_topics", context.api_version)
    turns = context.broker.turns
    if hasattr(request, "topics"):
        asked = [_Asked(one.name, one.topic_id) async for one in turns.each(request.topics)]
    else:
        asked = [_Asked(name, None) async for name in turns.each(request.topic_names)]

    async def look(certainty: fresh.Certainty) -> list[_Found | _Hidden | Outcome]:
        return [_find(context, one, certainty) async for one in turns.each(asked)]

    found = await fresh.settled(context, look)
    # The same topic by name and by id is the same topic twice.
    ids = [one.topic_id async for one in turns.each(found) if isinstance(one, _Found)]
    twice = await turns.run(duplicates(ids))
    twice_asked = await turns.run(duplicates(asked))
    outcomes: list[Outcome | None] = []
    commands = []
    mutations = Mutations(context, "delete_topics")
    async for one, topic in turns.each(zip(asked, found, strict=True)):
        if one in twice_asked or (isinstance(topic, _Found) and topic.topic_id in twice):
            outcomes.append(Outcome(ErrorCode.INVALID_REQUEST, "the request names the topic twice"))
        elif isinstance(topic, Outcome):
            outcomes.append(topic)
        elif isinstance(topic, _Hidden):
            outcomes.append(topic.outcome)
        else:
            refused = mutations.refusal(topic.partitions)
            if refused is None:
                commands.append(DeleteTopic(topic_id=topic.topic_id))
            outcomes.append(refused)
    answers = iter(await commit(context, commands, request.timeout))
    responses = ArrayWriter(types.DeletableTopicResult)
    async for one, topic, early in turns.each(zip(asked, found, outcomes, strict=True)):
        outcome = next(answers) if early is None else early
        name, topic_id = one.name, one.topic_id
        if isinstance(topic, _Found) and early is None:
            name, topic_id = topic.name, uuid.UUID(bytes=topic.topic_id)
        elif isinstance(topic, _Hidden):
            name = topic.name
        responses.add(
            name=name,
            topic_id=topic_id,
            error_code=outcome.error,
            error_message=outcome.message,
        )
    return build(types.DeleteTopicsResponse, responses=responses.encoded())


class _Found(NamedTuple):
    name: str
    topic_id: bytes
    partitions: int


class _Hidden(NamedTuple):
    """A topic, asked for by its id, that the client may describe and not delete."""

    name: str
    outcome: Outcome


def _find(
    context: RequestContext, asked: _Asked, certainty: fresh.Certainty
) -> _Found | _Hidden | Outcome:
    view, access = context.broker.view, context.access
    if (asked.name is None) == (asked.topic_id is None):
        return Outcome(ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id")
    if asked.topic_id is not None:
        topic = view.topic_by_id(asked.topic_id.bytes)
        if topic is None:
            unknown = Outcome(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic {asked.topic_id}")
            return certainty.outcome(unknown)
    else:
        assert asked.name is not None
        refused = access.topic(Operation.DESCRIBE, asked.name)
        if refused:
            return Outcome(refused, refusal_text(refused))
        topic = view.topic(asked.name)
        if topic is None:
            return certainty.outcome(unknown_topic(asked.name).outcome)
    refused = access.topic(Operation.DELETE, topic.name)
    if not refused:
        return _Found(topic.name, topic.topic_id, topic.partitions)
    outcome = Outcome(refused, refusal_text(refused))
    if asked.topic_id is None or access.topic(Operation.DESCRIBE, topic.name):
        return outcome
    return _Hidden(topic.name, outcome)
