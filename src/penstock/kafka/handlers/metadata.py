"""Metadata 0 to 13: brokers, topics, partitions; creates topics that a client asks for.

A partition's leader is any agent of the client's zone (`kafka.nodes`). Known topics are answered at
once, even while the journal is away; that a topic does not exist, only after a confirmation.

Decoded and encoded (`kafka.metadata_answers`) by struct: every client asks at its start and
every few minutes, the answer for 5,000 partitions takes kio's writer 47 ms, and a server must
answer this before it has time to import kio. The answer about all topics is cached by the view's
generation and the leaders' candidates. A long one is made in pieces, as its peer takes them.

Leader epochs are the broker's (of the log's last restore). Topic ids are understood from version 12
on (KIP-516). A topic that the client may not describe is answered as one, whether or not it exists,
and left out of an answer about all topics.
"""

import asyncio
import struct
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from penstock.kafka import confirmed as fresh
from penstock.kafka.access import UNKNOWN_OPERATIONS
from penstock.kafka.admin.asked_topics import create_asked
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, MalformedRequestError
from penstock.kafka.metadata_answers import (
    ANSWER_BYTES,
    FLEXIBLE_FROM,
    LOOKUP_BY_ID_FROM,
    KnownTopics,
    TopicAnswer,
    TopicsWriter,
    long_response,
    response,
    slices,
)
from penstock.kafka.outcomes import CHEAP
from penstock.kafka.replies import SMALL_ANSWER_BYTES, AnyReply
from penstock.kafka.shown_replicas import replicas_of
from penstock.kafka.wire.decode import STEP_ITEMS, Cursor
from penstock.kafka.wire.primitives import NO_UUID
from penstock.model.steps import Steps, at_once
from penstock.model.topic_names import name_problem
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from penstock.state.read.view import StateView

RAW: Final = True

IDS_IN_REQUEST_FROM: Final = 10
AT_ONCE_BYTES: Final = 16 << 10
AT_ONCE_ITEMS: Final = 500
"""Longer requests and answers are worked on in turns of the event loop."""
TOPIC_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class _Request:
    """`topics` holds (topic id, name) pairs, each once; None asks for all."""

    topics: dict[tuple[bytes, str | None], None] | None
    may_create: bool
    shows_cluster: bool = False
    """Whether the answer says what the client may do with the cluster."""
    shows_topics: bool = False
    """The same of each topic."""


def serve(context: RequestContext, body: memoryview) -> "AnyReply | asyncio.Future[AnyReply]":
    """Answer at once, or after the topics that are to be created are.

    Raises:
        MalformedRequestError: the body is not such a request.
    """
    broker = context.broker
    if len(body) > AT_ONCE_BYTES or broker.turns.spend(1):
        return _later(context, body, _serve_in_turns(context, body))
    request = at_once(_decode(context.api_version, body))
    if request.topics is None:
        encoded = _known_all_topics(context) if _is_shared(context, request) else None
        if encoded is None:
            return _later(context, body, _answer_all(context, request))
        return _shared_response(context, request, encoded)
    certainty = fresh.first(context)
    asking = _Asking(context, request)
    answers = [asking.answer(*topic, certainty) for topic in request.topics]
    if (
        _wants_more(context, request, answers, certainty)
        or _items(answers) > AT_ONCE_ITEMS
        or _bound(answers) > SMALL_ANSWER_BYTES
    ):
        return _later(context, body, _go_on(context, request, answers, certainty))
    encoded = at_once(TopicsWriter(context).whole(answers))
    return response(context, encoded, operations=_of_cluster(context, request))


_Outcome = AnyReply | asyncio.Future[None]
"""A reply; or what to wait for, before all is done again."""


def _later(
    context: RequestContext, body: memoryview, work: Awaitable[_Outcome]
) -> "asyncio.Future[AnyReply]":
    # Owned by the connection, which cancels it when its peer is gone.
    return asyncio.get_running_loop().create_task(_until_room(context, body, work))


async def _until_room(
    context: RequestContext, body: memoryview, work: Awaitable[_Outcome]
) -> AnyReply:
    found = await work
    while isinstance(found, asyncio.Future):
        await found
        found = await _serve_in_turns(context, body)
    return found


async def _serve_in_turns(context: RequestContext, body: memoryview) -> _Outcome:
    """Do the same as `serve` for a long request, or when other work has used up this turn."""
    turns = context.broker.turns
    await turns.wait()
    request = await turns.run(_decode(context.api_version, body))
    if request.topics is None:
        return await _answer_all(context, request)
    certainty = fresh.first(context)
    answers = await _answers(context, request, certainty)
    return await _go_on(context, request, answers, certainty)


async def _go_on(
    context: RequestContext,
    request: _Request,
    answers: list[TopicAnswer],
    certainty: fresh.Certainty,
) -> _Outcome:
    """Create what is missing and may be, and ask the journal about what is denied; then answer."""
    assert request.topics is not None
    missing = _missing(context, request, answers)
    if missing:
        return await _create_and_answer(context, request, missing)
    if certainty.doubted:
        return await _confirm_and_answer(context, request)
    return await _encoded(context, request, answers)


def _wants_more(
    context: RequestContext,
    request: _Request,
    answers: Sequence[TopicAnswer],
    certainty: fresh.Certainty,
) -> bool:
    return certainty.doubted or bool(_missing(context, request, answers))


def _missing(
    context: RequestContext, request: _Request, answers: Sequence[TopicAnswer]
) -> list[str]:
    """Names of topics that are to be created."""
    if not _creates(context, request):
        return []
    return [
        answer.name
        for answer in answers
        if answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and answer.name is not None
    ]


def _creates(context: RequestContext, request: _Request) -> bool:
    return request.may_create and context.broker.settings.auto_create_topics


async def _answers(
    context: RequestContext, request: _Request, certainty: fresh.Certainty
) -> list[TopicAnswer]:
    assert request.topics is not None
    asking, turns = _Asking(context, request), context.broker.turns
    return [asking.answer(*topic, certainty) async for topic in turns.each(request.topics)]


async def _encoded(
    context: RequestContext, request: _Request, answers: Sequence[TopicAnswer]
) -> _Outcome:
    turns, writer = context.broker.turns, TopicsWriter(context)
    operations = _of_cluster(context, request)
    if _bound(answers) <= SMALL_ANSWER_BYTES:
        return response(context, await turns.run(writer.whole(answers)), operations=operations)
    # A topic is encoded whole.
    largest = max((answer.partitions * answer.row_bytes_max for answer in answers), default=0)
    held_bytes = BASE_BYTES + len(answers) * ANSWER_BYTES + largest
    waiting = context.reserve_answer(held_bytes)
    if waiting is not None:
        return waiting
    length = await turns.run(writer.length(answers))
    return long_response(
        context,
        writer.pieces(answers),
        topic_bytes=length,
        held_bytes=held_bytes,
        operations=operations,
    )


async def _confirm_and_answer(context: RequestContext, request: _Request) -> _Outcome:
    answers = await _answers(context, request, await fresh.second(context))
    return await _encoded(context, request, answers)


async def _create_and_answer(
    context: RequestContext, request: _Request, missing: Sequence[str]
) -> _Outcome:
    refused = await create_asked(context, missing)
    # Applied here, the commit is the present; without one it has to be asked for.
    certainty = await fresh.second(context) if refused else fresh.FINAL
    assert request.topics is not None
    asking, answers = _Asking(context, request), []
    async for topic_id, asked in context.broker.turns.each(request.topics):
        if asked is not None and asked in refused:
            answers.append(TopicAnswer(refused[asked], asked, NO_UUID, 0))
        else:
            answers.append(asking.answer(topic_id, asked, certainty))
    return await _encoded(context, request, answers)


class _Asking:
    """Answers one request's topics, one by one."""

    def __init__(self, context: RequestContext, request: _Request) -> None:
        self._view = context.broker.view
        self._known = KnownTopics(context, shows_operations=request.shows_topics)
        self._access = access = context.access
        self._must_permit = not access.is_unbounded
        # Who may create topics in the cluster needs no permission for each.
        self._is_creator = not access.cluster(Operation.CREATE)
        self._creates = _creates(context, request)

    def answer(self, topic_id: bytes, name: str | None, certainty: fresh.Certainty) -> TopicAnswer:
        """Answer about a topic that is named by its id, or by its name."""
        if name is None:
            found = self._view.topic_by_id(topic_id)
            if found is None:
                error = certainty.no(ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.LEADER_NOT_AVAILABLE)
                return TopicAnswer(error, None, topic_id, 0)
            refused = self._access.topic(Operation.DESCRIBE, found.name)
            return TopicAnswer(refused, None, topic_id, 0) if refused else self._known.answer(found)
        if self._must_permit:
            refused = self._access.topic(Operation.DESCRIBE, name)
            if refused:
                return TopicAnswer(refused, name, NO_UUID, 0)
        found = self._view.topic(name)
        if found is not None:
            return self._known.answer(found)
        if self._creates and not self._is_creator:
            refused = self._access.topic(Operation.CREATE, name)
            if refused:
                return TopicAnswer(refused, name, NO_UUID, 0)
        if name_problem(name) is not None:
            return TopicAnswer(ErrorCode.INVALID_TOPIC_EXCEPTION, name, NO_UUID, 0)
        # While the journal is away the error is one that clients retry for as long as they like.
        # Some clients take "there is no such topic" for final.
        error = certainty.no(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
        return TopicAnswer(error, name, NO_UUID, 0)


def _of_cluster(context: RequestContext, request: _Request) -> int:
    """Return what the client may do with the cluster, if it asked for that."""
    return context.access.cluster_operations() if request.shows_cluster else UNKNOWN_OPERATIONS


# -- decoding ----------------------------------------------------------------------------------


def _decode(version: int, body: memoryview) -> Steps[_Request]:
    cursor = Cursor(body)
    flexible = version >= FLEXIBLE_FROM
    count = cursor.uvarint() - 1 if flexible else _int32(cursor)
    topics: dict[tuple[bytes, str | None], None] | None
    if count < 0:
        if count != -1 or version == 0:
            raise MalformedRequestError("decode", "Metadata", f"an array of {count} topics")
        topics = None
    else:
        # As in Kafka, a topic that is named more than once is answered once.
        topics = {}
        for number in range(1, 1 + cursor.items(count)):
            topics[_decode_topic(cursor, version)] = None
            if not number % STEP_ITEMS:
                yield STEP_ITEMS
        # Version 0 can't distinguish null from empty, so an empty list means all topics.
        if version == 0 and not topics:
            topics = None
    may_create = version < 4 or cursor.body[cursor.skip(1)] != 0
    shows_cluster = 8 <= version <= 10 and cursor.body[cursor.skip(1)] != 0
    shows_topics = version >= 8 and cursor.body[cursor.skip(1)] != 0
    if flexible:
        _skip_tags(cursor)
    # What follows the last field is ignored, as Kafka does: librdkafka 2.16 sends three bytes
    # more than version 13 has.
    return _Request(topics, may_create, shows_cluster, shows_topics)


def _decode_topic(cursor: Cursor, version: int) -> tuple[bytes, str | None]:
    topic_id = bytes(cursor.take(16)) if version >= IDS_IN_REQUEST_FROM else NO_UUID
    flexible = version >= FLEXIBLE_FROM
    length = cursor.uvarint() - 1 if flexible else _int16(cursor)
    if length < 0:
        # Kafka: a name may be missing only where a topic id says which topic is meant.
        if length != -1 or version < LOOKUP_BY_ID_FROM:
            raise MalformedRequestError("decode", "Metadata", f"a topic name of {length} bytes")
        name = None
    else:
        try:
            name = str(cursor.take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequestError("decode", "Metadata", str(error)) from error
    if flexible:
        _skip_tags(cursor)
    if version >= LOOKUP_BY_ID_FROM and topic_id != NO_UUID:
        name = None
    return topic_id, name


def _int16(cursor: Cursor) -> int:
    return cast(int, struct.unpack_from(">h", cursor.body, cursor.skip(2))[0])


def _int32(cursor: Cursor) -> int:
    return cast(int, struct.unpack_from(">i", cursor.body, cursor.skip(4))[0])


def _skip_tags(cursor: Cursor) -> None:
    for _ in range(cursor.tag_count()):
        cursor.uvarint()
        cursor.skip(cursor.uvarint())


# -- all topics ----------------------------------------------------------------------------------


_Key = tuple[int, int, tuple[tuple[int, ...], ...]]
"""The request's version, the leader epoch, and the agents as replicas."""


class _AllTopics:
    """The encoded array of all topics, as of one generation of the view."""

    __slots__ = ("by_version", "generation", "view")

    def __init__(self) -> None:
        self.view: StateView | None = None
        self.generation = -1
        self.by_version: dict[_Key, bytes] = {}


_cache: Final = _AllTopics()
_CACHED_MAX: Final = 64
"""Encodings: of 14 versions, per zone, as agents come and go."""


def _all_key(context: RequestContext) -> _Key:
    return context.api_version, context.broker.epoch, replicas_of(context).key


def _known_all_topics(context: RequestContext) -> bytes | None:
    """The array of all topics, if it is known; of few topics it is made if need be."""
    view = context.broker.view
    if _cache.view is not view or _cache.generation != view.generation:
        _cache.view, _cache.generation = view, view.generation
        _cache.by_version.clear()
    key = _all_key(context)
    encoded = _cache.by_version.get(key)
    if encoded is None and len(view.topics()) <= AT_ONCE_ITEMS:
        answers = list(map(KnownTopics(context).answer, view.topics()))
        if _items(answers) <= AT_ONCE_ITEMS:
            encoded = at_once(TopicsWriter(context).whole(answers))
            _remember(key, encoded)
    return encoded


def _is_shared(context: RequestContext, request: _Request) -> bool:
    """Whether the client sees of topics what all see."""
    return context.access.is_unbounded and not request.shows_topics


async def _answer_visible(context: RequestContext, request: _Request) -> _Outcome:
    """Answer about all topics that the client may describe."""
    access, turns = context.access, context.broker.turns
    known = KnownTopics(context, shows_operations=request.shows_topics)
    answers = [
        known.answer(topic)
        async for topic in turns.each(list(context.broker.view.topics()))
        if not access.topic(Operation.DESCRIBE, topic.name)
    ]
    return await _encoded(context, request, answers)


async def _answer_all(context: RequestContext, request: _Request) -> _Outcome:
    """Encode all topics in turns; unless they change meanwhile, for those who ask next, too."""
    if not _is_shared(context, request):
        return await _answer_visible(context, request)
    view, turns = context.broker.view, context.broker.turns
    encoded = _known_all_topics(context)
    if encoded is None:
        generation, key = view.generation, _all_key(context)
        known = KnownTopics(context)
        answers = [known.answer(topic) async for topic in turns.each(list(view.topics()))]
        waiting = context.reserve_answer(_bound(answers))
        if waiting is not None:
            return waiting
        encoded = await turns.run(TopicsWriter(context).whole(answers))
        if _cache.view is view and _cache.generation == generation == view.generation:
            _remember(key, encoded)
    return _shared_response(context, request, encoded)


def _shared_response(context: RequestContext, request: _Request, encoded: bytes) -> AnyReply:
    """An answer whose topics are others' as well: it waits for nothing, since it holds nothing."""
    operations = _of_cluster(context, request)
    if len(encoded) <= SMALL_ANSWER_BYTES:
        return response(context, encoded, operations=operations)
    return long_response(
        context,
        slices(encoded),
        topic_bytes=len(encoded),
        held_bytes=0,
        operations=operations,
    )


def _remember(key: _Key, encoded: bytes) -> None:
    if len(_cache.by_version) >= _CACHED_MAX:
        _cache.by_version.clear()
    _cache.by_version[key] = encoded


def _items(answers: Sequence[TopicAnswer]) -> int:
    """Return the greatest cost of encoding the answers, in items."""
    return len(answers) + sum(answer.partitions for answer in answers) // CHEAP


def _bound(answers: Sequence[TopicAnswer]) -> int:
    """The most bytes of an answer about topics."""
    found = BASE_BYTES + len(answers) * TOPIC_BYTES
    for answer in answers:
        found += text_bytes(answer.name) + answer.partitions * answer.row_bytes_max
    return found
